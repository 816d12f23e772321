"""Memory: garbage is collected in short steps, and caches are trimmed after a burst.

Python's own collector would block the event loop for longer than a turn. While as many old objects are freed
as new ones are created, its young generation grows, and a collection takes 10 to 50 ms. The old generation
takes 0.1 µs per object of the broker.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from pyrite.broker.core import Broker

TICKS = 10
"""Ticks between two checks of the memory in use."""
BURST = 100_000
"""Freed blocks of memory that indicate the end of a burst."""
YOUNG_INTERVAL = 0.01
"""Seconds between two collections of young objects, each of which takes up to 1.5 ms."""
MAX_FULL_COLLECTION = 30_000
"""Maximum blocks of memory, besides those at the start, for a full collection, which takes up to 5 ms.

With more blocks, reference cycles that outlive YOUNG_INTERVAL are never freed. The broker avoids cycles.
"""


def resident() -> int | None:
    """Return the resident memory of the process in bytes; None if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class Memory:
    """The garbage collector's schedule, and the clean-up after a burst."""

    def __init__(self) -> None:
        self._ticks = 0
        self._most_blocks = 0
        """Most blocks of memory in use since the last burst."""
        self._blocks_at_start = sys.getallocatedblocks()
        self.due_at = float("inf")
        """Time of the next young collection; infinite while Python's collector is enabled."""

    def take_over(self) -> None:
        """Replace Python's collector. Existing objects are never collected."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._blocks_at_start = sys.getallocatedblocks()
        self.due_at = 0.0

    def collect_young(self, now: float) -> None:
        """Free reference cycles created since the last call."""
        self.due_at = now + YOUNG_INTERVAL
        gc.collect(0)

    def tick(self, broker: Broker) -> None:
        """Trim caches after a burst, because they keep arenas from being returned to the system."""
        self._ticks += 1
        if self._ticks % TICKS:
            return
        blocks = sys.getallocatedblocks()
        self._most_blocks = max(self._most_blocks, blocks)
        if broker.is_quiet and self._most_blocks - blocks > BURST:
            broker.subscriptions.cache.forget_oldest(but=0)
            sys._clear_type_cache()  # it holds thousands of names created by C code
            if sys.getallocatedblocks() - self._blocks_at_start <= MAX_FULL_COLLECTION:
                gc.collect()
            self._most_blocks = sys.getallocatedblocks()
