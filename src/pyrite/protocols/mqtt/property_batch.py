"""Packets with MQTT 5 properties in a mixed batch. HOT.

Most properties are the business of publisher and subscriber alone. A packet that has only these is forwarded
as it came, and its properties are decoded when a subscriber, the log or a retained message needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyrite.broker.message import Batch, MixedBatch, Properties
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.fields import PLAIN_TEXT, Reader

CONTENT_TYPE = 0x03
USER_PROPERTY = 0x26


def skip_properties(data: bytes, at: int, stop: int) -> bool:
    """Return whether the properties at `at` are at most 127 bytes, valid, and need no work of the broker."""
    end = at + 1 + data[at]
    if data[at] > 127 or end > stop:
        return False
    at += 1
    has_type = False
    while at < end:
        kind = data[at]
        if at + 3 > end:
            return False
        after = at + 3 + (data[at + 1] << 8 | data[at + 2])
        if kind == USER_PROPERTY:
            if after + 2 > end or data[at + 3 : after].translate(None, PLAIN_TEXT):
                return False
            at = after - 1
            after = at + 3 + (data[at + 1] << 8 | data[at + 2])
        elif kind != CONTENT_TYPE or has_type:
            return False
        else:
            has_type = True
        if after > end or data[at + 3 : after].translate(None, PLAIN_TEXT):
            return False
        at = after
    return True


def read_properties(data: bytes, at: int) -> tuple[int, Properties | None]:
    """Return where properties that `skip_properties` has checked end, and their values; None if none."""
    stop = at + 1 + data[at]
    if not data[at]:
        return stop, None
    values = Reader(data, at, stop).properties(fields.PUBLISH)
    return stop, Properties(
        content_type=values.get("content_type"), user_properties=tuple(values.get("user_property", ()))
    )


class PropertyBatch(MixedBatch):
    """A mixed batch of MQTT 5 packets, some of which have properties."""

    varies = True

    __slots__ = ()

    def single(self, number: int, piece: bytes) -> Batch:
        """Return message `number`, whose packet is `piece`, as a batch of its own."""
        part = super().single(number, piece)
        part.payload_at, part.properties = read_properties(piece, part.payload_at - 1)
        return part

    @property
    def content_size(self) -> int:
        """Total size of topics and payloads in bytes."""
        data, gap = self.data, self.payload_at - 1
        return super().content_size - sum([data[at + gap] for at in self.ids_at])

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
        some = PropertyBatch(data, starts, topics, ids_at, self.payload_at, self.qos, origin, form, retain)
        some.owner = self.owner
        return some
