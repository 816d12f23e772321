"""Timers: a wheel of objects that are due at some time, with cheap insertion and removal.

A heap would keep a closed connection alive until its keep-alive expired (18 hours for the longest); the wheel
removes it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import ceil
from typing import Protocol

logger = logging.getLogger(__name__)

TURN = 0.002
"""Seconds of work for one client or task, before others get their turn."""
SLOTS_PER_SECOND = 10
NO_SLOT = -1
LATEST = 100 * 366 * 86_400.0
"""The latest time of a timer, in seconds from now; later ones are due then."""


class Due(Protocol):
    """An object that can wait in the wheel, in one slot at a time."""

    slot: int

    def due(self) -> None:
        """Handle the timer."""


class Timers:
    """The wheel. It has no clock: `advance` sets the time."""

    __slots__ = ("_late", "_reached", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, set[Due]] = {}
        self._reached = 0
        self._late: list[int] = []
        """Slots whose time has come, and that still hold objects."""

    def set(self, thing: Due, when: float) -> None:
        """Call `thing.due()` at `when`; replaces the object's earlier timer."""
        self.cancel(thing)
        latest = self._reached / SLOTS_PER_SECOND + LATEST
        when = when if when < latest else latest  # also if `when` is NaN
        slot = max(ceil(max(when, 0.0) * SLOTS_PER_SECOND), self._reached + 1)
        thing.slot = slot
        waiting = self._slots.get(slot)
        if waiting is None:
            self._slots[slot] = {thing}
        else:
            waiting.add(thing)

    def cancel(self, thing: Due) -> None:
        """Remove `thing` from the wheel, if it is there."""
        if thing.slot != NO_SLOT:
            waiting = self._slots.get(thing.slot)
            if waiting is not None:
                waiting.discard(thing)
                if not waiting:
                    del self._slots[thing.slot]
            thing.slot = NO_SLOT

    def advance(self, now: float, enough: Callable[[], bool] = bool) -> bool:
        """Call everything that is due at `now`; return True if `enough` ended that early."""
        reached = int(now * SLOTS_PER_SECOND)
        if reached - self._reached > len(self._slots):
            slots = sorted(slot for slot in self._slots if slot <= reached)
        else:
            slots = [slot for slot in range(self._reached + 1, reached + 1) if slot in self._slots]
        self._reached = max(self._reached, reached)
        self._late += slots
        count = 0
        while self._late:
            slot = self._late[0]
            while waiting := self._slots.get(slot):  # a handler may cancel other timers
                if count % 8 == 7 and enough():
                    return True
                count += 1
                thing = waiting.pop()
                thing.slot = NO_SLOT
                if not waiting:
                    del self._slots[slot]
                try:
                    thing.due()
                except Exception:  # one faulty handler must not stop the other timers
                    logger.exception("internal error in a timer")
            del self._late[0]
        return False
