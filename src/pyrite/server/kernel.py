"""Settings of the broker's process in the kernel: exact timers, small pages, file descriptors."""

from __future__ import annotations

import ctypes
import resource
import select
import sys

RESERVED_DESCRIPTORS = 200
"""Descriptors reserved for the log, listeners and child processes."""

_ENDED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_SET_TIMER_SLACK = 29
_SET_THP_DISABLE = 41


def sharpen_timers() -> None:
    """Make the kernel wake this thread on time; by default, timers may be 50 µs late."""
    nanoseconds = 1_000
    _control(_SET_TIMER_SLACK, nanoseconds)


def keep_pages_small() -> None:
    """Disable huge pages, even if libraries request them.

    The kernel zeroes a huge page at its first use. On a virtual machine whose host had to find the memory,
    this blocked the event loop for 5 ms.
    """
    _control(_SET_THP_DISABLE, 1)


def _control(option: int, value: int) -> None:
    """Call prctl; kernels ignore unknown options."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def is_half_closed(descriptor: int) -> bool:
    """Return whether the peer of a socket has ended its output, even if that waits to be read."""
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, _ENDED)
    return bool(poll.poll(0))


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors to its maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def possible_connections(wanted: int) -> int:
    """Return the number of connections that leaves descriptors for the log, at most `wanted`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - min(RESERVED_DESCRIPTORS, soft // 2)))
