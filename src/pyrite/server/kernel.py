"""What the broker asks of Linux for itself, so that no one waits longer than need be."""

from __future__ import annotations

import ctypes
import sys

_SET_TIMER_SLACK = 29
_SET_THP_DISABLE = 41


def sharpen_timers() -> None:
    """Have the kernel wake this thread when it asked to be; by default it is up to 50 µs late."""
    nanoseconds = 1_000
    _ask(_SET_TIMER_SLACK, nanoseconds)


def keep_pages_small() -> None:
    """Have memory given in small pages, as libraries may ask for large ones.

    When it is first used, a large page is filled with zeros as a whole. On a virtual machine whose host has
    to find the memory, that held the event loop up for 5 ms.
    """
    _ask(_SET_THP_DISABLE, 1)


def _ask(what: int, value: int) -> None:
    """Ask for it; a kernel that does not know it goes on as before."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)
