"""Fixtures of tests that write a log; a conftest imports them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.durable import quick_folder


class _Alarm(logging.Handler):
    """Fails the test where an unexpected exception is logged; that the disk fails may be logged."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            raise AssertionError(record.getMessage()) from record.exc_info[1]


@pytest.fixture
def internal_errors() -> None:
    """Allow internal errors, which the test causes on purpose."""


@pytest.fixture(autouse=True)
def no_internal_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test on an internal error of the broker, which catches and logs its own."""
    if "internal_errors" in request.fixturenames:
        yield
        return
    alarm = _Alarm(logging.ERROR)
    logger = logging.getLogger("pyrite")
    logger.addHandler(alarm)
    try:
        yield
    finally:
        logger.removeHandler(alarm)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory."""
    with quick_folder() as path:
        yield path
