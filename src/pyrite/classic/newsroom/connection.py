"""A connection of the newsroom, translated to the line protocol and back.

A message is a line: NAME|PUB|SUBJECT|CONTENT, NAME|SUB|SUBJECT, NAME|RECON or NAME|DISC. The server sends
CONN_ACK to each client that connects. It confirms a message by sending it back once it is done, followed by
SUB_ACK, CON_ACK or DISC_ACK; a refused message is answered with ERROR and a text instead. A subscriber
receives MSG|SUBJECT|CONTENT.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyrite.broker.core import Broker
from pyrite.broker.link import Transport
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.classic.translating import TranslatingConnection
from pyrite.protocols.line import frames
from pyrite.protocols.line.frames import Line

Clean = Callable[[Callable[[], object]], object]

SUBJECTS = ["NEWS", "WEATHER"]
DAY = 86_400


class NewsroomConnection(TranslatingConnection):
    """One publisher or subscriber."""

    __slots__ = ("_action", "_clean", "_early", "_message", "_sent")

    def __init__(self, broker: Broker, clean: Clean, transport: Transport, address: str, peer: str) -> None:
        super().__init__(broker, transport, address, peer)
        self._clean = clean
        """Expire the old messages of clients that are away, then make a call."""
        self._message = b""
        """The message being answered."""
        self._action = b""
        self._early: list[bytes] = []
        """Messages that arrived before SUB_ACK was sent, which goes first."""
        self._sent: list[int] = []
        """Numbers of the messages in the transport's buffer."""
        self.tell(b"CONN_ACK")

    def request(self, line: bytes) -> None:
        """Handle a message of the client."""
        name, *fields = line.split(b"|", 3)
        self._message, self._action = line, fields[0] if fields else name
        match self._action, fields[1:]:
            case b"DISC", []:
                self._arrived()
                self.tell(line)
                self.part(b"DISC_ACK")
            case b"RECON", [] if name.strip():
                self._clean(partial(self._come_back, name))
            case b"SUB", [subject] if name.strip():
                self._ask_as(name, subject, b"Subscribe %s ack from=earliest\n" % frames.escape(subject))
            case b"PUB", [subject, content] if name.strip():
                self._ask_as(name, subject, frames.frame("Publish", subject, payload=content))
            case b"DISC" | b"RECON" | b"SUB" | b"PUB", _:
                self.refuse("expected NAME|PUB|SUBJECT|CONTENT, NAME|SUB|SUBJECT, NAME|RECON or NAME|DISC")
            case _:
                action = self._action[:40].decode("utf-8", "replace")
                self.refuse(f"unknown action {action!r}: expected DISC, RECON, SUB or PUB")

    def _ask_as(self, name: bytes, subject: bytes, frame: bytes) -> None:
        """Send a command for a subject, in a client's name."""
        if subject not in [one.encode() for one in SUBJECTS]:
            shown = subject[:40].decode("utf-8", "replace")
            self.refuse(f"unlisted subject {shown!r}: expected {' or '.join(SUBJECTS)}")
            return
        if self.session is None:
            self.ask(frames.line("Connect", name, clean=True, ttl=DAY))
        elif self.session.client_id.encode() != name:
            self.refuse(f"this connection is that of {self.session.client_id}")
            return
        self.ask(frame)

    def _come_back(self, name: bytes) -> None:
        """Restore a client's subscriptions and deliver what it missed."""
        if self.session is not None:
            self.refuse(f"{self.session.client_id} is connected")
        else:
            self.ask(frames.line("Connect", name, resume=True, ttl=DAY))

    def answer(self, line: Line, payload: bytes) -> None:
        """Translate a frame of the line protocol for the client."""
        match line.command:
            case "PubAck":
                self._confirm()
            case "SubAck":
                self._confirm(b"SUB_ACK")
            case "Ack" if self._action == b"RECON":
                self._confirm(b"CON_ACK")
            case "Message":
                message = b"|".join([b"MSG", line.words[0], payload.replace(b"\n", b" ")])
                if self.busy and self._action == b"SUB":
                    self._early.append(message)
                else:
                    self.tell(message)
            case "Error" if self.busy:  # otherwise the connection ends, which the client sees
                self.refuse(" ".join(word.decode("utf-8", "replace") for word in line.words[1:]))

    def _confirm(self, *lines: bytes) -> None:
        """Send a message back, and its acknowledgement."""
        self._reply(self._message, *lines)

    def refuse(self, text: str) -> None:
        self._reply(f"ERROR {text}".encode())

    def _reply(self, *lines: bytes) -> None:
        """Send the client an answer, then the messages held back for it."""
        for line in (*lines, *self._early):
            self.tell(line)
        self._early.clear()
        self.answered()

    # Clients send no acknowledgements: a message counts as received once the transport has sent it.

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        if qos:
            self._sent += range(first_id, first_id + stop - start)
            self.broker.turns.soon(partial(self.broker.journal.after, self._look_what_arrived))
        return super().send(batch, start, stop, target, qos, first_id, dup)

    def _look_what_arrived(self) -> None:
        self.flush()
        if not self.chunks and not self.transport.get_write_buffer_size():
            self._arrived()

    def _arrived(self) -> None:
        """Acknowledge everything that was sent."""
        if self.session is not None:
            sent, self._sent = self._sent, []
            self.session.acknowledge(sent)

    def drained(self) -> None:
        """Send the messages that were held back while the client was slow."""
        self._look_what_arrived()
        super().drained()
