"""Fixtures. Every test here fails if the broker logs an internal error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.core import Core, no_internal_errors
from tests.support.log_fixtures import folder

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def _no_internal_errors() -> Iterator[None]:
    with no_internal_errors():
        yield


@pytest.fixture
def core() -> Core:
    return Core()
