"""Every test here fails on an internal error of the broker; that the disk fails, it may say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.durable import quick_folder


class _Alarm(logging.Handler):
    """Turns the record of an unexpected exception into a failure, where it happened."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            raise AssertionError(record.getMessage()) from record.exc_info[1]


@pytest.fixture
def internal_errors() -> None:
    """Lets a test have internal errors, which it makes on purpose."""


@pytest.fixture(autouse=True)
def _no_internal_errors(request: pytest.FixtureRequest) -> Iterator[None]:
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
