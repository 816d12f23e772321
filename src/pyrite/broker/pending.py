"""What a consumer was given and has not acknowledged: when it is due again, and which of it has changed.

It is kept in blocks, a bit for each message of 256 that lie one after the other in the log. So what is to be
written down of some messages does not grow with how many others there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyrite.broker.journal import Stream

BLOCK = 256
"""Offsets of a block."""

Block = tuple[Stream, int]
"""Where a block lies: in which stream, and after how many others."""


class Place(NamedTuple):
    """Where a message lies: in which stream, at which offset. As text it is what a client acknowledges."""

    stream: Stream
    offset: int

    def __str__(self) -> str:
        return f"{self.stream.name}:{self.offset}"


class Pending:
    """The places of messages, those that are due first in front."""

    def __init__(self) -> None:
        self._due: dict[Place, float] = {}
        self._blocks: dict[Block, int] = {}
        self._changed: dict[Block, None] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._due)

    def __contains__(self, place: Place) -> bool:
        return place in self._due

    def add(self, place: Place, due: float) -> None:
        """Note that a message was given out, perhaps again; nothing else is due later."""
        if self._due.pop(place, None) is None:
            self._flip(place)
        self._due[place] = due

    def discard(self, place: Place) -> bool:
        """Forget a message; tell whether it was there."""
        if self._due.pop(place, None) is None:
            return False
        self._flip(place)
        return True

    def _flip(self, place: Place) -> None:
        stream, offset = place
        block = stream, offset // BLOCK
        bits = self._blocks.get(block, 0) ^ 1 << offset % BLOCK
        if bits:
            self._blocks[block] = bits
        else:
            del self._blocks[block]
        self._changed[block] = None

    def overdue(self, now: float, most: int) -> list[Place]:
        """Return the messages that are to be given out again, the first of them if there are many."""
        found: list[Place] = []
        for place, due in self._due.items():
            if due > now or len(found) == most:
                break
            found.append(place)
        return found

    def next_due(self) -> float | None:
        """Return when the first message is to be given out again; None if nothing is pending."""
        return next(iter(self._due.values()), None)

    def take_changed(self) -> Iterator[tuple[Block, int]]:
        """Yield the blocks that have changed since they were last asked for, with their bits."""
        changed, self._changed = self._changed, {}
        for block in changed:
            yield block, self._blocks.get(block, 0)

    def restore(self, block: Block, bits: int) -> None:
        """Bring back a block as it was; all of it is due."""
        stream, number = block
        self._blocks[block] = bits
        for at in range(BLOCK):
            if bits >> at & 1:
                self._due[Place(stream, number * BLOCK + at)] = 0.0
