"""The line protocol for one client over UDP, with one frame per datagram.

A new address must first prove that it receives datagrams, by answering `Ping TOKEN` with `Pong TOKEN`. Until
then the broker sends it no more bytes than it has received from it, and keeps only its last datagram, which
is handled after the proof.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from pyrite.broker.access import NOT_AUTHORIZED, Credentials
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.line.duplicates import RememberedAnswers
from pyrite.protocols.line.frames import MAX_DATAGRAM, Line, error, frames_in, line, parse
from pyrite.protocols.line.messages import numbered_message, single_messages
from pyrite.protocols.line.retransmission import WINDOW, Retransmission
from pyrite.protocols.states import CLOSED

if TYPE_CHECKING:
    from pyrite.broker.session import Session
    from pyrite.protocols.line.datagrams import Address, Datagrams

GRACE = 2.0
"""Seconds after the timeout during which a client may return. Nothing is sent to it, and its state is
kept."""
MAX_REMEMBERED = 2_048
"""Bytes of the last datagram kept for a stranger."""


class DatagramTransport:
    """Sends each frame of one client as a datagram."""

    __slots__ = ("_address", "_datagrams", "budget")

    def __init__(self, datagrams: Datagrams, address: Address) -> None:
        self._datagrams = datagrams
        self._address = address
        self.budget: int | None = 0
        """Bytes that may still be sent to a stranger; None for a proven client."""

    def write(self, data: bytes | bytearray) -> None:
        """Send frames; drop those that exceed a stranger's budget."""
        for frame in frames_in(bytes(data)):
            if self.budget is not None:
                if len(frame) > self.budget:
                    continue
                self.budget -= len(frame)
            self._datagrams.put(frame, self._address)

    def get_write_buffer_size(self) -> int:
        """Return 0: a datagram is sent soon, or lost."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: all clients share one socket."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def input_has_ended(self) -> bool:
        """Return False: datagrams have no end."""
        return False

    def close(self) -> None:
        """Forget the client."""
        self._datagrams.forget(self._address)

    def abort(self) -> None:
        """Forget the client."""
        self._datagrams.forget(self._address)


class DatagramConnection(LineConnection):
    """One client over UDP."""

    __slots__ = ("_answered", "_datagrams", "_proved", "_remembered", "_socket", "_token", "_unacknowledged")

    def __init__(self, datagrams: Datagrams, address: Address) -> None:
        self._datagrams = datagrams
        self._socket = DatagramTransport(datagrams, address)
        where = f"{address[0]}:{address[1]}"
        super().__init__(datagrams.broker, datagrams.options, self._socket, address[0], where)
        self._proved = False
        """Whether the client has proved that it receives datagrams at its address."""
        self._token = secrets.token_urlsafe(4).encode()
        self._remembered: bytes | None = None
        """The last datagram of a stranger, handled after its proof."""
        self._unacknowledged = Retransmission(self)
        self._answered = RememberedAnswers()
        self.set_timer()

    def watched(self, event: str) -> None:
        """Do nothing: UDP has no connections to report."""

    # Datagrams in

    def take(self, data: bytes) -> None:
        """Handle a datagram: one frame, whose last line end is optional."""
        was_alive, self.seen_at = self.is_alive, self.broker.now
        if not was_alive:
            self.due()  # sends the waiting messages
        if self._socket.budget is not None:
            self._socket.budget += len(data)
        asked = parse(data.partition(b"\n")[0])
        if not self._proved and self._proves(asked):
            self._admit()
        elif not self._proved:
            self._challenge(asked, data)
        if not self._proved:
            return
        if self._remembered is not None:
            remembered, self._remembered = self._remembered, None
            self._handle_datagram(remembered)
        if asked.command != "Pong":
            self._handle_datagram(data)

    def _challenge(self, asked: Line, data: bytes) -> None:
        """Challenge a stranger to prove that it receives datagrams at its address.

        A Ping shorter than the challenge is answered with Pong instead. A forgotten client sends a
        longer Ping: it gets the challenge, and learns that its subscriptions are gone.
        """
        assert self._socket.budget is not None
        challenge = line("Ping", self._token)
        if asked.command == "Ping" and len(challenge) > self._socket.budget:
            self._socket.write(line("Pong", *asked.words[:1]))
            return
        if len(data) <= MAX_REMEMBERED:
            self._remembered = data
        self._socket.write(challenge)

    def _proves(self, asked: Line) -> bool:
        return asked.command == "Pong" and asked.words[:1] == [self._token]

    def _admit(self) -> None:
        """Turn this stranger into a client, unless there are too many clients."""
        self._socket.budget = None
        full = self._datagrams.admit((self.credentials.address, int(self.peer.rpartition(":")[2])))
        if full:
            self.tell_refused(0, full)
            self.write(error("full", full))
            self.close()
        else:
            self._proved = True

    def _handle_datagram(self, data: bytes) -> None:
        if self.received is not None and len(self.received) > MAX_DATAGRAM:
            # Enough input waits for the journal already. UDP may lose datagrams, so drop this one.
            self.broker.figures.messages_dropped += 1
            return
        if self._answered.is_duplicate(data):
            answer = self._answered.answer_to(data)
            if answer is not None:
                self.write(answer)
            return
        self.feed(data if data.endswith(b"\n") else data + b"\n")
        if self.received is not None and not self.interrupted:
            self.received = None
            self.write(error("bad-frame", "expected one complete frame per datagram; is the length right?"))

    # What differs from a stream

    def send_answer(self, session: Session, answer: bytes, count: int = 1) -> None:
        """Send an answer, and remember it in case it is lost."""
        self._answered.remember(answer)
        super().send_answer(session, answer, count)

    def connected_again(self, client_id: str) -> None:
        """Answer a repeated Connect again: the first answer was lost."""
        if client_id != self.credentials.client_id:
            super().connected_again(client_id)
        self.say(line("Ack", "Connect", client_id, "resumed"))

    @property
    def default_ttl(self) -> int:
        """Seconds for which a session lasts if Connect has no `ttl`; it cannot end with a connection."""
        return int(self.options.udp_timeout) + 1

    @property
    def window(self) -> int:
        """The number of messages that may wait for the client's Ack."""
        return WINDOW

    @property
    def max_list(self) -> int:
        """Maximum size of an answer to List in bytes, as it is one datagram."""
        return MAX_DATAGRAM - len(line("List", MAX_DATAGRAM))

    # Messages out

    def can_take(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Return whether each message fits into a datagram."""
        if len(numbered_message(batch.part(0, 1), 2**63)) <= MAX_DATAGRAM:
            return True
        self._tell_too_long(batch)
        return False

    def _tell_too_long(self, batch: Batch) -> None:
        self.broker.figures.messages_dropped += batch.count
        size = batch.stride - batch.payload_at
        text = f"a message of {size} bytes on {batch.topic.decode()!r} does not fit into a datagram"
        self.write(error("too-long", text))

    def send_qos0(self, batch: Batch, target: Subscription) -> None:
        """Send messages of QoS 0, which are retransmitted until their Ack all the same."""
        for part in batch.parts():
            if not self.can_take(part, target, 0):
                continue
            if target.latest:
                self.newest.send(part)
                continue
            for message in single_messages(part, 0, part.count):
                number = self.numbers.assign(None)
                if not self._unacknowledged.send_or_queue(number, numbered_message(message, number)):
                    self.numbers.pop(number)
                    self.broker.figures.messages_dropped += 1

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages under the session's numbers."""
        if not qos:
            self.send_qos0(batch.part(start, stop), target)
            return True
        for number, message in enumerate(single_messages(batch, start, stop), first_id):
            frame = numbered_message(message, number)
            if len(frame) > MAX_DATAGRAM:
                self._tell_too_long(message)
                return False
            self._unacknowledged.send(number, frame)
        return True

    def send_numbered(self, number: int, frame: bytes) -> None:
        """Send a message that the connection numbered, and retransmit it until its Ack."""
        self._unacknowledged.send(number, frame)

    def acknowledged(self, number: int) -> None:
        """Stop retransmitting a message."""
        self._unacknowledged.acknowledged(number)

    # Time and the end

    @property
    def is_alive(self) -> bool:
        """Whether the client has sent a datagram within the timeout."""
        return self.seen_at + self.options.udp_timeout > self.broker.now

    def set_timer(self) -> None:
        """Set the timer to the next retransmission, or to the client's timeout."""
        due = self.seen_at + self.options.udp_timeout + GRACE
        if self.is_alive:
            next_due = self._unacknowledged.next_due
            due = due if next_due is None else min(due, next_due)
        self.broker.timers.set(self, due)

    def due(self) -> None:
        """Retransmit unacknowledged messages; forget a client that has been silent for too long."""
        broker = self.broker
        if self.state is CLOSED or self.seen_at + self.options.udp_timeout + GRACE <= broker.now:
            self.forgotten()
            return
        if self.is_alive:
            self._unacknowledged.send_due()
        self.set_timer()

    def forgotten(self) -> None:
        """End the connection without a message: the client is gone."""
        self.why = self.why or "no datagram within the timeout"
        self.state = CLOSED
        self.backlog = None
        self.forget_term()
        self.broker.timers.cancel(self)
        self.leave(send_will=True)
        self._socket.abort()

    def log_in_overdue(self) -> None:
        """Forget a client that has not logged in in time."""
        self.why = "no log-in within the time limit"
        self.forgotten()

    def fail(self, code: str, text: str) -> None:
        """Send an Error, and keep the connection: a datagram cannot spoil the next one."""
        self.received = None
        if code == "not-authorized" and self.came_at is None:
            self.tell_refused(NOT_AUTHORIZED, text)
        if self.session is None:  # the next datagram must not use the name that this one claimed
            self.credentials = Credentials("", None, None, self.credentials.address)
        self.write(error(code, text))

    def close(self) -> None:
        """Send the remaining output and forget the client."""
        if self.state is not CLOSED:
            self.state = CLOSED
            self.backlog = None
            self.forget_term()
            self.broker.timers.cancel(self)
            self.flush()
            self._socket.close()
