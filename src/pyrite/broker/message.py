"""Batches of messages, and message properties.

The batch is the unit of all work. It holds messages that arrived together, with one topic and equal size,
QoS, retain flag and properties. Their payloads are packed in `data` at a fixed stride:

    data     |head|payload 0|head|payload 1|head|payload 2|
             0    ^payload_at
             <---- stride --->

The head holds the packet header as received, so a batch is sent to subscribers of the same wire form without
encoding. A batch of one message may have no head.

Messages that differ in topic, size or publisher form a `MixedBatch`. Code that cannot handle one splits it
with `parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.journal import Stream


class Properties:
    """MQTT 5 properties of a message. Never modified after construction, so messages may share them."""

    __slots__ = (
        "content_type",
        "correlation_data",
        "encoded",
        "message_expiry",
        "payload_format",
        "response_topic",
        "user_properties",
    )

    def __init__(
        self,
        payload_format: int | None = None,
        message_expiry: int | None = None,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation_data: bytes | None = None,
        user_properties: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.payload_format = payload_format
        self.message_expiry = message_expiry
        self.content_type = content_type
        self.response_topic = response_topic
        self.correlation_data = correlation_data
        self.user_properties = user_properties
        self.encoded: bytes | None = None
        """Cached MQTT encoding of all properties except the expiry."""


class Batch:
    """Messages of one topic, QoS, retain flag and properties, packed at a fixed stride."""

    mixed = False
    """True if the messages have several topics and sizes."""
    varies = False
    """True if the messages of a mixed batch have properties of their own."""
    absent = False
    """True if the batch only refers to the log, and the messages must be read from there."""
    origins: Sequence[str] | None = None
    """Client ids of the publishers of a mixed batch, one a message, if there are several; else None."""
    owner: Account | None = None
    """The account that a retained message is charged to; see OwnedBatch."""

    __slots__ = (
        "count",
        "data",
        "expires_at",
        "form",
        "id_at",
        "offset",
        "origin",
        "payload_at",
        "properties",
        "qos",
        "retain",
        "stream",
        "stride",
        "timestamp",
        "topic",
        "wires",
    )

    timestamp: int
    """Arrival time in microseconds since 1970; set only on messages read from the log."""

    def __init__(
        self,
        topic: bytes,
        data: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        expires_at: float | None = None,
        origin: str | None = None,
        count: int = 1,
        stride: int = -1,
        payload_at: int = 0,
        form: int = -1,
        id_at: int = 0,
    ) -> None:
        self.topic = topic
        self.data = data
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_at = expires_at
        """Expiry time on the broker's clock; None for never."""
        self.origin = origin
        """The publisher's client id, for no-local."""
        self.count = count
        self.stride = len(data) if stride < 0 else stride
        self.payload_at = payload_at
        self.form = form
        """The wire form of `data`, a number that the protocol defines; -1 if `data` has no head."""
        self.id_at = id_at
        """Position of the message id in each packet, if `data` has a wire form with an id."""
        self.stream: Stream | None = None
        """The stream that stores the messages; None if no stream does."""
        self.offset = -1
        """Offset of the first message in the stream; offsets of the following messages are consecutive."""
        self.wires: dict[Any, Any] | None = None
        """Cache of other wire forms, each encoded once for all subscribers; used by the protocols only."""

    def payload(self, index: int = 0) -> bytes:
        """Return the payload of message `index`."""
        start = index * self.stride
        return self.data[start + self.payload_at : start + self.stride]

    def payloads(self) -> list[bytes]:
        """Return the payloads of all messages, in order."""
        data, stride, at = self.data, self.stride, self.payload_at
        if self.count == 1:
            return [data[at:] if at else data]
        return [data[start + at : start + stride] for start in range(0, self.count * stride, stride)]

    @property
    def content_size(self) -> int:
        """Total size of topics and payloads in bytes."""
        return self.count * (len(self.topic) + self.stride - self.payload_at)

    def parts(self) -> list[Batch]:
        """Split into batches of one topic each."""
        return [self]

    def only(self, indexes: Sequence[int]) -> Batch:
        """Return a new batch of the messages at `indexes`. The batch must not be in a stream yet."""
        data, stride = self.data, self.stride
        return Batch(
            self.topic,
            b"".join([data[index * stride : (index + 1) * stride] for index in indexes]),
            self.qos,
            self.retain,
            self.properties,
            self.expires_at,
            self.origin,
            len(indexes),
            stride,
            self.payload_at,
            self.form,
            self.id_at,
        )

    def part(self, start: int, stop: int) -> Batch:
        """Return messages `start` to `stop` as a batch that does not keep this batch's memory alive."""
        if start == 0 and stop == self.count:
            return self
        part = Batch(
            self.topic,
            self.data[start * self.stride : stop * self.stride],
            self.qos,
            self.retain,
            self.properties,
            self.expires_at,
            self.origin,
            stop - start,
            self.stride,
            self.payload_at,
            self.form,
            self.id_at,
        )
        return part.lies_in(self.stream, self.offset + start)

    def owned_by(self, owner: Account | None) -> OwnedBatch:
        """Return the same messages as a batch that is charged to an account if it is retained."""
        owned = OwnedBatch(
            self.topic,
            self.data,
            self.qos,
            self.retain,
            self.properties,
            self.expires_at,
            self.origin,
            self.count,
            self.stride,
            self.payload_at,
            self.form,
            self.id_at,
        )
        owned.owner = owner
        owned.lies_in(self.stream, self.offset)
        return owned

    def lies_in(self, stream: Stream | None, offset: int) -> Batch:
        """Record the stream and offset of the messages, and return the batch."""
        if stream is not None:
            self.stream = stream
            self.offset = offset
        return self


