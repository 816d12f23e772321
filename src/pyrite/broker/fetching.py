"""One fetch of a consumer: redelivers due messages, then delivers new ones, in turns.

Each delivery is recorded together with the message, so an interrupted fetch neither loses nor duplicates any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from pyrite.broker.journal import Piece, Stream
from pyrite.broker.pending import Place
from pyrite.broker.timers import TURN
from pyrite.process.fair import Asker

if TYPE_CHECKING:
    from pyrite.broker.consumers import Consumer
    from pyrite.broker.message import Batch

MAX_PENDING = 100_000
"""Pending messages of one consumer."""
MAX_REFETCH = 1_000
"""Messages due for redelivery that are read together."""
CHUNK_MESSAGES = 8
CHUNK_BYTES = 1024 * 1024
"""Messages, and their bytes, that are recorded and delivered between two readings of the clock."""

Deliver = Callable[[Place, "Batch"], object]
"""Called with a message and its place."""
IsFull = Callable[[], bool]
"""Returns whether a fetch must end early."""


def never_full() -> bool:
    """Never end a fetch early."""
    return False


class Fetch:
    """Delivers up to `most` messages, then calls `done` with their number."""

    def __init__(
        self,
        consumer: Consumer,
        most: int,
        deliver: Deliver,
        done: Callable[[int], object],
        asker: Asker,
        is_full: IsFull = never_full,
    ) -> None:
        self._consumer = consumer
        self._broker = consumer.broker
        self._left = most
        self._deliver = deliver
        self._asker = asker
        self._done = done
        self._is_full = is_full
        self._count = 0
        self._overdue: deque[tuple[Stream, list[int]]] = deque()
        self._ready: Iterator[tuple[Place, Batch]] = iter(())
        """Messages that were read and not delivered yet."""

    def begin(self) -> None:
        """Collect messages due for redelivery, and start reading."""
        by_stream: dict[Stream, list[int]] = {}
        for stream, offset in self._consumer.pending.overdue(self._broker.now, self._left):
            by_stream.setdefault(stream, []).append(offset)
        for stream, offsets in by_stream.items():
            offsets.sort()
            for at in range(0, len(offsets), MAX_REFETCH):
                self._overdue.append((stream, offsets[at : at + MAX_REFETCH]))
        self._read()

    def _read(self) -> None:
        """Read the next piece, or end the fetch."""
        consumer, journal = self._consumer, self._broker.journal
        if consumer.is_there and self._overdue:
            stream, offsets = self._overdue.popleft()
            journal.fetch(stream, offsets, partial(self._found_again, stream, offsets), self._asker)
            return
        if consumer.is_there and self._room() > 0:
            for stream in journal.streams:
                position = consumer.positions.setdefault(stream, 0)
                if position < stream.routed:
                    found = partial(self._found, stream)
                    journal.read(stream, position, stream.routed, consumer.wanted, found, self._asker)
                    return
        consumer.save()
        self.end()

    def end(self) -> None:
        """End the fetch."""
        self._done(self._count)
        self._consumer.fetched()

    def _room(self) -> int:
        """Return how many new messages may be delivered."""
        return min(self._left, MAX_PENDING - len(self._consumer.pending))

    def _found_again(self, stream: Stream, offsets: list[int], batches: dict[int, Batch]) -> None:
        self._ready = self._again(stream, offsets, batches)
        self.go_on()

    def _again(
        self, stream: Stream, offsets: list[int], batches: dict[int, Batch]
    ) -> Iterator[tuple[Place, Batch]]:
        pending = self._consumer.pending
        for offset in offsets:
            place = Place(stream, offset)
            batch = batches.get(offset)
            if batch is None:  # no longer in the log
                pending.discard(place)
            elif place in pending:
                yield place, batch

    def _found(self, stream: Stream, piece: Piece) -> None:
        self._ready = islice(self._new(stream, piece), self._room())
        self.go_on()

    def _new(self, stream: Stream, piece: Piece) -> Iterator[tuple[Place, Batch]]:
        positions = self._consumer.positions
        for batch in piece.batches:
            for at in range(batch.count):
                offset = batch.offset + at
                positions[stream] = offset + 1
                single = batch.part(at, at + 1)
                single.timestamp = batch.timestamp
                yield Place(stream, offset), single
        positions[stream] = piece.next_offset

    def go_on(self) -> None:
        """Deliver messages that were read, for one turn."""
        consumer, broker = self._consumer, self._broker
        until = broker.clock() + TURN
        while consumer.is_there:
            some = self._next_chunk()
            if not some:
                break
            due = broker.now + consumer.within
            for place, _ in some:
                consumer.pending.add(place, due)
            consumer.save()
            self._left -= len(some)
            self._count += len(some)
            for place, batch in some:
                self._deliver(place, batch)
            if self._is_full():
                self._left = 0
                self._overdue.clear()
                break
            if broker.turns.is_over(self, until):
                return
        self._read()

    def _next_chunk(self) -> list[tuple[Place, Batch]]:
        chunk: list[tuple[Place, Batch]] = []
        size = 0
        for place, batch in self._ready:
            chunk.append((place, batch))
            size += len(batch.data)
            if len(chunk) == CHUNK_MESSAGES or size >= CHUNK_BYTES:
                break
        return chunk
