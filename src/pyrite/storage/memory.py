"""Memory that is not needed any more is given back to the system: Arrow and the C library keep it else."""

from __future__ import annotations

import ctypes
import gc
import threading
import time

import pyarrow as pa

QUIET = 5.0
"""Seconds between two looks whether a rush is over."""
RUSH = 1.0
"""Seconds of the processor's time, between two looks, that are a rush."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back_memory() -> None:
    """Give it back. It takes milliseconds, in which others may wait for memory."""
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)


def give_back_after_rushes() -> None:
    """Have what many or large answers needed given back when they are over, by a thread of its own."""
    threading.Thread(target=_watch, name="memory", daemon=True).start()


def _watch() -> None:
    rushed, used = False, time.process_time()
    while True:
        time.sleep(QUIET)
        before, used = used, time.process_time()
        if used - before > RUSH:
            rushed = True
        elif rushed:
            rushed = False
            gc.collect()
            give_back_memory()
