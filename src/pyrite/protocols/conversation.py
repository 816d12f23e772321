"""Base class of the protocols' connections: log-in, waiting for the journal, bounded output, closing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyrite.broker.access import (
    NOT_AUTHORIZED,
    Accept,
    Credentials,
    Refuse,
)
from pyrite.broker.link import EMPTY_OUTBOX, Transport
from pyrite.broker.timers import NO_SLOT
from pyrite.protocols.events import events, tell_refused
from pyrite.protocols.receiver import Receiver
from pyrite.protocols.states import CLOSED, CONNECTED

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.journal import Fault
    from pyrite.broker.session import Session
    from pyrite.protocols.mqtt.merging import Merger

logger = logging.getLogger(__name__)

Answer = Callable[[Callable[[], object]], object]
"""Called with what to do next."""
CLOSE_TIMEOUT = 1.0
"""Seconds for the client to read the remaining output of a closing connection."""


def _step(call: Callable[[], object]) -> Iterator[None]:
    """Make a call as a step of a connection's work."""
    call()
    yield


class Term:
    """Timer that ends a connection when its authentication expires, such as the client's token."""

    __slots__ = ("connection", "slot")

    def __init__(self, connection: Conversation) -> None:
        self.connection = connection
        self.slot = NO_SLOT

    def due(self) -> None:
        self.connection.ended(NOT_AUTHORIZED)


