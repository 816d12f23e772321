"""MQTT 5 properties on the command line: `-D COMMAND NAME VALUE`, as mosquitto's tools take them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paho.mqtt.exception import MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PACKET_TYPES = {
    "connect": PacketTypes.CONNECT,
    "publish": PacketTypes.PUBLISH,
    "subscribe": PacketTypes.SUBSCRIBE,
    "unsubscribe": PacketTypes.UNSUBSCRIBE,
    "disconnect": PacketTypes.DISCONNECT,
    "will": PacketTypes.WILLMESSAGE,
}

# These belong to the packet, but only a server may send them: [MQTT-3.3.4-6] and section 3.14.2.2.5.
_FROM_SERVERS_ONLY = {("publish", "subscription-identifier"), ("disconnect", "server-reference")}

# The types of section 2.2.2.2, at the positions at which paho's table of properties refers to them.
_BYTE, _TWO_BYTES, _FOUR_BYTES, _VARIABLE_BYTES, _BINARY, _STRING, _PAIR = range(7)
_LARGEST = {_BYTE: 0xFF, _TWO_BYTES: 0xFFFF, _FOUR_BYTES: 0xFFFF_FFFF, _VARIABLE_BYTES: 268_435_455}


@dataclass(frozen=True, slots=True)
class Property:
    """One `-D`: the packet it belongs to, its name as the user wrote it, and its value."""

    command: str
    name: str
    value: Any


def names_of(command: str) -> dict[str, int]:
    """Return the properties that a client may put on this packet, each with its type."""
    table = Properties(PACKET_TYPES[command])  # type: ignore[no-untyped-call]
    names = {}
    for title, identifier in table.names.items():
        name = title.lower().replace(" ", "-")
        kind, packets = table.properties[identifier]
        if PACKET_TYPES[command] in packets and (command, name) not in _FROM_SERVERS_ONLY:
            names[name] = kind
    return names


def parse_property(words: Sequence[str]) -> Property:
    """Read the words after `-D`; a ValueError says what is wrong with them."""
    if len(words) < 2:
        raise ValueError("expected COMMAND NAME VALUE, for example: publish content-type text/plain")
    command, name, *values = words
    if command not in PACKET_TYPES:
        raise ValueError(f"unknown command {command!r}: choose from {', '.join(PACKET_TYPES)}")
    names = names_of(command)
    if name not in names:
        raise ValueError(f"{command} has no property {name!r}: choose from {', '.join(sorted(names))}")
    kind = names[name]
    if kind == _PAIR and len(values) != 2:
        raise ValueError(f"{command} {name} takes a key and a value, not {len(values)} words")
    if kind != _PAIR and len(values) != 1:
        raise ValueError(f"{command} {name} takes one value, not {len(values)} words")
    parsed = Property(command, name, _value(f"{command} {name}", kind, values))
    _set(Properties(PACKET_TYPES[command]), parsed)  # type: ignore[no-untyped-call]
    return parsed


def build_properties(command: str, given: Iterable[Property]) -> Properties | None:
    """Gather the properties given for one packet; None when there are none."""
    properties = Properties(PACKET_TYPES[command])  # type: ignore[no-untyped-call]
    for each in given:
        if each.command == command:
            _set(properties, each)
    return None if properties.isEmpty() else properties  # type: ignore[no-untyped-call]


class PropertyAction(argparse.Action):
    """Argparse's side of `-D`: it takes three words, or four for a user property."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Add one property to those already given."""
        try:
            parsed = parse_property(list(values or ()))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        given: list[Property] = list(getattr(namespace, self.dest))
        repeatable = parsed.name == "user-property"
        if not repeatable and any((old.command, old.name) == (parsed.command, parsed.name) for old in given):
            raise argparse.ArgumentError(self, f"{parsed.command} {parsed.name} may be given only once")
        setattr(namespace, self.dest, [*given, parsed])


def _value(what: str, kind: int, words: list[str]) -> Any:
    if kind == _PAIR:
        return (_text(what, words[0]), _text(what, words[1]))
    if kind == _STRING:
        return _text(what, words[0])
    if kind == _BINARY:
        binary = os.fsencode(words[0])
        if len(binary) > 0xFFFF:
            raise ValueError(f"{what} is {len(binary)} bytes long; 65535 is the most")
        return binary
    try:
        number = int(words[0])
    except ValueError:
        raise ValueError(f"{what} takes a number, not {words[0]!r}") from None
    if not 0 <= number <= _LARGEST[kind]:
        raise ValueError(f"{what} must be between 0 and {_LARGEST[kind]}, not {number}")
    return number


def _text(what: str, word: str) -> str:
    try:
        encoded = word.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be valid UTF-8") from None
    if len(encoded) > 0xFFFF:
        raise ValueError(f"{what} is {len(encoded)} bytes long; 65535 is the most")
    return word


def _set(properties: Properties, given: Property) -> None:
    attribute = given.name.title().replace("-", "")
    try:
        setattr(properties, attribute, given.value)
    except MQTTException as error:
        reason = str(error).replace(f"{attribute} property value", f"{given.command} {given.name}")
        raise ValueError(reason) from None
