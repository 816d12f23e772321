"""Pending messages: fetched by a consumer and not acknowledged.

Changes are recorded in blocks, with a bit for each of 256 consecutive offsets. So the size of a record does
not depend on the number of other pending messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyrite.broker.journal import Stream

BLOCK = 256
"""Offsets in a block."""

Block = tuple[Stream, int]
"""The stream of a block, and its number there."""


class Place(NamedTuple):
    """A message's stream and offset. Clients acknowledge its text form."""

    stream: Stream
    offset: int

    def __str__(self) -> str:
        return f"{self.stream.name}:{self.offset}"


class Pending:
    """The pending messages of a consumer, ordered by when they are due for redelivery."""

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
        """Record that a message was delivered, perhaps again; no other message is due later."""
        if self._due.pop(place, None) is None:
            self._flip(place)
        else:  # other nodes of a cluster must know that it was delivered again
            self._changed[place.stream, place.offset // BLOCK] = None
        self._due[place] = due

    def discard(self, place: Place) -> bool:
        """Remove a message; return whether it was pending."""
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
        """Return up to `most` messages that are due for redelivery."""
        found: list[Place] = []
        for place, due in self._due.items():
            if due > now or len(found) == most:
                break
            found.append(place)
        return found

    def next_due(self) -> float | None:
        """Return when the first message is due for redelivery; None if nothing is pending."""
        return next(iter(self._due.values()), None)

    def take_changed(self) -> Iterator[tuple[Block, int]]:
        """Yield the blocks that have changed since the last call, with their bits."""
        changed, self._changed = self._changed, {}
        for block in changed:
            yield block, self._blocks.get(block, 0)

    def restore(self, block: Block, bits: int) -> None:
        """Restore a block; all of its messages are due."""
        stream, number = block
        self._blocks[block] = bits
        for at in range(BLOCK):
            if bits >> at & 1:
                self._due[Place(stream, number * BLOCK + at)] = 0.0
