"""Return unused memory to the system: Arrow and the C library would keep it."""

from __future__ import annotations

import ctypes
import gc
import threading
import time

import pyarrow as pa

CHECK_INTERVAL = 5.0
"""Seconds between two checks whether a burst is over."""
BURST_CPU_SECONDS = 1.0
"""Seconds of CPU time between two checks that count as a burst."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def release_memory() -> None:
    """Return unused memory to the system. This takes milliseconds, during which allocations may block."""
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)


def release_memory_after_bursts() -> None:
    """Start a thread that returns unused memory after each burst of many or large answers."""
    threading.Thread(target=_watch, name="memory", daemon=True).start()


def _watch() -> None:
    in_burst, used = False, time.process_time()
    while True:
        time.sleep(CHECK_INTERVAL)
        before, used = used, time.process_time()
        if used - before > BURST_CPU_SECONDS:
            in_burst = True
        elif in_burst:
            in_burst = False
            gc.collect()
            release_memory()
