"""Send batches as PUBLISH packets, encoded once per wire form. HOT.

A wire form determines the bytes of a message except its packet id: a number for version, QoS and retain flag
and, where they are used, subscription identifiers, topic alias and remaining expiry. A batch caches every
form in which it was sent; the form in which it was received needs no encoding. Packet ids are written into a
copy by two strided assignments for a whole batch, at 6 ns per message; a loop over messages takes 300 ns per
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from pyrite.broker.message import Batch, MixedBatch, Properties
from pyrite.broker.subscriptions import Subscription
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.mqtt import fields

FORM_V3 = 0
FORM_V5 = 8
"""A form is FORM_V3 or FORM_V5, plus twice the QoS, plus the retain flag."""

MAX_WIRES = 64
"""Wire forms cached per batch. Forms that include the remaining expiry change every second."""

_ALL_IDS = b"".join([number.to_bytes(2, "big") for number in range(65_536)])


class Wire(NamedTuple):
    """A batch encoded in one wire form."""

    data: bytes
    stride: int
    id_at: int
    """Position of the packet id in each packet, if QoS > 0."""


def encode_properties(properties: Properties) -> bytes:
    """Encode the properties of a message except its expiry, which decreases while the message waits."""
    if properties.encoded is None:
        properties.encoded = fields.bare_properties(
            {
                "payload_format": properties.payload_format,
                "content_type": properties.content_type,
                "response_topic": properties.response_topic,
                "correlation_data": properties.correlation_data,
                "user_property": list(properties.user_properties) or None,
            }
        )
    return properties.encoded


@lru_cache(maxsize=1_024)
def _encoded_identifiers(identifiers: tuple[int, ...]) -> bytes:
    return b"".join([b"\x0b" + fields.varint(identifier) for identifier in identifiers])


def encode_batch(
    batch: Batch, form: int, identifiers: tuple[int, ...], alias: int, with_topic: bool, expiry: int | None
) -> Wire:
    """Encode a batch as packets of one wire form."""
    variable = fields.binary(batch.topic if with_topic else b"")
    id_at = len(variable)
    if form & 6:
        variable += b"\0\0"
    if form & FORM_V5:
        properties = b""
        if batch.properties is not None:
            properties = encode_properties(batch.properties)
        if expiry is not None:
            properties += b"\x02" + expiry.to_bytes(4, "big")
        if alias:
            properties += b"\x23" + alias.to_bytes(2, "big")
        properties += _encoded_identifiers(identifiers)
        variable += fields.varint(len(properties)) + properties
    payload_size = batch.stride - batch.payload_at
    head = bytes((0x30 | form & 7,)) + fields.varint(len(variable) + payload_size)
    id_at += len(head)
    head += variable
    return Wire(head + head.join(batch.payloads()), len(head) + payload_size, id_at)


class Delivery(Conversation):
    """The sending half of an MQTT connection."""

    __slots__ = ("aliases", "form", "max_aliases", "max_packet")

    form: int
    """FORM_V3 or FORM_V5, by the client's version."""
    max_packet: int
    """The largest packet that the client accepts."""
    aliases: dict[bytes, int] | None
    """Topic aliases that the broker has assigned; None if the client allows none."""
    max_aliases: int

    def takes_as_it_came(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Return whether the batch's bytes can be sent to this client unchanged, except packet ids."""
        return (
            batch.form == self.form | qos << 1
            and not target.identifiers
            and self.aliases is None
            and batch.stride <= self.max_packet
        )

    def can_take(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Return whether messages are small enough for this client [MQTT-3.1.2-24]."""
        if batch.mixed:
            return batch.stride <= self.max_packet
        form = self.form | qos << 1 | (batch.retain and target.retain_as_published)
        identifiers = target.identifiers if self.form == FORM_V5 else ()
        expiry = 0 if batch.expires_at is not None and self.form == FORM_V5 else None
        if _wire(batch, form, identifiers, 0, True, expiry).stride <= self.max_packet:
            return True
        self.broker.figures.messages_dropped += batch.count
        return False

    def send_qos0(self, batch: Batch, target: Subscription) -> None:
        """Send a whole batch with QoS 0. HOT: once per batch and subscriber."""
        data = batch.data
        if (
            batch.form == self.form
            and self.room >= len(data)
            and not target.identifiers
            and self.aliases is None
            and batch.stride <= self.max_packet
        ):
            if self.chunks:
                self.chunks.append(data)
            else:
                self.chunks = [data]
                self.broker.output.add(self)
            self.room -= len(data)
            figures = self.broker.figures
            figures.publish_sent += batch.count
            figures.publish_bytes_sent += len(data)
            return
        for part in batch.parts():
            if target.lossless and part.stream is not None and not self.has_room(part.count * part.stride):
                self.broker.following.defer(target, part)  # with all that follows
                return
            self.send(part, 0, part.count, target, 0, 0, False)

    def send_some_qos0(self, batch: MixedBatch, indexes: Sequence[int], target: Subscription) -> None:
        """Send some messages of a batch with QoS 0. HOT."""
        if (
            batch.form != self.form
            or target.identifiers
            or self.aliases is not None
            or batch.stride > self.max_packet
            or self.room < batch.stride * len(indexes)
        ):
            super().send_some_qos0(batch, indexes, target)
            return
        pieces = batch.pieces()
        data = pieces[indexes[0]] if len(indexes) == 1 else b"".join([pieces[index] for index in indexes])
        self.write(data)
        figures = self.broker.figures
        figures.publish_sent += len(indexes)
        figures.publish_bytes_sent += len(data)

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages `start` to `stop` of a batch; return False if they are too large for this client."""
        if qos and batch.expires_at is None and self.takes_as_it_came(batch, target, qos):
            self._send_as_it_came(batch, start, stop, first_id, dup)
            return True
        count = stop - start
        if batch.mixed:
            batch, start, stop = batch.parts()[start], 0, 1  # duplicates are sent one at a time
        if qos == 0 and not self.has_room(count * batch.stride):
            if target.lossless and batch.stream is not None:
                self.broker.following.defer(target, batch.part(start, stop))
            else:
                self.broker.figures.messages_dropped += count
            return True
        form = self.form | qos << 1 | (batch.retain and target.retain_as_published)
        alias, known, identifiers, expiry = 0, False, target.identifiers, None
        if self.form == FORM_V5:
            if batch.expires_at is not None:
                # Floating-point error must not round up to one more second.
                expiry = max(0, ceil(batch.expires_at - self.broker.now - 0.001))  # [MQTT-3.3.2-6]
            if self.aliases is not None:
                alias, known = self._alias(batch.topic)
                if alias and not known and count > 1:  # the first message introduces the alias with its topic
                    if not self.send(batch, start, start + 1, target, qos, first_id, dup):
                        return False
                    return self.send(batch, start + 1, stop, target, qos, first_id + 1, dup)
        else:
            identifiers = ()
        wire = _wire(batch, form, identifiers, alias, not known, expiry)
        if alias and wire.stride > self.max_packet:
            alias = 0
            wire = _wire(batch, form, identifiers, 0, True, expiry)
        if wire.stride > self.max_packet:
            self.broker.figures.messages_dropped += count
            return False  # [MQTT-3.1.2-24]
        if alias and self.aliases is not None:
            self.aliases[batch.topic] = alias
        data: bytes | bytearray = wire.data
        if count != batch.count:
            data = data[start * wire.stride : stop * wire.stride]
        if qos:
            data = bytearray(data)
            _write_ids(data, wire.id_at, wire.stride, first_id, count)
            if dup:
                data[0] |= 0x08  # [MQTT-3.3.1-1]; duplicates are sent one at a time
        self.write(data)
        figures = self.broker.figures
        figures.publish_sent += count
        figures.publish_bytes_sent += len(data)
        return True

    def _send_as_it_came(self, batch: Batch, start: int, stop: int, first_id: int, dup: bool) -> None:
        """Send messages of a batch as received, with new packet ids."""
        if isinstance(batch, MixedBatch):
            begin, end = batch.span(start, stop)
            data = bytearray(batch.data[begin:end])
            ids = _ALL_IDS[2 * first_id : 2 * (first_id + stop - start)]
            for number, at in enumerate(batch.ids_at[start:stop]):
                data[at - begin : at - begin + 2] = ids[2 * number : 2 * number + 2]
        else:
            stride = batch.stride
            data = bytearray(batch.data)
            if stop - start != batch.count:
                data = data[start * stride : stop * stride]
            _write_ids(data, batch.id_at, stride, first_id, stop - start)
        if dup:
            data[0] |= 0x08  # [MQTT-3.3.1-1]
        self.write(data)
        figures = self.broker.figures
        figures.publish_sent += stop - start
        figures.publish_bytes_sent += len(data)

    def release(self, message_id: int) -> None:
        """Resend PUBREL."""
        self.write(b"\x62\x02" + message_id.to_bytes(2, "big"))

    def _alias(self, topic: bytes) -> tuple[int, bool]:
        """Return the alias of a topic, or 0, and whether the client already knows the alias."""
        aliases = self.aliases
        assert aliases is not None
        alias = aliases.get(topic)
        if alias is not None:
            return alias, True
        return (len(aliases) + 1 if len(aliases) < self.max_aliases else 0), False


def _wire(
    batch: Batch, form: int, identifiers: tuple[int, ...], alias: int, with_topic: bool, expiry: int | None
) -> Wire:
    """Return the batch in a wire form; encode it unless it was received or already sent in that form."""
    key: object = form
    if identifiers or alias or expiry is not None:
        key = (form, identifiers, alias, with_topic, expiry)
        fresh = expiry is None or (batch.properties and expiry == batch.properties.message_expiry)
        if batch.form == form and not identifiers and not alias and fresh:
            return Wire(batch.data, batch.stride, batch.id_at)
    elif batch.form == form:
        return Wire(batch.data, batch.stride, batch.id_at)
    wires = batch.wires
    if wires is None or len(wires) >= MAX_WIRES:
        wires = batch.wires = {}
    wire: Wire | None = wires.get(key)
    if wire is None:
        wire = wires[key] = encode_batch(batch, form, identifiers, alias, with_topic, expiry)
    return wire


def _write_ids(packets: bytearray, id_at: int, stride: int, first_id: int, count: int) -> None:
    """Write consecutive packet ids into consecutive packets."""
    if count == 1:
        packets[id_at] = first_id >> 8
        packets[id_at + 1] = first_id & 255
        return
    start, stop = 2 * first_id, 2 * (first_id + count)
    packets[id_at::stride] = _ALL_IDS[start:stop:2]
    packets[id_at + 1 :: stride] = _ALL_IDS[start + 1 : stop : 2]
