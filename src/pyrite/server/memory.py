"""How much memory the broker has, and what is done to give it back after a rush."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from pyrite.broker.core import Broker

TICKS = 10
"""Ticks between two looks."""
MANY = 100_000
"""Blocks of memory that are a rush, if they are gone again."""
FEW_SESSIONS = 1_000
"""Sessions with which all objects can be looked through in some milliseconds."""


def resident() -> int | None:
    """Return the bytes of memory that the process has; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class Memory:
    """Has Python let go, after a rush, of the little that it keeps for the next one.

    That is scattered over all of the memory that was needed, and keeps half of it from being given back. To
    find it takes milliseconds, or as many more as there are sessions: those of many would notice.
    """

    def __init__(self) -> None:
        self._ticks = 0
        self._most = 0
        """Blocks that were in use at most."""

    def tick(self, broker: Broker) -> None:
        """Look, now and then, whether a rush is over."""
        self._ticks += 1
        if self._ticks % TICKS:
            return
        blocks = sys.getallocatedblocks()
        self._most = max(self._most, blocks)
        if broker.is_quiet and self._most - blocks > MANY and len(broker.sessions.by_id) <= FEW_SESSIONS:
            broker.subscriptions.cache.forget_oldest(but=0)
            sys._clear_type_cache()  # it knows names that C made of text, thousands of them
            gc.collect()
            self._most = sys.getallocatedblocks()
