"""MQTT on the wire, written a second time: packets as bytes, right ones and wrong ones.

Nothing here comes from Pyrite: a codec cannot bear witness in its own case. `reader` is the other half.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)

NAMES = {
    CONNECT: "CONNECT", CONNACK: "CONNACK", PUBLISH: "PUBLISH", PUBACK: "PUBACK", PUBREC: "PUBREC",
    PUBREL: "PUBREL", PUBCOMP: "PUBCOMP", SUBSCRIBE: "SUBSCRIBE", SUBACK: "SUBACK",
    UNSUBSCRIBE: "UNSUBSCRIBE", UNSUBACK: "UNSUBACK", PINGREQ: "PINGREQ", PINGRESP: "PINGRESP",
    DISCONNECT: "DISCONNECT", AUTH: "AUTH",
}  # fmt: skip

# name -> (identifier, type): Table 2-4 of the specification.
PROPERTIES = {
    "payload_format_indicator": (0x01, "byte"),
    "message_expiry_interval": (0x02, "u32"),
    "content_type": (0x03, "string"),
    "response_topic": (0x08, "string"),
    "correlation_data": (0x09, "binary"),
    "subscription_identifier": (0x0B, "varint"),
    "session_expiry_interval": (0x11, "u32"),
    "assigned_client_identifier": (0x12, "string"),
    "server_keep_alive": (0x13, "u16"),
    "authentication_method": (0x15, "string"),
    "authentication_data": (0x16, "binary"),
    "request_problem_information": (0x17, "byte"),
    "will_delay_interval": (0x18, "u32"),
    "request_response_information": (0x19, "byte"),
    "response_information": (0x1A, "string"),
    "server_reference": (0x1C, "string"),
    "reason_string": (0x1F, "string"),
    "receive_maximum": (0x21, "u16"),
    "topic_alias_maximum": (0x22, "u16"),
    "topic_alias": (0x23, "u16"),
    "maximum_qos": (0x24, "byte"),
    "retain_available": (0x25, "byte"),
    "user_property": (0x26, "pair"),
    "maximum_packet_size": (0x27, "u32"),
    "wildcard_subscription_available": (0x28, "byte"),
    "subscription_identifiers_available": (0x29, "byte"),
    "shared_subscription_available": (0x2A, "byte"),
}


# Building: from values to bytes, with no opinion on whether they make sense.


def varint(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, digit = divmod(value, 128)
        encoded.append(digit | 0x80 if value else digit)
        if not value:
            return bytes(encoded)


def u16(value: int) -> bytes:
    return struct.pack(">H", value)


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def string(value: str | bytes) -> bytes:
    """Encode a UTF-8 string; bytes pass through unchecked, to build strings that are not UTF-8."""
    data = value.encode() if isinstance(value, str) else value
    return u16(len(data)) + data


def prop(name: str, value: Any) -> bytes:
    """Encode one property."""
    identifier, kind = PROPERTIES[name]
    head = bytes([identifier])
    match kind:
        case "byte":
            return head + bytes([value])
        case "u16":
            return head + u16(value)
        case "u32":
            return head + u32(value)
        case "varint":
            return head + varint(value)
        case "pair":
            return head + string(value[0]) + string(value[1])
        case _:
            return head + string(value)


def properties(**values: Any) -> bytes:
    """Encode properties with their length; a list as value repeats the property."""
    body = b"".join(
        prop(name, item)
        for name, value in values.items()
        for item in (value if isinstance(value, list) else [value])
    )
    return varint(len(body)) + body


def raw_properties(body: bytes) -> bytes:
    return varint(len(body)) + body


def packet(kind: int, flags: int, body: bytes = b"") -> bytes:
    return bytes([kind << 4 | flags]) + varint(len(body)) + body


@dataclass
class Will:
    """The will of a CONNECT packet."""

    topic: str | bytes
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


def connect_packet(
    client_id: str | bytes = "",
    *,
    version: int = 5,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    protocol_name: str | bytes = "MQTT",
    reserved: int = 0,
    flags: int | None = None,
    raw: bytes | None = None,
    **values: Any,
) -> bytes:
    """Build a CONNECT; `flags` overrides the connect flags, `raw` the bytes of the properties."""
    computed = reserved | clean << 1
    payload = string(client_id)
    if will is not None:
        computed |= 0x04 | will.qos << 3 | will.retain << 5
        payload += properties(**will.properties) if version == 5 else b""
        payload += string(will.topic) + string(will.payload)
    if username is not None:
        computed |= 0x80
        payload += string(username)
    if password is not None:
        computed |= 0x40
        payload += string(password)
    head = string(protocol_name) + bytes([version, computed if flags is None else flags]) + u16(keep_alive)
    if version == 5:
        head += properties(**values) if raw is None else raw_properties(raw)
    return packet(CONNECT, 0, head + payload)


def publish_packet(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int | None = None,
    retain: bool = False,
    dup: bool = False,
    version: int = 5,
    raw: bytes | None = None,
    **values: Any,
) -> bytes:
    """Build a PUBLISH; `raw` overrides the bytes of the properties."""
    body = string(topic)
    if packet_id is not None:
        body += u16(packet_id)
    if version == 5:
        body += properties(**values) if raw is None else raw_properties(raw)
    return packet(PUBLISH, dup << 3 | qos << 1 | retain, body + payload)


def ack_packet(kind: int, packet_id: int, reason: int | None = None, **values: Any) -> bytes:
    """Build a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    body = u16(packet_id)
    if reason is not None:
        body += bytes([reason])
    if values:
        body += properties(**values)
    return packet(kind, 2 if kind == PUBREL else 0, body)


def options(
    qos: int = 0, *, no_local: bool = False, retain_as_published: bool = False, retain_handling: int = 0
) -> int:
    """Build the subscription options byte."""
    return qos | no_local << 2 | retain_as_published << 3 | retain_handling << 4


def subscribe_packet(
    packet_id: int,
    filters: Iterable[tuple[str | bytes, int]],
    *,
    version: int = 5,
    raw: bytes | None = None,
    **values: Any,
) -> bytes:
    """Build a SUBSCRIBE from (filter, options) pairs; `raw` overrides the bytes of the properties."""
    body = u16(packet_id)
    if version == 5:
        body += properties(**values) if raw is None else raw_properties(raw)
    return packet(SUBSCRIBE, 2, body + b"".join(string(name) + bytes([opts]) for name, opts in filters))


def unsubscribe_packet(
    packet_id: int,
    filters: Iterable[str | bytes],
    *,
    version: int = 5,
    raw: bytes | None = None,
    **values: Any,
) -> bytes:
    """Build an UNSUBSCRIBE; `raw` overrides the bytes of the properties."""
    body = u16(packet_id)
    if version == 5:
        body += properties(**values) if raw is None else raw_properties(raw)
    return packet(UNSUBSCRIBE, 2, body + b"".join(string(name) for name in filters))


def disconnect_packet(reason: int | None = None, **values: Any) -> bytes:
    """Build a DISCONNECT, as short as its contents allow."""
    body = b"" if reason is None else bytes([reason])
    return packet(DISCONNECT, 0, body + (properties(**values) if values else b""))


def auth_packet(reason: int, **values: Any) -> bytes:
    return packet(AUTH, 0, bytes([reason]) + properties(**values))
