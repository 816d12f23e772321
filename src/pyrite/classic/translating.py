"""A connection whose client speaks lines of its own, translated into the line protocol and back."""

from __future__ import annotations

from pyrite.broker.core import TURN, Broker
from pyrite.broker.link import Transport
from pyrite.protocols.line import frames
from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.line.frames import Line
from pyrite.protocols.line.options import LineOptions
from pyrite.protocols.states import CLOSED

MAX_LINE = 1024 * 1024
"""Bytes of a client's line. A longer one is answered with an error, and passed over."""
NO_PINGS = LineOptions(ping_interval=10 * 365 * 86_400.0)


class TranslatingConnection(LineConnection):
    """One client, served in turns: a request is answered before the next one is looked at.

    `request` takes a line of the client, `answer` what the line protocol says to it. Whoever sends the last
    line of an answer calls `answered`.
    """

    __slots__ = ("_rest", "_too_long", "_waits", "busy")

    def __init__(self, broker: Broker, transport: Transport, address: str, peer: str) -> None:
        super().__init__(broker, NO_PINGS, transport, address, peer)
        self._rest = bytearray()
        """What came and is not answered yet."""
        self.busy = False
        """Whether a request is being answered."""
        self._waits = False
        """Whether the client is not read from until then."""
        self._too_long = False
        """Whether the line that is coming in is too long, so that its beginning was thrown away."""

    # What a classic has of its own

    def request(self, line: bytes) -> None:
        """Do what a line of the client asks for."""
        raise NotImplementedError

    def answer(self, line: Line, payload: bytes) -> None:
        """Tell the client what the line protocol says."""
        raise NotImplementedError

    def refuse(self, text: str) -> None:
        """Tell the client what is wrong with its request."""
        raise NotImplementedError

    # Lines in

    def feed(self, data: bytes) -> None:
        """Take bytes that came from the client."""
        self._rest += data
        if not data:
            self.ask(b"")  # to go on where the line protocol was interrupted
        self._take_lines()

    def _take_lines(self) -> None:
        """Handle lines, until one of them waits for its answer or the turn is over."""
        until = self.broker.clock() + TURN
        while not self.busy and not self.interrupted and self.state is not CLOSED:
            end = self._rest.find(b"\n")
            if end < 0:
                if len(self._rest) > MAX_LINE:
                    self._too_long = True
                    self._rest.clear()
                return
            line = bytes(self._rest[:end]).rstrip(b"\r")
            del self._rest[: end + 1]
            if self._too_long or end > MAX_LINE:
                self._too_long = False
                self.refuse(f"a line has at most {MAX_LINE} bytes")
            elif line.strip():
                self.busy = True
                self.request(line)
                if self.busy:
                    self._waits = True
                    self.transport.pause_reading()
            if self._rest and self.broker.clock() > until:
                self.hold()
                self.broker.interrupted(self)

    def answered(self) -> None:
        """Take the next request: the last one is answered."""
        self.busy = False
        if self._waits:
            self._waits = False
            self.broker.soon(self._go_on_reading)

    def _go_on_reading(self) -> None:
        self._take_lines()
        self.resume_reading()

    def resume_reading(self) -> None:
        """Have the client read from again, unless its last request is not answered yet."""
        if not self.busy:
            super().resume_reading()

    # Lines out

    def write(self, data: bytes | bytearray) -> None:
        """Translate what the line protocol says."""
        for frame in frames.frames_in(bytes(data)):
            head, _, payload = frame.partition(b"\n")
            self.answer(frames.parse(head), payload[:-1])

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
