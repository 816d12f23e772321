"""What travels: a batch of messages, and the properties they carry.

The batch is the unit of everything. It holds messages that arrived together, on one topic, alike in all
but their payloads, which lie packed in `data` at a fixed stride:

    data     |head|payload 0|head|payload 1|head|payload 2|
             0    ^payload_at
             <---- stride --->

As the head is whatever came over the wire, a batch that needs no change is forwarded as the bytes it came
in. A single message is a batch of one, without a head.

Messages that differ in topic or size, but go to the same receivers and need no change either, travel as a
`MixedBatch`. Whoever needs them otherwise takes it apart.
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
    """What a message carries besides its payload (MQTT 5). Never changed once made, so it may be shared."""

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
        """A protocol's encoding of all but the expiry, kept here so that it is made once."""


class Batch:
    """Messages of one topic, quality of service, retain flag and properties, packed at a fixed stride."""

    mixed = False
    """Whether the messages are of several topics and sizes."""
    absent = False
    """Whether the messages themselves must be read from the log."""
    owner: Account | None = None
    """The account that a message to be retained counts for; see OwnedBatch."""

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
    """When the messages came, in microseconds since 1970; only of messages read from the log."""

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
        """When the messages expire, on the broker's clock; None for never."""
        self.origin = origin
        """The client id of who published them, for no-local."""
        self.count = count
        self.stride = len(data) if stride < 0 else stride
        self.payload_at = payload_at
        self.form = form
        """In which wire form `data` may be forwarded as it is (a number of the protocol's); -1 for none."""
        self.id_at = id_at
        """Where in each of them its id is, if it is in a wire form and has one."""
        self.stream: Stream | None = None
        """The stream whose log keeps the messages, if one does."""
        self.offset = -1
        """The first message's offset there; the others follow it."""
        self.wires: dict[Any, Any] | None = None
        """Other wire forms, each made once for all who want it; the protocols' own business."""

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
        """Bytes of all topics and payloads."""
        return self.count * (len(self.topic) + self.stride - self.payload_at)

    def parts(self) -> list[Batch]:
        """Return the batch as batches that each have one topic."""
        return [self]

    def only(self, indexes: Sequence[int]) -> Batch:
        """Return some messages, in their order, as a batch of their own; for a batch that no log has yet."""
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
        """Return messages `start` to `stop` as a batch of their own, sharing no memory with this one."""
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
        """Return the same messages as a batch that counts for an account when it is retained."""
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
        """Note where the log keeps the messages."""
        if stream is not None:
            self.stream = stream
            self.offset = offset
        return self


class OwnedBatch(Batch):
    """A batch whose last message, once retained, counts for an account."""

    __slots__ = ("owner",)

    def part(self, start: int, stop: int) -> Batch:
        """Return messages `start` to `stop` as a batch of their own, of the same owner."""
        part = super().part(start, stop)
        return part if part is self else part.owned_by(self.owner)


class AbsentBatch(Batch):
    """Messages of which only the place in the log is known."""

    absent = True

    __slots__ = ()

    def __init__(self, stream: Stream, offset: int, count: int) -> None:
        super().__init__(b"", b"", count=count)
        self.lies_in(stream, offset)

    def part(self, start: int, stop: int) -> Batch:
        """Return the places of messages `start` to `stop`."""
        assert self.stream is not None
        return AbsentBatch(self.stream, self.offset + start, stop - start)


class MixedBatch(Batch):
    """Messages of several topics and sizes, as they came over the wire, that all have the same route.

    They have the same QoS, and neither retain flag nor properties. `stride` is the size of the largest. Each
    is of at most 16,386 bytes, and looks as in MQTT:

        |kind (1)|size of the rest (1 or 2)|size of the topic (2)|topic|gap|payload|
                                                                       ^ids_at
    """

    mixed = True

    __slots__ = ("_singles", "ids_at", "starts", "topics")

    def __init__(
        self,
        data: bytes,
        starts: list[int],
        topics: list[bytes],
        ids_at: list[int],
        payload_gap: int,
        qos: int,
        origin: str | None,
        form: int,
    ) -> None:
        sizes = map(sub, [*starts[1:], len(data)], starts)
        super().__init__(b"", data, qos, origin=origin, count=len(starts), stride=max(sizes), form=form)
        self.starts = starts
        """Where each message begins."""
        self.topics = topics
        self.ids_at = ids_at
        """Where the topic of each message ends, which is where its id is if it has one."""
        self.payload_at = payload_gap
        """How far after that the payload begins."""
        self._singles: list[Batch] | None = None

    def parts(self) -> list[Batch]:
        """Return each message as a batch of its own; always the same ones, so that they encode only once."""
        if self._singles is None:
            ends = [*self.starts[1:], len(self.data)]
            self._singles = [
                Batch(
                    topic,
                    self.data[start:end],
                    self.qos,
                    origin=self.origin,
                    payload_at=id_at + self.payload_at - start,
                    form=self.form,
                    id_at=id_at - start,
                ).lies_in(self.stream, self.offset + number)
                for number, (topic, start, end, id_at) in enumerate(
                    zip(self.topics, self.starts, ends, self.ids_at, strict=True)
                )
            ]
        return self._singles

    @property
    def content_size(self) -> int:
        """Bytes of all topics and payloads."""
        ends = sum(self.starts) + len(self.data)
        return sum(map(len, self.topics)) + ends - sum(self.ids_at) - self.count * self.payload_at

    def payload(self, index: int = 0) -> bytes:
        """Return the payload of message `index`."""
        return self.parts()[index].payload()

    def payloads(self) -> list[bytes]:
        """Return the payloads of all messages, in order."""
        return [single.payload() for single in self.parts()]

    def only(self, indexes: Sequence[int]) -> Batch:
        """Return some messages, in their order, as a batch of their own; for a batch that no log has yet."""
        spans = [self.span(index, index + 1) for index in indexes]
        sizes = [end - begin for begin, end in spans]
        starts = [0, *accumulate(sizes[:-1])]
        return MixedBatch(
            b"".join([self.data[begin:end] for begin, end in spans]),
            starts,
            [self.topics[index] for index in indexes],
            [self.ids_at[index] - self.starts[index] + at for index, at in zip(indexes, starts, strict=True)],
            self.payload_at,
            self.qos,
            self.origin,
            self.form,
        )

    def part(self, start: int, stop: int) -> Batch:
        """Return messages `start` to `stop` as a batch of their own, sharing no memory with this one."""
        if start == 0 and stop == self.count:
            return self
        if stop - start == 1:
            return self.parts()[start]
        begin, end = self.span(start, stop)
        part = MixedBatch(
            self.data[begin:end],
            [at - begin for at in self.starts[start:stop]],
            self.topics[start:stop],
            [at - begin for at in self.ids_at[start:stop]],
            self.payload_at,
            self.qos,
            self.origin,
            self.form,
        )
        return part.lies_in(self.stream, self.offset + start)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return where messages `start` to `stop` lie in the data."""
        return self.starts[start], self.starts[stop] if stop < self.count else len(self.data)
