"""Parse and write frames of the line protocol, for server and clients.

A frame is a line of words. In some commands, one word is the length of a payload that follows the line:

    frame    = line LF [ payload LF ]
    line     = command *( SP word )
    word     = 1*( %x21-7E / %x80-FF ), where %XX stands for any other byte, and %25 for %

Lines end with LF. A CR before it is ignored, so that telnet works as well as nc. Empty lines are ignored.
"""

from __future__ import annotations

import re
from binascii import a2b_qp
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyrite.errors import PyriteError

MAX_LINE = 256 * 1024
"""Bytes of a line. An escaped topic of 65,535 bytes may take three times as many bytes."""

MAX_WORDS = 1_000
"""Words of a line after its command, such as the numbers and ranges of one Ack."""

MAX_DATAGRAM = 65_507
"""Bytes of the largest UDP datagram."""

COMMANDS = (
    "Connect",
    "Publish",
    "Subscribe",
    "Unsubscribe",
    "Message",
    "Ack",
    "SubAck",
    "PubAck",
    "Ping",
    "Pong",
    "List",
    "Create",
    "Delete",
    "Register",
    "Unregister",
    "Pull",
    "Disconnect",
    "Error",
)
_CANONICAL = {name.lower(): name for name in COMMANDS}
_UNSAFE = re.compile(rb"[\x00-\x20%\x7f]")
_ESCAPES = [(bytes((byte,)), b"%%%02X" % byte) for byte in (*b"%", *range(0x21), 0x7F)]
"""The percent sign comes first, because every other escape contains it."""
_HALF_ESCAPED = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class FrameError(PyriteError):
    """An invalid frame, with a code for programs and a text for people."""

    def __init__(self, code: str, text: str, ends: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.ends = ends
        """Whether the connection must end, because the start of the next frame is unknown."""


class Line(NamedTuple):
    """A parsed line."""

    command: str
    """Spelled as in COMMANDS if it is known, else as received."""
    words: list[bytes]

    def options(self, start: int, known: Iterable[str]) -> dict[str, str]:
        """Return the options, `name` or `name=value`, from word `start` on."""
        found: dict[str, str] = {}
        for number, word in enumerate(self.words[start:], start + 1):
            name, _, value = word.partition(b"=")
            text = name.decode("ascii", "replace").lower()
            # Never show a word of Connect: it may be a password.
            shown = f"word {number}" if self.command == "Connect" else _show(word)
            if text not in known:
                expected = ", ".join(known) or "nothing more"
                raise FrameError("bad-option", f"{self.command}: {shown} is unknown: expected {expected}")
            try:
                found[text] = unescape(value).decode()
            except (ValueError, UnicodeDecodeError):
                raise FrameError("bad-option", f"{self.command}: {shown} is not text") from None
        return found

    def word(self, number: int, what: str) -> bytes:
        """Return an unescaped word; error messages call it `what`."""
        try:
            return unescape(self.words[number])
        except IndexError:
            raise FrameError("missing-word", f"{self.command}: expected {what}") from None
        except ValueError as error:
            raise FrameError("bad-word", f"{self.command}: {what}: {error}") from None

    def number(self, number: int, what: str) -> int:
        """Return a word as a number."""
        word = self.word(number, what)
        if not word.isdigit() or len(word) > 18:
            raise FrameError("bad-number", f"{self.command}: expected {what}, a number, not {_show(word)}")
        return int(word)


def parse(line: bytes) -> Line:
    """Parse a line without its end. Everything after MAX_WORDS words is returned as one more word."""
    words = line.split(None, MAX_WORDS + 1)
    command = words[0].decode("ascii", "replace") if words else ""
    return Line(_CANONICAL.get(command.lower(), command), words[1:])


def escape(text: bytes) -> bytes:
    """Escape bytes for use as a word."""
    if _UNSAFE.search(text) is not None:
        for byte, escaped in _ESCAPES:  # ten times faster than a call per byte
            text = text.replace(byte, escaped)
    return text


def unescape(word: bytes) -> bytes:
    """Return the bytes of an escaped word; raise ValueError for a % without two digits."""
    if b"%" not in word:
        return word
    if _HALF_ESCAPED.search(word) is not None:
        raise ValueError("% must be followed by two hexadecimal digits; write %25 for %")
    # Quoted-printable differs only in its escape character, and its decoder is written in C.
    return a2b_qp(word.replace(b"=", b"=3D").replace(b"%", b"="))


def line(command: str, *words: str | bytes | int, **options: str | bytes | int | bool | None) -> bytes:
    """Return a line with escaped words and options: a frame, or the first line of one with a payload."""
    parts = [command.encode()]
    parts += [escape(_bytes(word)) for word in words]
    for name, value in options.items():
        if value is True:
            parts.append(name.encode())
        elif value is not None and value is not False:
            parts.append(name.encode() + b"=" + escape(_bytes(value)))
    return b" ".join(parts) + b"\n"


def frame(
    command: str, *words: str | bytes | int, payload: bytes, **options: str | bytes | int | bool | None
) -> bytes:
    """Return a frame with a payload; the payload's length is added as the last word."""
    return line(command, *words, len(payload), **options) + payload + b"\n"


def payload_size(said: Line) -> int | None:
    """Return the length of the payload that follows a server's line; None if the command has none."""
    match said.command:
        case "Message":
            return int(said.words[1])
        case "List":
            return int(said.words[0])
    return None


def frames_in(data: bytes) -> Iterator[bytes]:
    """Split a server's output, which must end with a complete frame, into frames."""
    at = 0
    while at < len(data):
        stop = data.index(b"\n", at) + 1
        if data.startswith((b"Message ", b"List "), at):
            stop += (payload_size(parse(data[at:stop])) or 0) + 1
        yield data[at:stop]
        at = stop


def error(code: str, text: str) -> bytes:
    """Return an Error frame: a code for programs, and a text for people."""
    return b"Error " + code.encode() + b" " + b" ".join(text.encode().split()) + b"\n"


def _bytes(value: str | bytes | int) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _show(word: bytes) -> str:
    return repr(word[:40].decode("utf-8", "replace"))
