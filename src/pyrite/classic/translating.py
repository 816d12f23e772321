"""A connection that translates a client's own line format to the line protocol and back."""

from __future__ import annotations

from pyrite.broker.core import Broker
from pyrite.broker.link import Transport
from pyrite.broker.timers import TURN
from pyrite.protocols.line import frames
from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.line.frames import Line
from pyrite.protocols.line.options import LineOptions
from pyrite.protocols.states import CLOSED

MAX_LINE = 1024 * 1024
"""Maximum length of a client's line in bytes. A longer one is answered with an error and skipped."""
NO_PINGS = LineOptions(ping_interval=10 * 365 * 86_400.0)


class TranslatingConnection(LineConnection):
    """One client. A request is answered before the next one is parsed.

    `request` receives a line of the client, `answer` a frame of the line protocol for it. The subclass calls
    `answered` after the last line of an answer.
    """

    __slots__ = ("_rest", "_too_long", "_waits", "busy")

    def __init__(self, broker: Broker, transport: Transport, address: str, peer: str) -> None:
        super().__init__(broker, NO_PINGS, transport, address, peer)
        self._rest = bytearray()
        """Received bytes that were not processed yet."""
        self.busy = False
        """True while a request is being answered."""
        self._waits = False
        """True while reading is paused for that."""
        self._too_long = False
        """True if the beginning of an overlong line was discarded."""

    # Implemented by each classic system

    def request(self, line: bytes) -> None:
        """Handle a line of the client."""
        raise NotImplementedError

    def answer(self, line: Line, payload: bytes) -> None:
        """Translate a frame for the client."""
        raise NotImplementedError

    def refuse(self, text: str) -> None:
        """Report an error to the client."""
        raise NotImplementedError

    # Input

    def feed(self, data: bytes) -> None:
        """Process bytes from the client."""
        self._rest += data
        if not data:
            self.ask(b"")  # continue where the line protocol was interrupted
        self._take_lines()

    def _take_lines(self) -> None:
        """Handle lines until one has to wait for its answer, or the turn is over."""
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
                self.broker.turns.add(self)

    def answered(self) -> None:
        """Continue with the next request after the last line of an answer."""
        self.busy = False
        if self._waits:
            self._waits = False
            self.broker.turns.soon(self._go_on_reading)

    def _go_on_reading(self) -> None:
        self._take_lines()
        self.resume_reading()

    def resume_reading(self) -> None:
        """Resume reading, unless a request is still being answered."""
        if not self.busy:
            super().resume_reading()

    # Output

    def write(self, data: bytes | bytearray) -> None:
        """Translate frames of the line protocol."""
        for frame in frames.frames_in(bytes(data)):
            head, _, payload = frame.partition(b"\n")
            self.answer(frames.parse(head), payload[:-1])

    def ask(self, frame: bytes) -> None:
        """Send a frame of the line protocol to the broker."""
        super().feed(frame)

    def tell(self, line: bytes) -> None:
        """Send the client a line."""
        super().write(line + b"\n")

    def part(self, goodbye: bytes) -> None:
        """Send the client its last line and close the connection."""
        self.tell(goodbye)
        self.leave(send_will=False)
        self.close()
