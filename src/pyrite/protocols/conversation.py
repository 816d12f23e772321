"""What all connections have in common, whatever they speak: turns, waiting for the journal, and the end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyrite.broker.access import (
    NOT_AUTHORIZED,
    Accept,
    Credentials,
    Refuse,
)
from pyrite.broker.core import TURN
from pyrite.broker.link import NOTHING, Link, Transport
from pyrite.broker.timers import NO_SLOT
from pyrite.protocols.events import events, tell_refused
from pyrite.protocols.states import CLOSED, CONNECTED, WAITING, State

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.session import Session

logger = logging.getLogger(__name__)

LONG_READ = TURN / 8
"""Seconds that a client's read may take before its next read waits for a turn, like the reads of all
clients that send much. The others are read from as soon as something comes."""
CLOSING_TIME = 1.0
"""Seconds that a connection being closed has to take what was still to be sent."""


class Term:
    """The end of the time that a client was let in for, as a token does."""

    __slots__ = ("connection", "slot")

    def __init__(self, connection: Conversation) -> None:
        self.connection = connection
        self.slot = NO_SLOT

    def due(self) -> None:
        """Have the client go."""
        self.connection.ended(NOT_AUTHORIZED)


class Backlog:
    """Pieces of work, each in short steps, done one piece after the other. A step may add a piece."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: deque[Iterator[None]] = deque()

    def add(self, steps: Iterator[None]) -> None:
        """Add a piece of work after the others."""
        self._pieces.append(steps)

    def __iter__(self) -> Backlog:
        return self

    def __next__(self) -> None:
        """Do one step."""
        pieces = self._pieces
        while pieces:
            for _ in pieces[0]:
                return
            pieces.popleft()
        raise StopIteration


