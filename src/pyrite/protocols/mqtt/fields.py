"""Codec for the fields of MQTT packets (1.5): integers, strings, binary data, and MQTT 5 properties.

Reading validates every field and raises ProtocolError; writing does not validate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, malformed, violation

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)
WILL: Final = 0
"""Pseudo packet type for the will properties in a CONNECT."""

MAX_REMAINING_LENGTH = 268_435_455
MAX_VARINT = MAX_REMAINING_LENGTH

MAX_PROPERTIES = 512
"""Properties of one packet from a client. They are read without interruption, at about 2 us each."""
MAX_USER_PROPERTY_BYTES = 64 * 1024
"""Encoded bytes of all user properties of one packet from a client."""

_ACKS = (PUBACK, PUBREC, PUBREL, PUBCOMP)
_WITH_REASON = (CONNACK, *_ACKS, SUBACK, UNSUBACK, DISCONNECT, AUTH)

# Identifier: name, type, and the packets in which the property is allowed (table 2-4).
_PROPERTIES: dict[int, tuple[str, str, tuple[int, ...]]] = {
    0x01: ("payload_format", "boolean", (PUBLISH, WILL)),
    0x02: ("message_expiry", "u32", (PUBLISH, WILL)),
    0x03: ("content_type", "string", (PUBLISH, WILL)),
    0x08: ("response_topic", "string", (PUBLISH, WILL)),
    0x09: ("correlation_data", "binary", (PUBLISH, WILL)),
    0x0B: ("subscription_identifier", "varint", (PUBLISH, SUBSCRIBE)),
    0x11: ("session_expiry", "u32", (CONNECT, CONNACK, DISCONNECT)),
    0x12: ("assigned_client_id", "string", (CONNACK,)),
    0x13: ("server_keep_alive", "u16", (CONNACK,)),
    0x15: ("authentication_method", "string", (CONNECT, CONNACK, AUTH)),
    0x16: ("authentication_data", "binary", (CONNECT, CONNACK, AUTH)),
    0x17: ("request_problem_information", "boolean", (CONNECT,)),
    0x18: ("will_delay", "u32", (WILL,)),
    0x19: ("request_response_information", "boolean", (CONNECT,)),
    0x1A: ("response_information", "string", (CONNACK,)),
    0x1C: ("server_reference", "string", (CONNACK, DISCONNECT)),
    0x1F: ("reason_string", "string", _WITH_REASON),
    0x21: ("receive_maximum", "u16", (CONNECT, CONNACK)),
    0x22: ("topic_alias_maximum", "u16", (CONNECT, CONNACK)),
    0x23: ("topic_alias", "u16", (PUBLISH,)),
    0x24: ("maximum_qos", "boolean", (CONNACK,)),
    0x25: ("retain_available", "boolean", (CONNACK,)),
    0x26: ("user_property", "pair", (CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE, *_WITH_REASON)),
    0x27: ("maximum_packet_size", "u32", (CONNECT, CONNACK)),
    0x28: ("wildcard_subscription_available", "boolean", (CONNACK,)),
    0x29: ("subscription_identifier_available", "boolean", (CONNACK,)),
    0x2A: ("shared_subscription_available", "boolean", (CONNACK,)),
}
_IDENTIFIERS = {name: identifier for identifier, (name, _, _) in _PROPERTIES.items()}
_NOT_ZERO = {"receive_maximum", "maximum_packet_size", "topic_alias", "subscription_identifier"}

PropertyMap = Mapping[str, Any]
"""Properties by name; `user_property` holds a list of pairs, a PUBLISH's `subscription_identifier` a list."""


