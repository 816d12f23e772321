"""Logs packets to the logger `pyrite.client.packets`, at DEBUG."""

from __future__ import annotations

import logging
from typing import Any

from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import Ack, Auth, Connect, Packet, Ping, Publish, Suback, decode
from pyrite.protocols.mqtt.reasons import ProtocolError

log = logging.getLogger("pyrite.client.packets")
_MAX_SHOWN = 50
"""Bytes of a payload that are shown."""
_NAMES = {
    number: name
    for name, number in vars(fields).items()
    if name.isupper() and isinstance(number, int) and 0 < number < 16
}


class Trace:
    """The packets of one direction of a connection."""

    def __init__(self, verb: str, version: int) -> None:
        self._verb = verb
        self._version = version
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Log the packets that these bytes complete."""
        data = self._rest + data
        while len(data) >= 2:
            reader = fields.Reader(data, 1)
            try:
                body = reader.take(reader.varint())
            except ProtocolError:
                break  # incomplete packet
            try:
                log.debug("%s %s", self._verb, _describe(decode(data[0], body, self._version), data[0] >> 4))
            except ProtocolError as error:
                log.debug("%s malformed %s: %s", self._verb, _NAMES.get(data[0] >> 4), error)
            data = data[reader.position :]
        self._rest = data


def _describe(packet: Packet, kind: int) -> str:
    name = _NAMES[kind]
    match packet:
        case Ping():
            return name
        case Ack() | Suback():
            reasons = packet.reasons if isinstance(packet, Suback) else [packet.reason]
            words = " ".join(f"0x{reason:02X}" for reason in reasons)
            return f"{name} id={packet.packet_id} {words} {packet.properties or ''}".rstrip()
        case Publish():
            flags = "".join((" dup" * packet.dup, f" qos={packet.qos}", " retain" * packet.retain))
            number = f" id={packet.packet_id}" if packet.qos else ""
            payload = packet.payload[:_MAX_SHOWN]
            more = (
                f" and {len(packet.payload) - _MAX_SHOWN} bytes" if len(packet.payload) > _MAX_SHOWN else ""
            )
            return (
                f"{name}{flags}{number} {packet.topic.decode()!r} {packet.properties or ''} {payload!r}{more}"
            )
        case Connect():
            shown = {"client_id": packet.client_id, "clean_start": packet.clean_start}
            return f"{name} {shown | {'keep_alive': packet.keep_alive} | _public(packet.properties)}"
        case Auth():
            return f"{name} 0x{packet.reason:02X} {_public(packet.properties)}"
        case _:
            return f"{name} {packet!r}"


def _public(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the properties without credentials."""
    return {name: value for name, value in properties.items() if name != "authentication_data"}
