"""MQTT 5 properties on the command line: `-D COMMAND NAME VALUE`, as in mosquitto's tools."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

COMMANDS = ("connect", "publish", "subscribe", "unsubscribe", "disconnect", "will")


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a property (2.2.2.2). Numbers have a largest encodable value and an allowed range."""

    name: str
    largest: int = 0
    least: int = 0
    most: int = 0


def _number(largest: int, least: int = 0, most: int | None = None) -> Kind:
    return Kind("number", largest, least, largest if most is None else most)


_STRING, _BINARY, _PAIR = Kind("string"), Kind("binary"), Kind("pair")
_BIT, _TWO_BYTES, _FOUR_BYTES = _number(0xFF, most=1), _number(0xFFFF), _number(0xFFFF_FFFF)

# Name for -D, name in the client, type, and the client packets that may carry the property (table 2-4).
_TABLE: tuple[tuple[str, str, Kind, tuple[str, ...]], ...] = (
    ("payload-format-indicator", "payload_format", _BIT, ("publish", "will")),
    ("message-expiry-interval", "message_expiry", _FOUR_BYTES, ("publish", "will")),
    ("content-type", "content_type", _STRING, ("publish", "will")),
    ("response-topic", "response_topic", _STRING, ("publish", "will")),
    ("correlation-data", "correlation_data", _BINARY, ("publish", "will")),
    ("subscription-identifier", "subscription_identifier", _number(268_435_455, 1), ("subscribe",)),
    ("session-expiry-interval", "session_expiry", _FOUR_BYTES, ("connect", "disconnect")),
    ("authentication-method", "authentication_method", _STRING, ("connect",)),
    ("authentication-data", "authentication_data", _BINARY, ("connect",)),
    ("request-problem-information", "request_problem_information", _BIT, ("connect",)),
    ("will-delay-interval", "will_delay", _FOUR_BYTES, ("will",)),
    ("request-response-information", "request_response_information", _BIT, ("connect",)),
    ("reason-string", "reason_string", _STRING, ("disconnect",)),
    ("receive-maximum", "receive_maximum", _number(0xFFFF, 1), ("connect",)),
    ("topic-alias-maximum", "topic_alias_maximum", _TWO_BYTES, ("connect",)),
    ("topic-alias", "topic_alias", _number(0xFFFF, 1), ("publish",)),
    ("user-property", "user_property", _PAIR, COMMANDS),
    ("maximum-packet-size", "maximum_packet_size", _number(0xFFFF_FFFF, 1), ("connect",)),
)
NAMES = {ours: name for name, ours, _, _ in _TABLE}
"""The -D name of each property by its name in the client, in the order of the specification."""
_OURS = {name: ours for ours, name in NAMES.items()}


@dataclass(frozen=True, slots=True)
class Property:
    """One `-D` option: packet, property name and value."""

    command: str
    name: str
    value: Any


def parse_property(words: Sequence[str]) -> Property:
    """Parse the words after `-D`; raises ValueError."""
    if len(words) < 2:
        raise ValueError("expected COMMAND NAME VALUE, for example: publish content-type text/plain")
    command, name, *values = words
    if command not in COMMANDS:
        raise ValueError(f"unknown command {command!r}: expected one of {', '.join(COMMANDS)}")
    kinds = {known: kind for known, _, kind, commands in _TABLE if command in commands}
    if name not in kinds:
        raise ValueError(f"{command} has no property {name!r}: expected one of {', '.join(sorted(kinds))}")
    kind = kinds[name]
    if kind is _PAIR and len(values) != 2:
        raise ValueError(f"{command} {name} takes a key and a value, not {len(values)} words")
    if kind is not _PAIR and len(values) != 1:
        raise ValueError(f"{command} {name} takes one value, not {len(values)} words")
    return Property(command, name, _value(f"{command} {name}", kind, values))


def properties_of(command: str, given: Iterable[Property]) -> dict[str, Any]:
    """Return the properties for one packet, under the client's names."""
    properties: dict[str, Any] = {}
    for each in given:
        if each.command == command:
            if each.name == "user-property":
                properties.setdefault("user_property", []).append(each.value)
            else:
                properties[_OURS[each.name]] = each.value
    return properties


class PropertyAction(argparse.Action):
    """The argparse action of `-D`, which takes three words, or four for a user property."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        try:
            parsed = parse_property(list(values or ()))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        given: list[Property] = list(getattr(namespace, self.dest))
        repeatable = parsed.name == "user-property"
        if not repeatable and any((old.command, old.name) == (parsed.command, parsed.name) for old in given):
            raise argparse.ArgumentError(self, f"{parsed.command} {parsed.name} may be given only once")
        setattr(namespace, self.dest, [*given, parsed])


def _value(what: str, kind: Kind, words: list[str]) -> Any:
    if kind is _PAIR:
        return (_text(what, words[0]), _text(what, words[1]))
    if kind is _STRING:
        return _text(what, words[0])
    if kind is _BINARY:
        binary = os.fsencode(words[0])
        if len(binary) > 0xFFFF:
            raise ValueError(f"{what} is {len(binary)} bytes long; the maximum is 65535")
        return binary
    try:
        number = int(words[0])
    except ValueError:
        raise ValueError(f"{what} must be a number, not {words[0]!r}") from None
    if not 0 <= number <= kind.largest:
        raise ValueError(f"{what} must be from 0 to {kind.largest}, not {number}")
    if not kind.least <= number <= kind.most:
        raise ValueError(f"{what} must be from {kind.least} to {kind.most}, not {number}")
    return number


def _text(what: str, word: str) -> str:
    try:
        encoded = word.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be valid UTF-8") from None
    if len(encoded) > 0xFFFF:
        raise ValueError(f"{what} is {len(encoded)} bytes long; the maximum is 65535")
    return word
