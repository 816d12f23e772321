"""A client of the line protocol on a transport that records what the broker sends."""

from __future__ import annotations

from typing import NamedTuple

from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.line.options import LineOptions
from tests.support.core import Core, RecordingTransport


class Came(NamedTuple):
    """A frame from the broker: its words, and its payload if it has one."""

    text: str
    payload: bytes | None = None


def split(data: bytes) -> list[Came]:
    """Split what the broker sent into frames; they must be whole."""
    found = []
    at = 0
    while at < len(data):
        stop = data.index(b"\n", at)
        text = data[at:stop].decode()
        at = stop + 1
        words = text.split(" ")
        number = {"Message": 2, "List": 1}.get(words[0])
        if number is None:
            found.append(Came(text))
            continue
        length = int(words[number])
        assert data[at + length : at + length + 1] == b"\n"
        found.append(Came(text, data[at : at + length]))
        at += length + 1
    return found


class LineClient:
    """One client; `say` sends text as typed by a person."""

    def __init__(self, core: Core, options: LineOptions | None = None) -> None:
        self.core = core
        self.transport = RecordingTransport()
        self.connection = LineConnection(
            core.broker, options or LineOptions(), self.transport, "127.0.0.1", "127.0.0.1:5000"
        )

    def say(self, *lines: str | bytes) -> list[Came]:
        """Send lines in one piece, and return the frames that came since the last call."""
        data = b"".join((one if isinstance(one, bytes) else one.encode()) + b"\n" for one in lines)
        return self.send(data)

    def send(self, data: bytes) -> list[Came]:
        """Send bytes, and return the frames that came since the last call."""
        self.connection.feed(data)
        self.core.flush()
        return self.came()

    def came(self) -> list[Came]:
        """Return the frames that came since the last call."""
        self.core.flush()
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return split(data)
