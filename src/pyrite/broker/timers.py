"""What happens when: a wheel of things that are due at some time, cheap to put in and to take out.

A heap would keep a closed connection alive until its keep-alive had run out (18 hours for the longest);
from a wheel it is removed at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import ceil
from typing import Protocol

logger = logging.getLogger(__name__)

TURN = 0.002
"""Seconds that one client, or one piece of work, is attended to at a time, while the others wait."""
SLOTS_PER_SECOND = 10
NO_SLOT = -1
LATEST = 100 * 366 * 86_400.0
"""Seconds from now after which nothing is due: what is to happen later, or never, happens then."""


class Due(Protocol):
    """Something that can wait in the wheel, in one slot at a time."""

    slot: int

    def due(self) -> None:
        """Do what was due."""


class Timers:
    """The wheel. It has no clock: `advance` tells it the time."""

    __slots__ = ("_late", "_reached", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, set[Due]] = {}
        self._reached = 0
        self._late: list[int] = []
        """Slots whose time has come, in which things wait still."""

    def set(self, thing: Due, when: float) -> None:
        """Have `thing.due()` called at `when`, and not at the time it waited for before."""
        self.cancel(thing)
        latest = self._reached / SLOTS_PER_SECOND + LATEST
        when = when if when < latest else latest  # also if `when` is no number
        slot = max(ceil(max(when, 0.0) * SLOTS_PER_SECOND), self._reached + 1)
        thing.slot = slot
        waiting = self._slots.get(slot)
        if waiting is None:
            self._slots[slot] = {thing}
        else:
            waiting.add(thing)

    def cancel(self, thing: Due) -> None:
        """Take `thing` out of the wheel, if it is in it."""
        if thing.slot != NO_SLOT:
            waiting = self._slots.get(thing.slot)
            if waiting is not None:
                waiting.discard(thing)
                if not waiting:
                    del self._slots[thing.slot]
            thing.slot = NO_SLOT

    def advance(self, now: float, enough: Callable[[], bool] = bool) -> bool:
        """Call everything that is due at `now`; or, if that was `enough`, some of it, and tell that."""
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
            while waiting := self._slots.get(slot):  # what is due may take others out
                if count % 8 == 7 and enough():
                    return True
                count += 1
                thing = waiting.pop()
                thing.slot = NO_SLOT
                if not waiting:
                    del self._slots[slot]
                try:
                    thing.due()
                except Exception:  # a mistake with one must not keep the others from their time
                    logger.exception("internal error in what was due")
            del self._late[0]
        return False
