"""A connection whose client speaks lines of its own, translated into the line protocol and back."""

from __future__ import annotations

from pyrite.broker.core import Broker
from pyrite.broker.link import Transport
from pyrite.protocols.line import frames
from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.line.frames import Line
from pyrite.protocols.line.options import LineOptions

MAX_LINE = 1024 * 1024
NO_PINGS = LineOptions(ping_interval=10 * 365 * 86_400.0)


class TranslatingConnection(LineConnection):
    """One client: `request` takes its lines, `answer` what the line protocol says."""

    __slots__ = ("_rest",)

    def __init__(self, broker: Broker, transport: Transport, address: str, peer: str) -> None:
        super().__init__(broker, NO_PINGS, transport, address, peer)
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take lines, and do what they ask for."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self.fail("too-long", f"a line has at most {MAX_LINE} bytes")
            return
        for line in lines:
            if line.strip():
                self.request(line.rstrip(b"\r"))
        if not data:
            self.ask(b"")

    def write(self, data: bytes | bytearray) -> None:
        """Translate what the line protocol says."""
        for frame in frames.frames_in(bytes(data)):
            head, _, payload = frame.partition(b"\n")
            self.answer(frames.parse(head), payload[:-1])

    def request(self, line: bytes) -> None:
        """Do what a line of the client asks for."""
        raise NotImplementedError

    def answer(self, line: Line, payload: bytes) -> None:
        """Tell the client what the line protocol says."""
        raise NotImplementedError

    def ask(self, frame: bytes) -> None:
        """Ask for something in the line protocol."""
        super().feed(frame)

    def tell(self, line: bytes) -> None:
        """Send the client a line."""
        super().write(line + b"\n")

    def part(self, goodbye: bytes) -> None:
        """Send the client its last line, and end the connection."""
        self.tell(goodbye)
        self.leave(send_will=False)
        self.close()
