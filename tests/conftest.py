"""What holds for all tests."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where everything that tests want is installed, as in continuous integration, none may be skipped."""
    report = yield
    if report.skipped and os.environ.get("PYRITE_NOTHING_SKIPPED"):
        report.outcome = "failed"
        report.longrepr = f"skipped, while PYRITE_NOTHING_SKIPPED is set: {report.longrepr}"
    return report
