"""Memory: garbage is collected in short steps, and caches are trimmed after a burst.

Python's own collector would stop the event loop for longer than a turn. Its young generation grows while as
many old objects are freed as new ones are made, and takes 10 to 50 ms then; the old generation takes 0.1 us
for each object that the broker holds.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from pyrite.broker.core import Broker

TICKS = 10
"""Ticks between two looks at the memory in use."""
BURST = 100_000
"""Blocks of memory that were in use and are free again after a burst."""
YOUNG_INTERVAL = 0.01
"""Seconds of work after which the objects made meanwhile are searched for garbage, in up to 1.5 ms."""
MAX_SEARCHED = 30_000
"""Blocks of memory, besides those at the start, up to which all objects are searched: that takes up to 5 ms.

With more, an object in a cycle of references stays if it outlives YOUNG_INTERVAL. The broker avoids cycles.
"""


def resident() -> int | None:
    """Return the resident memory of the process in bytes; None if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class Memory:
    """The garbage collector's schedule, and what is done after a burst."""

    def __init__(self) -> None:
        self._ticks = 0
        self._most_blocks = 0
        """Most blocks of memory in use since the last burst."""
        self._blocks_at_start = sys.getallocatedblocks()
        self.due_at = float("inf")
        """Time of the next search of young objects; infinite as long as Python's collector is in charge."""

    def take_over(self) -> None:
        """Collect garbage in place of Python's collector. The objects that there are by now stay for good."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._blocks_at_start = sys.getallocatedblocks()
        self.due_at = 0.0

    def collect_young(self, now: float) -> None:
        """Free objects in cycles of references that were made since the last call."""
        self.due_at = now + YOUNG_INTERVAL
        gc.collect(0)

    def tick(self, broker: Broker) -> None:
        """Trim caches when a burst is over: they keep whole arenas from being returned to the system."""
        self._ticks += 1
        if self._ticks % TICKS:
            return
        blocks = sys.getallocatedblocks()
        self._most_blocks = max(self._most_blocks, blocks)
        if broker.is_quiet and self._most_blocks - blocks > BURST:
            broker.subscriptions.cache.forget_oldest(but=0)
            sys._clear_type_cache()  # it holds attribute names that C made of text, thousands of them
            if sys.getallocatedblocks() - self._blocks_at_start <= MAX_SEARCHED:
                gc.collect()
            self._most_blocks = sys.getallocatedblocks()
