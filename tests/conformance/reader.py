"""A strict decoder of packets from a server.

It accepts only what the specification allows a server to send, so every test of the suite also checks the
form of every packet that it receives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .wire import (
    AUTH,
    CONNACK,
    DISCONNECT,
    NAMES,
    PINGRESP,
    PROPERTIES,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)

_BY_IDENTIFIER = {identifier: (name, kind) for name, (identifier, kind) in PROPERTIES.items()}

_REASON_AND_USER = {"reason_string", "user_property"}
# What a server may put into each packet that it sends.
_ALLOWED_PROPERTIES = {
    CONNACK: _REASON_AND_USER
    | {
        "session_expiry_interval", "receive_maximum", "maximum_qos", "retain_available",
        "maximum_packet_size", "assigned_client_identifier", "topic_alias_maximum",
        "wildcard_subscription_available", "subscription_identifiers_available",
        "shared_subscription_available", "server_keep_alive", "response_information",
        "server_reference", "authentication_method", "authentication_data",
    },
    PUBLISH: {
        "payload_format_indicator", "message_expiry_interval", "content_type", "response_topic",
        "correlation_data", "subscription_identifier", "topic_alias", "user_property",
    },
    PUBACK: _REASON_AND_USER,
    PUBREC: _REASON_AND_USER,
    PUBREL: _REASON_AND_USER,
    PUBCOMP: _REASON_AND_USER,
    SUBACK: _REASON_AND_USER,
    UNSUBACK: _REASON_AND_USER,
    DISCONNECT: _REASON_AND_USER | {"server_reference"},
    AUTH: _REASON_AND_USER | {"authentication_method", "authentication_data"},
}  # fmt: skip

_PUBLISH_REASONS = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
# What a server may answer with in each packet that carries a reason code.
ALLOWED_REASONS = {
    CONNACK: {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F},
    PUBACK: _PUBLISH_REASONS,
    PUBREC: _PUBLISH_REASONS,
    PUBREL: {0x00, 0x92},
    PUBCOMP: {0x00, 0x92},
    SUBACK: {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    UNSUBACK: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    DISCONNECT: {0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3)},
    AUTH: {0x00, 0x18},
}


class WireError(AssertionError):
    """The server sent bytes that the specification forbids."""


@dataclass(frozen=True)
class Packet:
    """A packet from the server; the fields that its type does not have keep their defaults."""

    kind: int
    flags: int
    size: int
    packet_id: int = 0
    reason: int = 0
    reasons: tuple[int, ...] = ()
    session_present: bool = False
    topic: str = ""
    payload: bytes = b""
    properties: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return NAMES[self.kind]

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)


class _Cursor:
    """Takes values off the front of a packet's body."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.body):
            raise WireError(f"the packet ends too early: {self.body.hex(' ')}")
        self.at += count
        return self.body[self.at - count : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def binary(self) -> bytes:
        return self.take(self.u16())

    def string(self) -> str:
        text = self.binary().decode("utf-8", "strict")
        if "\0" in text:
            raise WireError("a string holds U+0000")
        return text

    def varint(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                if byte == 0 and shift:
                    raise WireError("a variable byte integer is longer than it need be")
                return value
        raise WireError("a variable byte integer has more than four bytes")

    def rest(self) -> bytes:
        return self.take(len(self.body) - self.at)

    @property
    def ended(self) -> bool:
        return self.at == len(self.body)

    def properties(self, kind: int) -> dict[str, Any]:
        inner = _Cursor(self.take(self.varint()))
        found: dict[str, Any] = {}
        while not inner.ended:
            identifier = inner.varint()
            if identifier not in _BY_IDENTIFIER:
                raise WireError(f"{NAMES[kind]} holds the unknown property {identifier:#04x}")
            name, form = _BY_IDENTIFIER[identifier]
            if name not in _ALLOWED_PROPERTIES[kind]:
                raise WireError(f"a server may not send {name} in {NAMES[kind]}")
            value = inner.value(form)
            if name in ("user_property", "subscription_identifier"):
                found.setdefault(name, []).append(value)
            elif name in found:
                raise WireError(f"{NAMES[kind]} holds {name} twice")
            else:
                found[name] = value
        return found

    def value(self, form: str) -> Any:
        match form:
            case "byte":
                return self.byte()
            case "u16":
                return self.u16()
            case "u32":
                return self.u32()
            case "varint":
                return self.varint()
            case "pair":
                return (self.string(), self.string())
            case "string":
                return self.string()
            case _:
                return self.binary()


def split(buffer: bytes) -> tuple[int, bytes, int] | None:
    """Cut the first packet off a buffer: (first byte, body, bytes used), or None while it is incomplete."""
    length = shift = 0
    for at in range(1, min(len(buffer), 5)):
        length |= (buffer[at] & 0x7F) << shift
        shift += 7
        if not buffer[at] & 0x80:
            if at > 1 and buffer[at] == 0:
                raise WireError("the remaining length is longer than it need be")
            end = at + 1 + length
            return (buffer[0], buffer[at + 1 : end], end) if len(buffer) >= end else None
    if len(buffer) >= 5:
        raise WireError("the remaining length has more than four bytes")
    return None


def read_packet(first: int, body: bytes, size: int, version: int) -> Packet:
    """Decode a packet from the server, strictly."""
    kind, flags = first >> 4, first & 15
    cursor = _Cursor(body)
    fields: dict[str, Any] = {}
    if kind != PUBLISH and flags != (2 if kind == PUBREL else 0):
        raise WireError(f"reserved flags of packet type {kind} are {flags:04b}")
    match kind:
        case _ if kind == CONNACK:
            acknowledge = cursor.byte()
            if acknowledge & 0xFE:
                raise WireError(f"reserved CONNACK flags are set: {acknowledge:#04x}")
            fields["session_present"] = bool(acknowledge)
            fields["reason"] = cursor.byte()
            if version == 5:
                fields["properties"] = cursor.properties(kind)
        case _ if kind == PUBLISH:
            fields = _read_publish(cursor, flags, version)
        case _ if kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            fields["packet_id"] = cursor.u16()
            if version == 5 and not cursor.ended:
                fields["reason"] = cursor.byte()
                if not cursor.ended:
                    fields["properties"] = cursor.properties(kind)
        case _ if kind in (SUBACK, UNSUBACK):
            fields["packet_id"] = cursor.u16()
            if version == 5:
                fields["properties"] = cursor.properties(kind)
            fields["reasons"] = tuple(cursor.rest())
        case _ if kind in (DISCONNECT, AUTH) and version == 5:
            if not cursor.ended:
                fields["reason"] = cursor.byte()
                if not cursor.ended:
                    fields["properties"] = cursor.properties(kind)
        case _ if kind == PINGRESP:
            pass
        case _:
            raise WireError(f"a server may not send packet type {kind} in MQTT version {version}")
    if not cursor.ended:
        raise WireError(f"{NAMES[kind]} has bytes past its end: {body.hex(' ')}")
    result = Packet(kind, flags, size, **fields)
    if version == 5 and kind in ALLOWED_REASONS:
        for reason in result.reasons if kind in (SUBACK, UNSUBACK) else (result.reason,):
            if reason not in ALLOWED_REASONS[kind]:
                raise WireError(f"{result.name} may not carry reason code {reason:#04x}")
    return result


def _read_publish(cursor: _Cursor, flags: int, version: int) -> dict[str, Any]:
    qos = flags >> 1 & 3
    if qos == 3:
        raise WireError("PUBLISH with both QoS bits set")
    if qos == 0 and flags & 8:
        raise WireError("PUBLISH of QoS 0 with DUP set")
    fields: dict[str, Any] = {"topic": cursor.string()}
    if set(fields["topic"]) & set("+#"):
        raise WireError(f"PUBLISH to a topic name with wildcards: {fields['topic']}")
    if qos:
        fields["packet_id"] = cursor.u16()
        if fields["packet_id"] == 0:
            raise WireError("PUBLISH with packet identifier 0")
    if version == 5:
        fields["properties"] = cursor.properties(PUBLISH)
        if fields["properties"].get("topic_alias") == 0:
            raise WireError("PUBLISH with topic alias 0")
    fields["payload"] = cursor.rest()
    return fields
