"""Packets of MQTT 3.1, 3.1.1 and 5.0 as dataclasses, and their codec, for clients and servers.

Servers read and write runs of PUBLISH and of acknowledgements faster, in shapes.py, acks.py and delivery.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.fields import Reader
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, malformed, violation

V31, V311, V5 = 3, 4, 5

Properties = dict[str, Any]

MAX_FILTERS = 1_000
"""Topic filters of one SUBSCRIBE or UNSUBSCRIBE. They are read without interruption, at about 2 us each."""


@dataclass(slots=True)
class WillMessage:
    """The will in a CONNECT."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    """CONNECT (3.1)."""

    client_id: str
    version: int = V5
    clean_start: bool = True
    keep_alive: int = 0
    will: WillMessage | None = None
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connack:
    """CONNACK (3.2)."""

    reason: int = 0
    session_present: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Publish:
    """PUBLISH (3.3)."""

    topic: bytes
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP (3.4 to 3.7)."""

    type: int
    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Wish:
    """One filter of a SUBSCRIBE with its options."""

    topic_filter: bytes
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE (3.8)."""

    packet_id: int
    wishes: list[Wish]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE (3.10)."""

    packet_id: int
    filters: list[bytes]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Suback:
    """SUBACK or UNSUBACK (3.9, 3.11)."""

    type: int
    packet_id: int
    reasons: list[int]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Ping:
    """PINGREQ or PINGRESP (3.12, 3.13)."""

    type: int


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT (3.14)."""

    reason: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Auth:
    """AUTH (3.15)."""

    reason: int = 0
    properties: Properties = field(default_factory=dict)


Packet = Connect | Connack | Publish | Ack | Subscribe | Suback | Unsubscribe | Ping | Disconnect | Auth

# Required flags of the fixed header (2.1.3); the flags of PUBLISH vary.
_FLAGS = {fields.PUBREL: 2, fields.SUBSCRIBE: 2, fields.UNSUBSCRIBE: 2}


def decode(first: int, body: bytes, version: int) -> Packet:
    """Decode one packet from the first byte of its fixed header and its body."""
    kind = first >> 4
    if kind == fields.PUBLISH:
        return _decode_publish(first, body, version)
    if first & 0x0F != _FLAGS.get(kind, 0):
        raise malformed("invalid flags in the fixed header")  # [MQTT-2.1.3-1]
    decoder = _DECODERS.get(kind)
    if decoder is None or (kind == fields.AUTH and version != V5):
        raise violation("unknown packet type")
    reader = Reader(body)
    packet = decoder(reader, kind, version)
    reader.finish()
    return packet


def _decode_connect(reader: Reader, kind: int, version: int) -> Connect:
    name, level = reader.utf8(), reader.u8()
    if (name, level) not in ((b"MQTT", V5), (b"MQTT", V311), (b"MQIsdp", V31)):
        raise ProtocolError(
            Reason.UNSUPPORTED_PROTOCOL_VERSION,
            "unsupported protocol version: expected MQTT 5.0, 3.1.1 or 3.1",
        )  # [MQTT-3.1.2-1], [MQTT-3.1.2-2]
    flags = reader.u8()
    if flags & 1:
        raise malformed("the reserved flag of CONNECT is set")  # [MQTT-3.1.2-3]
    has_will, will_qos, will_retain = bool(flags & 0x04), flags >> 3 & 3, bool(flags & 0x20)
    if will_qos == 3 or (not has_will and flags & 0x38):
        raise malformed("the will flags contradict each other")  # [MQTT-3.1.2-11], -12, -13
    if flags & 0x40 and not flags & 0x80 and level != V5:
        raise malformed("a password without a user name")
    connect = Connect("", level, bool(flags & 0x02), reader.u16())
    if level == V5:
        connect.properties = reader.properties(fields.CONNECT)
    connect.client_id = reader.string()
    if has_will:
        will_properties = reader.properties(fields.WILL) if level == V5 else {}
        connect.will = WillMessage(reader.utf8(), reader.binary(), will_qos, will_retain, will_properties)
    if flags & 0x80:
        connect.username = reader.string()
    if flags & 0x40:
        connect.password = reader.binary()
    return connect


def _decode_connack(reader: Reader, kind: int, version: int) -> Connack:
    flags = reader.u8()
    if flags > 1:
        raise malformed("reserved flags of CONNACK are set")  # [MQTT-3.2.2-1]
    connack = Connack(reader.u8(), bool(flags))
    if version == V5:
        connack.properties = reader.properties(fields.CONNACK)
    return connack


def _decode_publish(first: int, body: bytes, version: int) -> Publish:
    qos = first >> 1 & 3
    if qos == 3:
        raise malformed("QoS 3 is not allowed")  # [MQTT-3.3.1-4]
    if first & 0x08 and not qos:
        raise malformed("DUP is set with QoS 0")  # [MQTT-3.3.1-2]
    reader = Reader(body)
    topic = reader.utf8()
    packet_id = _packet_id(reader) if qos else 0
    # Not limited: a broker may add properties to the publisher's.
    values = reader.properties(fields.PUBLISH, limited=False) if version == V5 else {}
    return Publish(topic, body[reader.position :], qos, bool(first & 1), bool(first & 8), packet_id, values)


def _packet_id(reader: Reader) -> int:
    packet_id = reader.u16()
    if packet_id == 0:
        raise violation("the packet identifier is 0")  # [MQTT-2.2.1-3]
    return packet_id


def _decode_ack(reader: Reader, kind: int, version: int) -> Ack:
    ack = Ack(kind, _packet_id(reader))
    if version == V5 and reader.position < reader.end:
        ack.reason = reader.u8()
        if ack.reason not in _ACK_REASONS[kind]:
            raise violation(f"0x{ack.reason:02X} is not a reason code of this packet")
        if reader.position < reader.end:
            ack.properties = reader.properties(kind)
    return ack


_PUBACK_REASONS = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_ACK_REASONS = {
    fields.PUBACK: _PUBACK_REASONS,
    fields.PUBREC: _PUBACK_REASONS,
    fields.PUBREL: frozenset((0x00, 0x92)),
    fields.PUBCOMP: frozenset((0x00, 0x92)),
}


def _check_filters(count: int) -> None:
    """Raise ProtocolError if a packet already has the maximum number of filters."""
    if count >= MAX_FILTERS:
        raise ProtocolError(Reason.QUOTA_EXCEEDED, f"the packet has more than {MAX_FILTERS} topic filters")


def _decode_subscribe(reader: Reader, kind: int, version: int) -> Subscribe:
    subscribe = Subscribe(_packet_id(reader), [])
    if version == V5:
        subscribe.properties = reader.properties(fields.SUBSCRIBE)
    while reader.position < reader.end:
        _check_filters(len(subscribe.wishes))
        topic_filter, options = reader.utf8(), reader.u8()
        if version != V5 and options > 2:
            raise malformed("the requested QoS must be 0, 1 or 2")
        if options & 0xC0 or options & 3 == 3:
            raise malformed("reserved bits of the subscription options are set")  # [MQTT-3.8.3-5]
        if options >> 4 == 3:
            raise violation("retain handling 3 is not allowed")
        no_local = bool(options & 4)
        if no_local and topic_filter.startswith(b"$share/"):
            raise violation("no-local on a shared subscription")  # [MQTT-3.8.3-4]
        subscribe.wishes.append(Wish(topic_filter, options & 3, no_local, bool(options & 8), options >> 4))
    if not subscribe.wishes:
        raise violation("SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-2]
    return subscribe


def _decode_unsubscribe(reader: Reader, kind: int, version: int) -> Unsubscribe:
    unsubscribe = Unsubscribe(_packet_id(reader), [])
    if version == V5:
        unsubscribe.properties = reader.properties(fields.UNSUBSCRIBE)
    while reader.position < reader.end:
        _check_filters(len(unsubscribe.filters))
        unsubscribe.filters.append(reader.utf8())
    if not unsubscribe.filters:
        raise violation("UNSUBSCRIBE without a topic filter")  # [MQTT-3.10.3-2]
    return unsubscribe


def _decode_suback(reader: Reader, kind: int, version: int) -> Suback:
    suback = Suback(kind, _packet_id(reader), [])
    if version == V5:
        suback.properties = reader.properties(kind)
    if version == V5 or kind == fields.SUBACK:
        suback.reasons = list(reader.take(reader.end - reader.position))
    return suback


def _decode_ping(reader: Reader, kind: int, version: int) -> Ping:
    return Ping(kind)


def _decode_disconnect(reader: Reader, kind: int, version: int) -> Disconnect:
    disconnect = Disconnect()
    if version == V5 and reader.position < reader.end:
        disconnect.reason = reader.u8()
        if disconnect.reason not in _DISCONNECT_REASONS:
            raise violation(f"0x{disconnect.reason:02X} is not a reason code of DISCONNECT")
        if reader.position < reader.end:
            disconnect.properties = reader.properties(fields.DISCONNECT)
    return disconnect


_DISCONNECT_REASONS = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3))
)


def _decode_auth(reader: Reader, kind: int, version: int) -> Auth:
    auth = Auth()
    if reader.position < reader.end:
        auth.reason = reader.u8()
        if auth.reason not in (0x00, 0x18, 0x19):
            raise violation(f"0x{auth.reason:02X} is not a reason code of AUTH")
        auth.properties = reader.properties(fields.AUTH)
    return auth


_DECODERS: dict[int, Callable[[Reader, int, int], Packet]] = {
    fields.CONNECT: _decode_connect,
    fields.CONNACK: _decode_connack,
    fields.PUBACK: _decode_ack,
    fields.PUBREC: _decode_ack,
    fields.PUBREL: _decode_ack,
    fields.PUBCOMP: _decode_ack,
    fields.SUBSCRIBE: _decode_subscribe,
    fields.SUBACK: _decode_suback,
    fields.UNSUBSCRIBE: _decode_unsubscribe,
    fields.UNSUBACK: _decode_suback,
    fields.PINGREQ: _decode_ping,
    fields.PINGRESP: _decode_ping,
    fields.DISCONNECT: _decode_disconnect,
    fields.AUTH: _decode_auth,
}


def encode(packet: Packet, version: int) -> bytes:
    """Encode one packet."""
    first, body = _encode_body(packet, version)
    return bytes((first,)) + fields.varint(len(body)) + body


def _encode_body(packet: Packet, version: int) -> tuple[int, bytes]:
    five = version == V5
    match packet:
        case Publish():
            flags = packet.dup << 3 | packet.qos << 1 | packet.retain
            body = fields.binary(packet.topic)
            if packet.qos:
                body += packet.packet_id.to_bytes(2, "big")
            if five:
                body += fields.properties(packet.properties)
            return fields.PUBLISH << 4 | flags, body + packet.payload
        case Ack():
            body = packet.packet_id.to_bytes(2, "big") + _reason(packet.reason, packet.properties, five)
            return packet.type << 4 | _FLAGS.get(packet.type, 0), body
        case Suback():
            body = packet.packet_id.to_bytes(2, "big")
            if five:
                body += fields.properties(packet.properties)
            if five or packet.type == fields.SUBACK:
                body += bytes(packet.reasons)
            return packet.type << 4, body
        case Ping():
            return packet.type << 4, b""
        case Connack():
            body = bytes((packet.session_present, packet.reason))
            return fields.CONNACK << 4, body + (fields.properties(packet.properties) if five else b"")
        case Disconnect():
            return fields.DISCONNECT << 4, _reason(packet.reason, packet.properties, five)
        case Auth():
            if not (packet.reason or packet.properties):
                return fields.AUTH << 4, b""
            return fields.AUTH << 4, bytes((packet.reason,)) + fields.properties(packet.properties)
        case Connect():
            return fields.CONNECT << 4, _encode_connect(packet)
        case Subscribe():
            body = packet.packet_id.to_bytes(2, "big")
            if five:
                body += fields.properties(packet.properties)
            for wish in packet.wishes:
                options = wish.qos | wish.no_local << 2 | wish.retain_as_published << 3
                body += fields.binary(wish.topic_filter) + bytes((options | wish.retain_handling << 4,))
            return fields.SUBSCRIBE << 4 | 2, body
        case Unsubscribe():
            body = packet.packet_id.to_bytes(2, "big")
            if five:
                body += fields.properties(packet.properties)
            return fields.UNSUBSCRIBE << 4 | 2, body + b"".join(map(fields.binary, packet.filters))


def _reason(reason: int, properties: Properties, five: bool) -> bytes:
    """Encode a reason code and properties in the shortest form."""
    if not five or not (reason or properties):
        return b""
    return bytes((reason,)) + (fields.properties(properties) if properties else b"")


def _encode_connect(packet: Connect) -> bytes:
    flags = packet.clean_start << 1
    will = packet.will
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    flags |= (packet.username is not None) << 7 | (packet.password is not None) << 6
    body = fields.binary(b"MQIsdp" if packet.version == V31 else b"MQTT")
    body += bytes((packet.version, flags)) + packet.keep_alive.to_bytes(2, "big")
    five = packet.version == V5
    if five:
        body += fields.properties(packet.properties)
    body += fields.string(packet.client_id)
    if will is not None:
        if five:
            body += fields.properties(will.properties)
        body += fields.binary(will.topic) + fields.binary(will.payload)
    if packet.username is not None:
        body += fields.string(packet.username)
    if packet.password is not None:
        body += fields.binary(packet.password)
    return body