class OwnedBatch(Batch):
    """A batch whose last message is charged to an account while it is retained."""

    __slots__ = ("owner",)

    def part(self, start: int, stop: int) -> Batch:
        """Return messages `start` to `stop` as a batch of the same owner."""
        part = super().part(start, stop)
        return part if part is self else part.owned_by(self.owner)


class AbsentBatch(Batch):
    """A reference to consecutive messages in a stream, without their content."""

    absent = True

    __slots__ = ()

    def __init__(self, stream: Stream, offset: int, count: int) -> None:
        super().__init__(b"", b"", count=count)
        self.lies_in(stream, offset)

    def part(self, start: int, stop: int) -> Batch:
        """Return a reference to messages `start` to `stop`."""
        assert self.stream is not None
        return AbsentBatch(self.stream, self.offset + start, stop - start)


class MixedBatch(Batch):
    """PUBLISH packets of several topics, sizes and publishers, as received.

    They have one QoS, retain flag and stream. `stride` is the size of the largest packet. A packet has at
    most 16,386 bytes, in MQTT's layout:

        |kind (1)|size of the rest (1 or 2)|size of the topic (2)|topic|gap|payload|
                                                                       ^ids_at
    """

    mixed = True

    __slots__ = ("_pieces", "_singles", "_unretained", "ids_at", "origins", "owner", "starts", "topics")

    def __init__(
        self,
        data: bytes,
        starts: list[int],
        topics: list[bytes],
        ids_at: list[int],
        payload_gap: int,
        qos: int,
        origin: str | Sequence[str] | None,
        form: int,
        retain: bool = False,
    ) -> None:
        sizes = map(sub, [*starts[1:], len(data)], starts)
        one = origin if isinstance(origin, str) else None
        super().__init__(b"", data, qos, retain, origin=one, count=len(starts), stride=max(sizes), form=form)
        self.origins = None if isinstance(origin, str) else origin
        self.owner: Account | None = None
        self.starts = starts
        """Start of each packet in `data`."""
        self.topics = topics
        self.ids_at = ids_at
        """End of each packet's topic in `data`, where the packet id follows if QoS > 0."""
        self.payload_at = payload_gap
        """Bytes between the end of the topic and the payload, in a packet without properties."""
        self._singles: list[Batch] | None = None
        self._pieces: list[bytes] | None = None
        self._unretained: MixedBatch | None = None

    def parts(self) -> list[Batch]:
        """Split into batches of one message each, cached so that each is encoded only once."""
        if self._singles is None:
            self._singles = [
                self.single(number, piece).lies_in(self.stream, self.offset + number)
                for number, piece in enumerate(self.pieces())
            ]
        return self._singles

    def single(self, number: int, piece: bytes) -> Batch:
        """Return message `number`, whose packet is `piece`, as a batch of its own."""
        id_at = self.ids_at[number] - self.starts[number]
        kind = Batch if self.owner is None else OwnedBatch
        part = kind(
            self.topics[number],
            piece,
            self.qos,
            self.retain,
            None,
            None,
            self.origin if self.origins is None else self.origins[number],
            1,
            len(piece),
            id_at + self.payload_at,
            self.form,
            id_at,
        )
        if isinstance(part, OwnedBatch):
            part.owner = self.owner
        return part

    def pieces(self) -> list[bytes]:
        """Return the packets."""
        if self._pieces is None:
            data = self.data
            spans = zip(self.starts, [*self.starts[1:], len(data)], strict=True)
            self._pieces = [data[start:end] for start, end in spans]
        return self._pieces

    def unretained(self) -> MixedBatch:
        """Return the same messages without the retain flag, as most subscribers get them [MQTT-3.3.1-12]."""
        if not self.retain:
            return self
        if self._unretained is None:
            data = bytearray(self.data)
            for start in self.starts:
                data[start] &= 0xFE
            form = self.form if self.form < 0 else self.form & ~1
            origin = self.origin if self.origins is None else self.origins
            self._unretained = self.some(
                bytes(data), self.starts, self.topics, self.ids_at, origin, form, False
            )
            self._unretained.lies_in(self.stream, self.offset)
        return self._unretained

    @property
    def content_size(self) -> int:
        """Total size of topics and payloads in bytes."""
        ends = sum(self.starts) + len(self.data)
        return sum(map(len, self.topics)) + ends - sum(self.ids_at) - self.count * self.payload_at

    def payload(self, index: int = 0) -> bytes:
        """Return the payload of message `index`."""
        return self.parts()[index].payload()

    def payloads(self) -> list[bytes]:
        """Return the payloads of all messages, in order."""
        return [single.payload() for single in self.parts()]

    def only(self, indexes: Sequence[int]) -> Batch:
        """Return a new batch of the messages at `indexes`. The batch must not be in a stream yet."""
        if len(indexes) == 1:
            return self.parts()[indexes[0]]
        spans = [self.span(index, index + 1) for index in indexes]
        sizes = [end - begin for begin, end in spans]
        starts = [0, *accumulate(sizes[:-1])]
        return self.some(
            b"".join([self.data[begin:end] for begin, end in spans]),
            starts,
            [self.topics[index] for index in indexes],
            [self.ids_at[index] - self.starts[index] + at for index, at in zip(indexes, starts, strict=True)],
            self.origin if self.origins is None else [self.origins[index] for index in indexes],
            self.form,
            self.retain,
        )

    def part(self, start: int, stop: int) -> Batch:
        """Return messages `start` to `stop` as a batch that does not keep this batch's memory alive."""
        if start == 0 and stop == self.count:
            return self
        if stop - start == 1:
            return self.parts()[start]
        begin, end = self.span(start, stop)
        part = self.some(
            self.data[begin:end],
            [at - begin for at in self.starts[start:stop]],
            self.topics[start:stop],
            [at - begin for at in self.ids_at[start:stop]],
            self.origin if self.origins is None else self.origins[start:stop],
            self.form,
            self.retain,
        )
        return part.lies_in(self.stream, self.offset + start)

    def some(
        self,
        data: bytes,
        starts: list[int],
        topics: list[bytes],
        ids_at: list[int],
        origin: str | Sequence[str] | None,
        form: int,
        retain: bool,
    ) -> MixedBatch:
        """Return a batch of the same kind."""
        some = MixedBatch(data, starts, topics, ids_at, self.payload_at, self.qos, origin, form, retain)
        some.owner = self.owner
        return some

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return start and end of messages `start` to `stop` in `data`."""
        return self.starts[start], self.starts[stop] if stop < self.count else len(self.data)