class Reader:
    """Reads the fields of a packet's body in order."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    def take(self, count: int) -> bytes:
        start = self.position
        stop = start + count
        if stop > self.end:
            raise malformed("the packet ends within a field")
        self.position = stop
        return self.data[start:stop]

    def u8(self) -> int:
        at = self.position
        if at >= self.end:
            raise malformed("the packet ends within a field")
        self.position = at + 1
        return self.data[at]

    def boolean(self) -> int:
        """Read a byte that is 0 or 1."""
        value = self.u8()
        if value > 1:
            raise violation("a boolean property is neither 0 nor 1")
        return value

    def u16(self) -> int:
        """Read a two byte integer (1.5.2)."""
        at = self.position
        if at + 2 > self.end:
            raise malformed("the packet ends within a field")
        self.position = at + 2
        return self.data[at] << 8 | self.data[at + 1]

    def u32(self) -> int:
        """Read a four byte integer (1.5.3)."""
        return int.from_bytes(self.take(4), "big")

    def varint(self) -> int:
        """Read a variable byte integer (1.5.5)."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise malformed("a variable byte integer is not minimally encoded")  # [MQTT-1.5.5-1]
                return value
        raise malformed("a variable byte integer is longer than four bytes")

    def binary(self) -> bytes:
        """Read binary data (1.5.6)."""
        return self.take(self.u16())

    def utf8(self) -> bytes:
        """Return the bytes of a valid string (1.5.4)."""
        return check_utf8(self.binary())

    def string(self) -> str:
        return self.utf8().decode()

    def pair(self) -> tuple[str, str]:
        return self.string(), self.string()

    def finish(self) -> None:
        """Raise ProtocolError if bytes are left."""
        if self.position != self.end:
            raise malformed("unexpected bytes after the last field")

    def properties(self, packet: int, limited: bool = True) -> dict[str, Any]:
        """Read the properties (2.2.2) of a packet; `limited` applies the bounds for clients."""
        length = self.varint()
        end = self.position + length
        if end > self.end:
            raise malformed("the properties are longer than the packet")
        found: dict[str, Any] = {}
        count = user_bytes = 0
        while self.position < end:
            start = self.position
            count += 1
            if limited and count > MAX_PROPERTIES:
                raise ProtocolError(
                    Reason.QUOTA_EXCEEDED, f"the packet has more than {MAX_PROPERTIES} properties"
                )
            identifier = self.varint()
            name, kind, packets = _PROPERTIES.get(identifier, ("", "", ()))
            if packet not in packets:
                raise malformed(f"property 0x{identifier:02X} does not belong to this packet")
            value = getattr(self, kind)()
            if self.position > end:
                raise malformed("a property exceeds the property length")
            if name == "user_property":
                user_bytes += self.position - start
                if limited and user_bytes > MAX_USER_PROPERTY_BYTES:
                    raise ProtocolError(
                        Reason.QUOTA_EXCEEDED,
                        f"the packet has more than {MAX_USER_PROPERTY_BYTES} bytes of user properties",
                    )
                found.setdefault(name, []).append(value)
                continue
            if value == 0 and name in _NOT_ZERO:
                raise violation(f"{name} is 0")
            if name == "subscription_identifier" and packet == PUBLISH:
                found.setdefault(name, []).append(value)
                continue
            if name in found:
                raise violation(f"duplicate {name}")
            found[name] = value
        return found


PLAIN_TEXT = bytes(range(0x20, 0x7F))
"""Characters of strings that are certainly valid."""
PLAIN_TOPIC = PLAIN_TEXT.translate(None, b"+#")


def check_utf8(data: bytes) -> bytes:
    """Return `data` if it is a valid MQTT string, else raise ProtocolError."""
    try:
        data.decode()  # rejects surrogates and overlong forms [MQTT-1.5.4-1]
    except UnicodeDecodeError:
        raise malformed("a string is not UTF-8") from None
    if b"\0" in data:
        raise malformed("a string contains a null character")  # [MQTT-1.5.4-2]
    return data


def varint(value: int) -> bytes:
    """Encode a variable byte integer."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def binary(value: bytes) -> bytes:
    """Encode binary data, or a string that is UTF-8 already."""
    return len(value).to_bytes(2, "big") + value


def string(value: str) -> bytes:
    return binary(value.encode())


def _property(name: str, kind: str, value: Any) -> bytes:
    head = bytes((_IDENTIFIERS[name],))
    if kind == "string":
        return head + string(value)
    if kind == "binary":
        return head + binary(value)
    if kind == "pair":
        return head + string(value[0]) + string(value[1])
    if kind == "varint":
        return head + varint(value)
    return head + int(value).to_bytes({"boolean": 1, "u16": 2, "u32": 4}[kind], "big")


def bare_properties(values: PropertyMap) -> bytes:
    """Encode properties without their length, in the given order; None values are left out."""
    parts: list[bytes] = []
    for name, value in values.items():
        if value is not None:
            kind = _PROPERTIES[_IDENTIFIERS[name]][1]
            values_of_name = value if isinstance(value, list) else (value,)
            parts.extend(_property(name, kind, single) for single in values_of_name)
    return b"".join(parts)


def properties(values: PropertyMap) -> bytes:
    """Encode properties with their length."""
    encoded = bare_properties(values)
    return varint(len(encoded)) + encoded
