"""Streams whose segments are files of tables."""

from __future__ import annotations

from tests.support.log_fixtures import folder, internal_errors, no_internal_errors

__all__ = ["folder", "internal_errors", "no_internal_errors"]