class Conversation(Link):
    """One client's connection, of any protocol: bytes come in by `feed`, and go out through the link."""

    __slots__ = (
        "backlog",
        "came_at",
        "credentials",
        "interrupted",
        "missing",
        "received",
        "seen_at",
        "session",
        "slot",
        "state",
        "term",
        "why",
    )

    def __init__(self, broker: Broker, transport: Transport, address: str) -> None:
        super().__init__(broker, transport)
        self.state: State = WAITING
        self.session: Session | None = None
        self.credentials = Credentials("", None, None, address)
        self.received: bytearray | None = None
        """What came and is not whole, or was not handled yet."""
        self.missing = 0
        """How many bytes, at least, are missing of what came."""
        self.backlog: Backlog | None = None
        """Work left of what came last, such as retained messages to be sent, in short steps."""
        self.interrupted = False
        """Whether what came is to be handled in a later turn."""
        self.seen_at = broker.now
        self.slot = NO_SLOT
        self.term: Term | None = None
        """When the client must go, if it may not stay for ever."""
        self.came_at: float | None = None
        """When the client was let in."""
        self.why = ""
        """Why the connection ends, for the log."""

    # Bytes in

    def feed(self, data: bytes) -> None:
        """Take bytes that came from the client. Never raises."""
        raise NotImplementedError

    def receive(self, data: bytes) -> None:
        """Handle what was read from the client; after a long read, the next one waits for a turn."""
        clock = self.broker.clock
        began = clock()
        self.feed(data)
        if clock() - began > LONG_READ and not self.interrupted and self.state is not CLOSED:
            self.hold()
            self.broker.interrupted(self)

    def interrupt(self, data: bytes, at: int) -> None:
        """Let others have their turn before the rest of `data` is handled."""
        self.keep(data, at, 0)
        self.hold()
        self.broker.interrupted(self)

    def wait_for_room(self, data: bytes, at: int) -> None:
        """Have the rest of `data` wait until the journal has written some of what it was given."""
        self.keep(data, at, 0)
        self.hold()
        self.broker.choke(self)

    def wait_for_fan_outs(self, data: bytes, at: int) -> None:
        """Have the rest of `data` wait until less is owed to the receivers of messages."""
        self.keep(data, at, 0)
        self.hold()
        self.broker.fan_outs.wait(self)

    def wait_for_budget(self, data: bytes, at: int) -> None:
        """Have the rest of `data` wait until the user's rate quota allows more."""
        assert self.meter is not None
        self.keep(data, at, 0)
        self.hold()
        self.meter.wait(self)

    @property
    def is_throttled(self) -> bool:
        """Whether nothing is read from the client for now, for its user's rate quota: silence is no sign."""
        return self.interrupted and self.meter is not None

    def keep(self, data: bytes, at: int, missing: int) -> None:
        """Keep what came until `missing` more bytes have come."""
        self.received = bytearray(data[at:])
        self.missing = missing

    def hold(self) -> None:
        """Handle nothing more of what comes, until further notice."""
        self.interrupted = True
        self.transport.pause_reading()

    def go_on(self) -> object:
        """Handle more of what came, for another turn; return whether the client is read from again."""
        self.interrupted = False
        self.feed(b"")
        self.resume_reading()
        return not self.interrupted and self.state is not CLOSED

    def resume_reading(self) -> None:
        """Have the client read from again, unless what came last still waits to be handled."""
        if not self.interrupted and self.state is not CLOSED:
            self.transport.resume_reading()

    def work_off(self, until: float | None = None) -> bool:
        """Do the rest of the last packet's work, until a time, or for a turn; return whether it is done."""
        assert self.backlog is not None
        clock = self.broker.clock
        if until is None:
            until = clock() + TURN
        backlog = self.backlog
        while self.state is not CLOSED:
            try:
                next(backlog)
            except StopIteration:
                break
            if clock() > until:
                return False
        self.backlog = None
        return True

    def add_work(self, steps: Iterator[None]) -> None:
        """Have work done in turns, before anything else that the client sends is handled."""
        if self.backlog is None:
            self.backlog = Backlog()
        self.backlog.add(steps)

    # Who it is

    def identify(self, then: Callable[[Accept | Refuse], object]) -> None:
        """Have it decided whether the client may come in; what else it sends waits until `then` is told."""
        at_once = True
        waits = True

        def decided(verdict: Accept | Refuse) -> None:
            nonlocal waits
            waits = False
            self.keep_term(verdict)
            if at_once:
                then(verdict)
            elif self.state is not CLOSED:
                self.add_work(self._identified(then, verdict, self.broker.admission.version))
                self.broker.interrupted(self)

        self.broker.admission.decide(self.credentials, decided)
        at_once = False
        if waits:
            self.hold()

    def _identified(
        self, then: Callable[[Accept | Refuse], object], verdict: Accept | Refuse, version: int
    ) -> Iterator[None]:
        """Tell what was decided; or have it decided again, if who may come in has changed since."""
        if version == self.broker.admission.version:
            then(verdict)
        else:
            self.identify(then)
        yield

    def keep_term(self, verdict: object) -> None:
        """See to it that a client goes when the time is over that it was let in for."""
        if isinstance(verdict, Accept) and self.state is not CLOSED:
            self.forget_term()
            if verdict.seconds is not None:
                self.term = Term(self)
                self.broker.timers.set(self.term, self.broker.now + verdict.seconds)

    def rights_changed(self) -> None:
        """Take note that the client may do other things than before: what is known of it is asked again."""

    # What the log is told

    def tell_connected(self, protocol: str, resumed: bool) -> None:
        """Have the log say that the client was let in."""
        self.came_at = self.broker.now
        who = self.credentials
        events.tell(
            "connected",
            client=who.client_id,
            user=who.username,
            protocol=protocol,
            address=who.address,
            resumed=resumed,
        )

    def tell_refused(self, code: int, reason: str) -> None:
        """Have it counted, and the log say, that the client was turned away."""
        self.why = reason
        tell_refused(self.broker, self.credentials, code, reason)

    def tell_disconnected(self, traffic: tuple[int, int] | None) -> None:
        """Have the log say that the connection is over; `traffic`: bytes from the client, and to it."""
        if self.came_at is None:
            return  # it was refused, or never said who it is
        who = self.credentials
        received, sent = traffic or (None, None)
        events.tell(
            "disconnected",
            client=who.client_id,
            user=who.username,
            address=who.address,
            reason=self.why or "the connection was lost",
            seconds=round(self.broker.now - self.came_at, 1),
            bytes_received=received,
            bytes_sent=sent,
        )

    # What must be safe first

    def wait_for_journal(self) -> None:
        """Send nothing, and handle nothing, before everything that was noted so far is safe."""
        waits = True

        def safe() -> None:
            nonlocal waits
            waits = self.held = False
            if self.state is not CLOSED:
                self.flush()
            if self.interrupted:
                self.broker.interrupted(self)

        self.broker.journal.after(safe)
        if waits:
            self.held = True
            self.hold()

    def when_safe(self, call: Callable[[], object]) -> None:
        """Call when the session's state is safe, unless the client has left by then.

        Not before the acknowledgements of what came before.
        """
        session, journal = self.session, self.broker.journal
        assert session is not None
        wait = journal.after if session.lasting else journal.in_turn
        wait(lambda: call() if self.session is session else None)

    # Bytes out

    def has_room(self, size: int) -> bool:
        """Tell whether `size` more bytes may wait for this client; one that waits for nothing takes any."""
        if self.room >= size:
            return True
        self.flush()
        self.measure()
        return self.room >= size or self.room == self.broker.limits.max_waiting_bytes

    def write(self, data: bytes | bytearray) -> None:
        """Put `data` into the outbox."""
        super().write(data)
        if self.room < 0:
            self._overfull()

    def _overfull(self) -> None:
        """Give up a client that lets its answers pile up (messages are held back or dropped long before)."""
        limits = self.broker.limits
        bound = -limits.max_waiting_bytes - limits.max_packet_size
        if self.room < bound and self.state is CONNECTED:
            self.flush()
            if self.room < bound:
                self.state = CLOSED
                self.why = "it does not read its answers"
                self.leave(send_will=True)
                self.transport.abort()
                logger.warning("client %r does not read its answers: closed", self.credentials.client_id)

    def drained(self) -> None:
        """Send what was held back while the client was slow."""
        self.measure()
        if self.session is not None:
            self.session.pump()

    # The end

    def input_ended(self) -> None:
        """Take note that the client sends nothing more: most protocols have it that it is gone then."""
        self.why = self.why or "the client closed the connection"
        self.transport.abort()

    def hung_up(self) -> None:
        """Note that the client ends the connection, without a word, but in good order."""
        self.why = self.why or "the client closed the connection"
        self.leave(send_will=True)
        self.close()

    def close(self) -> None:
        """Send what is still to be sent, then close; at once if the client does not take it in time."""
        if self.state is CLOSED:
            return
        self.state = CLOSED
        self.forget_term()
        self.broker.timers.cancel(self)
        self.flush()
        self.transport.close()
        self.broker.timers.set(self, self.broker.now + CLOSING_TIME)

    def lost(self) -> None:
        """Note that the transport is gone."""
        self.state = CLOSED
        self.chunks = NOTHING
        self.forget_term()
        self.broker.timers.cancel(self)
        self.leave(send_will=True)

    def forget_term(self) -> None:
        """Have no time come to an end any more that the client was let in for."""
        if self.term is not None:
            self.broker.timers.cancel(self.term)
            self.term = None

    def leave(self, send_will: bool) -> None:
        """Part from the session."""
        session = self.session
        if session is not None:
            self.session = None
            self.broker.close_session(session, self, send_will)

    def due(self) -> None:
        """Do what time asks for."""
        raise NotImplementedError
