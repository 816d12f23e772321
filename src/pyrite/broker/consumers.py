"""Pull: named consumers that fetch messages from the log when they like, and acknowledge them.

A consumer has a filter, and a place in each stream that lasts. A message is given out once, to whoever
fetches; it comes again only if it is not acknowledged in time, or if the broker went down before it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyrite.broker.journal import Piece, Stream, Wanted
from pyrite.broker.positions import Earliest, Latest, Offset, Position
from pyrite.broker.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.message import Batch

ACKNOWLEDGE_WITHIN = 30.0
"""Seconds after which a message that was fetched and not acknowledged is given out again."""
MAX_FETCH = 10_000
"""Messages in one fetch."""
MAX_PENDING = 100_000
"""Messages of one consumer that may be fetched and not acknowledged."""
MAX_WITHIN = 7 * 86_400.0
"""Seconds that may be asked for to acknowledge a message in."""
MAX_CONSUMERS = 10_000
MAX_NAME = 256
"""Consumers that there may be, and characters of a name."""


class Place(NamedTuple):
    """Where a message lies: in which stream, at which offset. As text it is what a client acknowledges."""

    stream: Stream
    offset: int

    def __str__(self) -> str:
        return f"{self.stream.name}:{self.offset}"


Fetched = list[tuple[Place, "Batch"]]


class Consumer:
    """One named consumer."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        topic_filter: bytes,
        positions: dict[Stream, int],
        pending: Sequence[Place] = (),
        within: float = ACKNOWLEDGE_WITHIN,
    ) -> None:
        self.broker = broker
        self.name = name
        self.topic_filter = topic_filter
        self.positions = positions
        """From where on each stream has not been given out yet."""
        self.within = within
        self.pending: dict[Place, float] = dict.fromkeys(pending, 0.0)
        """What was given out and is not acknowledged, and when it is to be given out again."""
        self._wanted = Wanted([topic_filter])
        self._asked: list[tuple[int, Callable[[Fetched], object]]] = []
        self._busy = False

    def fetch(self, most: int, answer: Callable[[Fetched], object]) -> None:
        """Give out up to `most` messages: those overdue first, then new ones, in the log's order."""
        self._asked.append((min(most, MAX_FETCH), answer))
        self._next()

    def _next(self) -> None:
        """Serve one fetch after the other, so that no message is given out twice."""
        if self._busy or not self._asked:
            return
        self._busy = True
        most, answer = self._asked.pop(0)
        found: Fetched = []

        def finish() -> None:
            due = self.broker.now + self.within
            for place, _ in found:
                self.pending[place] = due
            self.broker.journal.save_consumer(self)
            self._busy = False
            answer(found)
            self._next()

        def more() -> None:
            for stream in self.broker.journal.streams:
                position = self.positions.setdefault(stream, 0)
                if position < stream.routed and len(found) < most:
                    self.broker.journal.read(
                        stream,
                        position,
                        stream.routed,
                        self._wanted,
                        lambda piece, of=stream: take(of, piece),  # type: ignore[misc]
                    )
                    return
            finish()

        def take(stream: Stream, piece: Piece) -> None:
            self.positions[stream] = piece.next_offset
            for batch in piece.batches:
                free = most - len(found)
                if batch.count > free:
                    self.positions[stream] = batch.offset + free
                    batch = batch.part(0, free)
                found.extend(
                    (Place(stream, batch.offset + at), batch.part(at, at + 1)) for at in range(batch.count)
                )
                if len(found) == most:
                    if batch.offset + batch.count < self.positions[stream]:
                        self.positions[stream] = batch.offset + batch.count
                    break
            more()

        overdue = [place for place, due in self.pending.items() if due <= self.broker.now][:most]
        by_stream: dict[Stream, list[int]] = {}
        for place in sorted(overdue, key=lambda one: (one.stream.number, one.offset)):
            by_stream.setdefault(place.stream, []).append(place.offset)

        def again() -> None:
            nonlocal most
            if not by_stream:
                most = min(most, len(found) + max(0, MAX_PENDING - len(self.pending)))
                more()
                return
            stream, offsets = by_stream.popitem()

            def fetched(batches: dict[int, Batch]) -> None:
                for offset in offsets:
                    batch = batches.get(offset)
                    if batch is None:  # the log does not keep it any longer
                        self.pending.pop(Place(stream, offset), None)
                    elif Place(stream, offset) in self.pending:
                        found.append((Place(stream, offset), batch))
                again()

            self.broker.journal.fetch(stream, offsets, fetched)

        again()

    def acknowledge(self, places: Sequence[Place], done: Callable[[int], object]) -> None:
        """Note that messages were dealt with; `done` is told how many of them were known, when it is safe."""
        known = sum(self.pending.pop(place, None) is not None for place in places)
        self.broker.journal.save_consumer(self)
        self.broker.journal.after(lambda: done(known))


class ConsumerError(Exception):
    """What was asked of a consumer cannot be; the text says why."""


class TooManyConsumers(ConsumerError):
    """There is no room for one more."""


def create(
    broker: Broker,
    name: str,
    topic_filter: bytes,
    start: Position,
    within: float,
    done: Callable[[], object],
) -> None:
    """Make a consumer, or find it there; `done` is called when it is safe.

    Raise ConsumerError if there is one of that name with another filter, or no log to fetch from, or if it
    cannot be had like this.
    """
    streams = broker.journal.streams
    if not streams:
        raise ConsumerError("there is no log to fetch messages from")
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ConsumerError(f"the name of a consumer is of 1 to {MAX_NAME} printable characters")
    if topic_filter.startswith(SHARE_PREFIX):
        raise ConsumerError(
            "a consumer's filter is not shared: those who pull under its name share its messages"
        )
    if not 0 < within <= MAX_WITHIN:
        raise ConsumerError(
            f"messages are acknowledged within at most {MAX_WITHIN:.0f} seconds, and more than 0"
        )
    there = broker.consumers.get(name)
    if there is not None:
        if there.topic_filter != topic_filter:
            raise ConsumerError(
                f"consumer {name!r} is there, with the filter {there.topic_filter.decode()!r}"
            )
        broker.journal.after(done)
        return
    if len(broker.consumers) >= MAX_CONSUMERS:
        raise TooManyConsumers("there are too many consumers")
    positions: dict[Stream, int] = {}

    def found(stream: Stream, offset: int) -> None:
        positions[stream] = min(offset, stream.routed)
        if len(positions) < len(streams):
            return
        if name not in broker.consumers:  # another may have asked for it meanwhile
            broker.consumers[name] = Consumer(broker, name, topic_filter, positions, within=within)
            broker.journal.save_consumer(broker.consumers[name])
        broker.journal.after(done)

    for stream in streams:
        match start:
            case Earliest():
                found(stream, broker.journal.earliest(stream))
            case Latest():
                found(stream, stream.routed)
            case Offset(offset):
                found(stream, offset)
            case _:
                broker.journal.offset_at(stream, start.seconds(broker.journal.wall()), partial(found, stream))


def find(broker: Broker, name: str) -> Consumer:
    """Return a consumer by name, or raise ConsumerError."""
    consumer = broker.consumers.get(name)
    if consumer is None:
        raise ConsumerError(f"there is no consumer {name!r}: create it first")
    return consumer


def delete(consumer: Consumer, done: Callable[[], object]) -> None:
    """Forget a consumer; `done` is called when that is safe."""
    broker = consumer.broker
    broker.consumers.pop(consumer.name, None)
    broker.journal.drop_consumer(consumer.name)
    broker.journal.after(done)
