"""What the broker asks of the operating system for its process: exact timers, small pages, descriptors."""

from __future__ import annotations

import ctypes
import resource
import sys

RESERVED_DESCRIPTORS = 200
"""Descriptors that connections leave to the log, the listeners and the child processes."""

_SET_TIMER_SLACK = 29
_SET_THP_DISABLE = 41


def sharpen_timers() -> None:
    """Make the kernel wake this thread on time; by default it is up to 50 µs late."""
    nanoseconds = 1_000
    _control(_SET_TIMER_SLACK, nanoseconds)


def keep_pages_small() -> None:
    """Have memory mapped in small pages, though libraries may ask for large ones.

    A large page is zeroed as a whole when it is first used. On a virtual machine whose host had to find the
    memory, that blocked the event loop for 5 ms.
    """
    _control(_SET_THP_DISABLE, 1)


def _control(option: int, value: int) -> None:
    """Call prctl; a kernel that does not know the option changes nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def possible_connections(wanted: int) -> int:
    """Return how many connections are possible, so that descriptors are left for the log."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - min(RESERVED_DESCRIPTORS, soft // 2)))
