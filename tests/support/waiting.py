"""Wait for a condition that sends no event or, where time is what a test is about, for time to pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 30.0
"""How long to wait for what takes a moment on an idle machine."""
INTERVAL = 0.01

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str = "the condition holds", seconds: float = SECONDS) -> T:
    """Return the first true result of `condition`; fail if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(INTERVAL)
    return result


async def until(
    condition: Callable[[], object], what: str = "the condition holds", seconds: float = SECONDS
) -> None:
    """Let the event loop run until `condition` holds; fail if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(INTERVAL)


def let_pass(seconds: float, why: str) -> None:
    """Let time pass, because a timer or the age of something is what the test is about."""
    assert why
    time.sleep(seconds)
