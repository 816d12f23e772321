"""The base class of Pyrite's exceptions."""

from __future__ import annotations


class PyriteError(Exception):
    """An operation of Pyrite failed; the message says what is wrong, where, and what to do."""
