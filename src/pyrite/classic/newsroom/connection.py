"""A connection of the newsroom: its messages, translated into the line protocol and back.

A message is a line: NAME|PUB|SUBJECT|CONTENT, NAME|SUB|SUBJECT, NAME|RECON or NAME|DISC. The server sends
CONN_ACK to each client that connects. It confirms a message, once it is done, by sending it back; then come
SUB_ACK, CON_ACK or DISC_ACK. A refused message is answered with ERROR and a text instead. A subscriber is
sent MSG|SUBJECT|CONTENT.
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
        """Have clients that are away miss what is too old, then make a call."""
        self._message = b""
        """What is being answered."""
        self._action = b""
        self._early: list[bytes] = []
        """Messages that came before SUB_ACK, which goes first."""
        self._sent: list[int] = []
        """Numbers of messages that the transport was given and may not have sent yet."""
        self.tell(b"CONN_ACK")

    def request(self, line: bytes) -> None:
        """Do what a message asks for."""
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
        """Ask for something on a subject, in the name of a client."""
        if subject not in (one.encode() for one in SUBJECTS):
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
        """Give a client its subscriptions again, and what it missed."""
        if self.session is not None:
            self.refuse(f"{self.session.client_id} is connected")
        else:
            self.ask(frames.line("Connect", name, resume=True, ttl=DAY))

    def answer(self, line: Line, payload: bytes) -> None:
        """Tell the client what the line protocol says."""
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
            case "Error" if self.busy:  # else the connection ends, and the client sees that
                self.refuse(" ".join(word.decode("utf-8", "replace") for word in line.words[1:]))

    def _confirm(self, *lines: bytes) -> None:
        """Send a message back, and its acknowledgement."""
        self._reply(self._message, *lines)

    def refuse(self, text: str) -> None:
        """Tell the client what is wrong with its message."""
        self._reply(f"ERROR {text}".encode())

    def _reply(self, *lines: bytes) -> None:
        """Send the client an answer, and then what came for it meanwhile."""
        for line in (*lines, *self._early):
            self.tell(line)
        self._early.clear()
        self.answered()

    # The client acknowledges nothing: a message has arrived when the transport has sent it.

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages."""
        if qos:
            self._sent += range(first_id, first_id + stop - start)
            self.broker.soon(partial(self.broker.journal.after, self._look_what_arrived))
        return super().send(batch, start, stop, target, qos, first_id, dup)

    def _look_what_arrived(self) -> None:
        self.flush()
        if not self.chunks and not self.transport.get_write_buffer_size():
            self._arrived()

    def _arrived(self) -> None:
        """Note that everything that was sent has arrived."""
        if self.session is not None:
            sent, self._sent = self._sent, []
            self.session.acknowledge(sent)

    def drained(self) -> None:
        """Send what was held back while the client was slow."""
        self._look_what_arrived()
        super().drained()
