"""Output formats of `pyrite sub`: the payload, mosquitto_sub's -F formats, or JSON lines."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyrite.cli.errors import CommandError
from pyrite.cli.properties import NAMES
from pyrite.client import Properties
from pyrite.process.terminal import printable_bytes


@dataclass(slots=True)
class Received:
    """A received message and the time it arrived."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    packet_identifier: int
    properties: Properties
    time_ns: int


Format = Callable[[Received], bytes]

# A sequence in a format: % with flags, width, maximum width and a letter; @ or \ with a letter.
_SEQUENCE = re.compile(
    r"%(?P<flags>[-0]*)(?P<width>\d*)(?:\.(?P<maximum>\d+))?(?P<letter>.?)|@(.?)|\\(.?)", re.DOTALL
)
_ESCAPES = {"\\": b"\\", "0": b"\0", "a": b"\a", "e": b"\x1b", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v"}
_MAY_BE_PADDED = frozenset("ACEFIlmpRStxX")
_MAY_BE_CUT = frozenset("CIRt")
_MAY_BE_ZERO_PADDED = frozenset("AEFlmSxX")


def payload_only(message: Received) -> bytes:
    """The default: the payload, unchanged."""
    return message.payload


def for_terminal(form: Format) -> Format:
    """Escape control characters in the output of a format, so that the terminal does not act on them."""
    return lambda message: printable_bytes(form(message))


def topic_and_payload(message: Received) -> bytes:
    """-v: the topic, a space, the payload."""
    return message.topic.encode() + b" " + message.payload


def json_line(message: Received) -> bytes:
    """--json: the message as one JSON object.

    A payload that is not UTF-8 is encoded in base64, with "payload_encoding" set.
    """
    line: dict[str, Any] = {
        "topic": message.topic,
        "time": _local(message).isoformat(timespec="microseconds"),
        "qos": message.qos,
        "retain": message.retain,
    }
    _put_text_or_base64(line, "payload", "payload_encoding", message.payload)
    line["properties"] = _properties(message)
    return _dump(line)


def compile_format(text: str, terminal: bool = False) -> Format:
    """Compile a -F format; raises ValueError for an unknown sequence.

    With `terminal`, control characters in the message are escaped, but not those in the format itself.
    """
    pieces: list[Format] = []
    position = 0
    for match in _SEQUENCE.finditer(text):
        if match.start() > position:
            pieces.append(_constant(text[position : match.start()].encode("utf-8", "surrogateescape")))
        position = match.end()
        piece = _piece(match)
        pieces.append(for_terminal(piece) if terminal and match["letter"] else piece)
    if position < len(text):
        pieces.append(_constant(text[position:].encode("utf-8", "surrogateescape")))
    return lambda message: b"".join([piece(message) for piece in pieces])


def _piece(match: re.Match[str]) -> Format:
    sequence = match.group()
    if sequence in ("%", "@", "\\") or (sequence[0] == "%" and not match["letter"]):
        raise ValueError(f"incomplete sequence {sequence!r} at the end of the format")
    if sequence[0] == "\\":
        if sequence[1] not in _ESCAPES:
            raise ValueError(f"unknown escape {sequence!r} in the format")
        return _constant(_ESCAPES[sequence[1]])
    if sequence[0] == "@":
        return _time_piece(sequence[1])
    letter = match["letter"]
    if letter == "%":
        return _constant(b"%")
    if letter not in _PARAMETERS:
        raise ValueError(f"unknown sequence {sequence!r} in the format")
    show = _PARAMETERS[letter]
    width = int(match["width"] or 0) if letter in _MAY_BE_PADDED else 0
    maximum = int(match["maximum"]) if match["maximum"] and letter in _MAY_BE_CUT else None
    if not width and maximum is None:
        return show
    left = "-" in match["flags"]
    fill = b"0" if "0" in match["flags"] and not left and letter in _MAY_BE_ZERO_PADDED else b" "

    def padded(message: Received) -> bytes:
        value = show(message)
        if maximum is not None:
            # Cut by characters, not bytes, so that no character is split.
            value = value.decode("utf-8")[:maximum].encode("utf-8")
        missing = max(0, width - len(value.decode("utf-8", "replace")))
        return value + fill * missing if left else fill * missing + value

    return padded


def _constant(value: bytes) -> Format:
    return lambda _message: value


def _time_piece(letter: str) -> Format:
    if letter == "@":
        return _constant(b"@")
    if letter == "N":
        return lambda message: b"%09d" % (message.time_ns % 1_000_000_000)
    return lambda message: _local(message).strftime(f"%{letter}").encode()


def _local(message: Received) -> datetime:
    return datetime.fromtimestamp(message.time_ns / 1e9).astimezone()


def _of_property(name: str) -> Format:
    def show(message: Received) -> bytes:
        value = message.properties.get(name)
        if value is None:
            return b""
        if isinstance(value, list):
            return " ".join(str(each) for each in value).encode()
        return value if isinstance(value, bytes) else str(value).encode()

    return show


def _mosquitto_json(message: Received, payload: Any) -> bytes:
    line: dict[str, Any] = {
        "tst": _local(message).strftime("%Y-%m-%dT%H:%M:%S.%f%z"),
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.qos:
        line["mid"] = message.packet_identifier
    properties = _properties(message)
    if pairs := properties.pop("user-property", None):
        # mosquitto_sub prints one object, which cannot repeat a key.
        properties = {"user-properties": dict(pairs)} | properties
    if properties:
        line["properties"] = properties
    line["payload"] = payload
    return _dump(line)


def _quoted_payload(message: Received) -> bytes:
    text = message.payload.decode("utf-8", "replace")
    return _mosquitto_json(message, text if message.payload else None)


def _embedded_payload(message: Received) -> bytes:
    try:
        return _mosquitto_json(message, json.loads(message.payload) if message.payload else None)
    except (ValueError, RecursionError):
        raise CommandError(f"the payload of a message on {message.topic} is not valid JSON") from None


def _properties(message: Received) -> dict[str, Any]:
    """Return the properties under the names that -D uses."""
    shown: dict[str, Any] = {}
    for ours, name in NAMES.items():
        value = message.properties.get(ours)
        if isinstance(value, bytes):
            _put_text_or_base64(shown, name, f"{name}-encoding", value)
        elif value is not None:
            shown[name] = value
    return shown


def _put_text_or_base64(line: dict[str, Any], name: str, marker: str, value: bytes) -> None:
    try:
        line[name] = value.decode("utf-8")
    except UnicodeDecodeError:
        line[name] = base64.b64encode(value).decode("ascii")
        line[marker] = "base64"


def text_of(payload: bytes) -> str:
    """Decode a payload; a byte that is not UTF-8 becomes `\\xff`."""
    return payload.decode("utf-8", "backslashreplace")


def _dump(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


_PARAMETERS: dict[str, Format] = {
    "A": _of_property("topic_alias"),
    "C": _of_property("content_type"),
    "D": _of_property("correlation_data"),
    "E": _of_property("message_expiry"),
    "F": _of_property("payload_format"),
    "I": lambda message: _local(message).strftime("%Y-%m-%dT%H:%M:%S%z").encode(),
    "J": _embedded_payload,
    "j": _quoted_payload,
    "l": lambda message: b"%d" % len(message.payload),
    "m": lambda message: b"%d" % message.packet_identifier,
    "P": lambda message: " ".join(
        f"{key}:{value}" for key, value in message.properties.get("user_property", ())
    ).encode(),
    "p": payload_only,
    "q": lambda message: b"%d" % message.qos,
    "R": _of_property("response_topic"),
    "r": lambda message: b"%d" % message.retain,
    "S": _of_property("subscription_identifier"),
    "t": lambda message: message.topic.encode(),
    "U": lambda message: b"%d.%09d" % divmod(message.time_ns, 1_000_000_000),
    "X": lambda message: message.payload.hex().upper().encode(),
    "x": lambda message: message.payload.hex().encode(),
}