class Conversation(Receiver):
    """One client's connection: the protocol reads bytes in `feed`, and sends through the link."""

    __slots__ = ("came_at", "credentials", "seen_at", "session", "slot", "term", "why")

    def __init__(self, broker: Broker, transport: Transport, address: str) -> None:
        super().__init__(broker, transport)
        self.session: Session | None = None
        self.credentials = Credentials("", None, None, address)
        self.seen_at = broker.now
        self.slot = NO_SLOT
        self.term: Term | None = None
        """Ends the connection when its authentication expires; None if that never happens."""
        self.came_at: float | None = None
        """When the client was accepted; None if it was not."""
        self.why = ""
        """Why the connection ends, for the log."""

    # Log-in

    def identify(self, then: Callable[[Accept | Refuse], object]) -> None:
        """Check the client's credentials, and call `then` with the verdict.

        Input from the client waits until then.
        """
        admission = self.broker.admission

        def decided(answer: Answer, verdict: Accept | Refuse) -> None:
            self.keep_term(verdict)
            version = admission.version

            def check() -> None:
                if version == admission.version:
                    then(verdict)
                else:  # the access rules have changed since
                    self.identify(then)

            answer(check)

        self._wait_for(lambda answer: admission.decide(self.credentials, partial(decided, answer)))

    def claim(self, clean_start: bool, then: Callable[[Fault | None], object]) -> None:
        """Call `then` when the client's session may be opened here, or with the reason why not.

        Input from the client waits until then. A client that has closed the connection meanwhile may have
        sent the same QoS 2 messages again through another node, and completed them: nothing is read from it.
        """
        at_once = True

        def check(fault: Fault | None) -> None:
            if clean_start or not self.is_abandoned():
                then(fault)
            else:
                self.input_ended()

        def decided(answer: Answer, fault: Fault | None) -> None:
            answer(partial(then if at_once else check, fault))

        journal, client_id = self.broker.journal, self.credentials.client_id
        self._wait_for(lambda answer: journal.claim_session(client_id, clean_start, partial(decided, answer)))
        at_once = False

    def is_abandoned(self) -> bool:
        """Return whether the client has closed the connection, so that the rest of its input is void."""
        return False

    def _wait_for(self, ask: Callable[[Answer], object]) -> None:
        """Ask for something that answers with what to do then, at once or later. Input waits meanwhile."""
        at_once = True
        waits = True

        def answer(call: Callable[[], object]) -> None:
            nonlocal waits
            waits = False
            if at_once:
                call()
            elif self.state is not CLOSED:
                self.add_work(_step(call))
                self.broker.turns.add(self)

        ask(answer)
        at_once = False
        if waits:
            self.hold()

    def keep_term(self, verdict: object) -> None:
        """Start the timer of a client that is accepted for a limited time."""
        if isinstance(verdict, Accept) and self.state is not CLOSED:
            self.forget_term()
            if verdict.seconds is not None:
                self.term = Term(self)
                self.broker.timers.set(self.term, self.broker.now + verdict.seconds)

    def forget_term(self) -> None:
        """Cancel the timer that `keep_term` started."""
        if self.term is not None:
            self.broker.timers.cancel(self.term)
            self.term = None

    def rights_changed(self) -> None:
        """Drop cached rights of the client: the access rules have changed."""

    # Connections in the log

    def tell_connected(self, protocol: str, resumed: bool) -> None:
        """Log that the client was accepted."""
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
        """Count and log that the client was refused."""
        self.why = reason
        tell_refused(self.broker, self.credentials, code, reason)

    def tell_disconnected(self, traffic: tuple[int, int] | None) -> None:
        """Log the end of the connection, with the bytes received and sent if they are known."""
        if self.came_at is None:
            return  # the client was refused, or never logged in
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

    # Merging

    def joins(self, merger: Merger, data: bytes) -> int:
        """Add messages from the front of a read to a merger; return how many bytes it took."""
        return 0

    # The journal

    def wait_for_journal(self) -> None:
        """Hold output and input until every change so far is committed."""
        waits = True

        def safe() -> None:
            nonlocal waits
            waits = self.held = False
            if self.state is not CLOSED:
                self.flush()
            if self.interrupted:
                self.broker.turns.add(self)

        self.broker.journal.after(safe)
        if waits:
            self.held = True
            self.hold()

    def when_safe(self, call: Callable[[], object]) -> None:
        """Call `call` once the session's state is committed, after all earlier acknowledgements.

        If the client has left by then, `call` is dropped.
        """
        session, journal = self.session, self.broker.journal
        assert session is not None
        wait = journal.after if session.lasting else journal.in_turn
        wait(lambda: call() if self.session is session else None)

    # Output

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes may be buffered; an empty buffer takes any size."""
        if self.room >= size:
            return True
        self.flush()
        self.measure()
        return self.room >= size or self.room == self.broker.limits.max_waiting_bytes

    def overfull(self) -> None:
        """Close the connection of a client that does not read its answers.

        Only answers can exceed the bound this far: messages are held back or dropped before.
        """
        limits = self.broker.limits
        bound = -limits.max_waiting_bytes - limits.max_packet_size
        if self.room < bound and self.state is CONNECTED:
            self.flush()
            if self.room < bound:
                self.state = CLOSED
                self.why = "the client does not read its answers"
                self.leave(send_will=True)
                self.transport.abort()
                logger.warning("client %r does not read its answers: closed", self.credentials.client_id)

    def drained(self) -> None:
        """Send the messages that were held back while the client was slow."""
        self.measure()
        if self.session is not None:
            self.session.send_waiting()

    # The end

    def input_ended(self) -> None:
        """Handle the end of the client's input: most protocols abort the connection."""
        self.why = self.why or "the client closed the connection"
        self.transport.abort()

    def hung_up(self) -> None:
        """Handle an orderly close by the client without DISCONNECT."""
        self.why = self.why or "the client closed the connection"
        self.leave(send_will=True)
        self.close()

    def close(self) -> None:
        """Send the remaining output and close; abort if the client does not read it in time."""
        if self.state is CLOSED:
            return
        self.state = CLOSED
        self.forget_term()
        self.broker.timers.cancel(self)
        self.flush()
        self.transport.close()
        self.broker.timers.set(self, self.broker.now + CLOSE_TIMEOUT)

    def lost(self) -> None:
        """Handle the loss of the transport."""
        self.state = CLOSED
        self.chunks = EMPTY_OUTBOX
        self.backlog = None
        self.forget_term()
        self.broker.timers.cancel(self)
        self.leave(send_will=True)

    def leave(self, send_will: bool) -> None:
        """Detach from the session."""
        session = self.session
        if session is not None:
            self.session = None
            self.broker.sessions.close(session, self, send_will)

    def due(self) -> None:
        """Handle the connection's timer."""
        raise NotImplementedError
