"""The line protocol for one client. No I/O: a listener feeds it received bytes.

Frames are handled one by one, except Publish: a run of alike Publish frames becomes one batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrite.broker.access import NOT_AUTHORIZED
from pyrite.broker.link import Transport
from pyrite.broker.session import Session
from pyrite.broker.timers import TURN
from pyrite.protocols.conversation import Term
from pyrite.protocols.line import commands, login, presence, publishing
from pyrite.protocols.line.answers import Answers
from pyrite.protocols.line.delivery import LineDelivery
from pyrite.protocols.line.frames import MAX_LINE, FrameError, error, parse
from pyrite.protocols.line.options import LineOptions
from pyrite.protocols.states import CLOSED, CONNECTED

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

logger = logging.getLogger(__name__)

FRAMES_PER_CLOCK = 8
"""Frames handled between two readings of the clock."""
MIN_MAX_LINE = 1_024
"""Minimum of `limits.before_login` in bytes: shorter lines are never too long."""
_LF = 10


class _LogInDeadline(Term):
    """Timer that ends the connection of a client that has not logged in, even if it answers Ping."""

    __slots__ = ("_client",)

    def __init__(self, client: LineConnection) -> None:
        super().__init__(client)
        self._client = client

    def due(self) -> None:
        self._client.log_in_overdue()


class LineConnection(LineDelivery):
    """The line protocol for one client, over any transport."""

    __slots__ = (
        "_farewell",
        "_shape",
        "answers",
        "options",
        "peer",
        "unanswered_pings",
        "unanswered_pulls",
    )

    def __init__(
        self, broker: Broker, options: LineOptions, transport: Transport, address: str, peer: str = ""
    ) -> None:
        super().__init__(broker, transport, address)
        self.options = options
        self.peer = peer or address
        """The client's address and port, for log lines."""
        self.answers = Answers(broker.journal)
        self.unanswered_pings = 0
        """Pings sent since the client's last frame."""
        self.unanswered_pulls = 0
        self._shape: publishing.Shape | None = None
        """The shape of the last Publish frame."""
        self._farewell: bytes | None = None
        """The last frame to send, maybe empty, once the client has announced its end; None before."""
        broker.timers.set(self, broker.now + options.ping_interval)
        self.watched("Connected")
        if not broker.access.lets_everyone_in:
            self.term = _LogInDeadline(self)
            broker.timers.set(self.term, broker.now + broker.limits.connect_timeout)

    # Input

    def feed(self, data: bytes) -> None:
        """Handle bytes from the client. Never raises."""
        self.broker.figures.bytes_received += len(data)
        try:
            self._feed(data)
        except FrameError as wrong:
            self.fail(wrong.code, str(wrong))
        except Exception:  # a bug in the broker ends this connection only
            logger.exception("client %r: internal error", self.credentials.client_id)
            self.fail("internal", "internal error")

    def _feed(self, data: bytes) -> None:
        """Split `data` into frames and handle them. HOT."""
        if self.state is CLOSED:
            return
        if self.backlog is not None and not self.interrupted and not self.work_off():
            self.interrupted = True
            self.broker.turns.add(self)
        if self.received is not None:
            self.received += data
            self.missing -= len(data)
            if self.missing > 0 or self.interrupted:
                return
            data = bytes(self.received)
            self.received = None
        elif self.interrupted:
            self.keep(data, 0, 0)
            return
        if data[:1] != b"\n":
            data = b"\n" + data  # `publishing` expects a line end before every frame
        at, end = 1, len(data)
        count, until = 0, 0.0
        fan_outs = self.broker.fan_outs
        while at < end:
            count += 1
            if count % FRAMES_PER_CLOCK == 0:
                now = self.broker.clock()
                if not until:
                    until = now + TURN
                elif now > until:
                    self.interrupt(data, at)
                    return
            shape = self._shape
            if shape is None or not data.startswith(shape.prefix, at):
                stop = data.find(b"\n", at)
                size = (end if stop < 0 else stop) - at
                if size > MIN_MAX_LINE and size > self._max_line:
                    when = "" if self.session else " before the log-in"
                    raise FrameError("too-long", f"the line exceeds {self._max_line} bytes{when}", ends=True)
                if stop < 0:
                    self.keep(data, at, 1)
                    return
                text = data[at:stop].rstrip(b"\r")
                if not text.strip():
                    at = stop + 1
                    continue
                self.unanswered_pings = 0
                asked = parse(text)
                if asked.command != "Publish":
                    at = stop + 1
                    until = until or self.broker.clock() + TURN
                    commands.run(self, asked)
                    if self.state is CLOSED:
                        return
                    if self.was_interrupted():
                        self.keep(data, at, 0)
                        return
                    if self.backlog is not None and not self.work_off():
                        self.interrupt(data, at)
                        return
                    if self.broker.clock() > until:
                        self.interrupt(data, at)
                        return
                    if self.broker.journal.full:
                        self.wait_for_room(data, at)
                        return
                    continue
                shape = self._shape = publishing.read_shape(self, asked, data[at : stop + 1])
            stop = at + shape.size
            if stop > end:
                self.keep(data, at, stop - end)
                return
            if self.meter is not None and self.meter.is_spent:
                self.wait_for_budget(data, at)
                return
            if data[stop - 1] != _LF:
                if data[stop - 1 : stop + 1] != b"\r\n":  # telnet's line end
                    if stop == end and data[stop - 1] == 13:
                        self.keep(data, at, 1)
                        return
                    raise FrameError(
                        "bad-frame",
                        "Publish: expected a line end after the payload; is the length right?",
                        ends=True,
                    )
                if fan_outs.has_to_wait(shape.topic, 1):
                    self.wait_for_fan_outs(data, at)
                    return
                if self.meter is not None:
                    self.meter.grant(1, shape.size)
                publishing.publish(self, shape, data[at - 1 : stop - 1], 1)
                at = stop + 1
                continue
            stop = publishing.run_end(shape, data, at)
            if fan_outs.has_to_wait(shape.topic, (stop - at) // shape.size):
                self.wait_for_fan_outs(data, at)
                return
            if self.meter is not None:
                stop = at + shape.size * self.meter.grant((stop - at) // shape.size, shape.size)
            publishing.publish(self, shape, data[at - 1 : stop - 1], (stop - at) // shape.size)
            at = stop
            if self.broker.journal.full:
                self.wait_for_room(data, at)
                return

    @property
    def _max_line(self) -> int:
        """Maximum length of a line in bytes; smaller before the log-in."""
        if self.session is not None or self.broker.access.lets_everyone_in:
            return MAX_LINE
        return min(MAX_LINE, self.broker.limits.before_login)

    # The session

    def ensure_session(self) -> Session:
        """Return the client's session; without a Connect, open one that ends with the connection."""
        if self.session is None:
            login.open_session(self, self.broker.sessions.new_client_id(), True, self.default_ttl)
        assert self.session is not None
        return self.session

    @property
    def default_ttl(self) -> int:
        """Seconds for which a session outlives its connection if Connect has no `ttl`."""
        return 0

    def connected_again(self, client_id: str) -> None:
        """Refuse a second Connect."""
        raise FrameError("connected", "Connect: already connected; Connect must be the first command")

    # Answers

    def say(self, frames: bytes | bytearray) -> None:
        """Send the answer to a command."""
        self.write(frames)
        self.broker.figures.packets_sent += 1

    def send_answer(self, session: Session, answer: bytes, count: int = 1) -> None:
        """Send answers that waited for the journal, unless the client has left."""
        if self.session is session:
            self.write(answer)
            self.broker.figures.packets_sent += count

    def when_safe(self, call: Callable[[], object]) -> None:
        """Call `call` once the session's state is committed, in the order of answers.

        If the client has left by then, `call` is dropped.
        """
        session = self.session
        assert session is not None
        wait = self.answers.when_committed if session.lasting else self.answers.in_turn
        wait(lambda: call() if self.session is session else None)

    @property
    def max_list(self) -> int:
        """Maximum size of an answer to List in bytes."""
        return self.broker.limits.max_waiting_bytes

    # The end

    def input_ended(self) -> None:
        """Answer the client's commands, then end the connection: the client has closed its side."""
        if self.state is CLOSED or self._farewell is not None:
            self.transport.abort()
        else:
            self.leave_when_answered(b"")

    def leave_when_answered(self, farewell: bytes) -> None:
        """End the connection after every command is answered; the last frame is `farewell`."""
        self.why = "the client disconnected" if farewell else "the client closed the connection"
        self._farewell = farewell
        self.hold()
        self.answers.in_turn(self.end_if_answered)

    def end_if_answered(self) -> None:
        """End the connection if the client wants to leave and every command is answered."""
        if self._farewell is None or self.unanswered_pulls or self.state is CLOSED:
            return
        if self.backlog is not None and not self.work_off():
            self.broker.turns.add(self)
            return
        if self._farewell:
            self.say(self._farewell)
        self.leave(send_will=not self._farewell)
        self.close()

    def go_on(self) -> None:
        """Take a turn: handle more input, or finish the last answers."""
        if self._farewell is None:
            super().go_on()
        else:
            self.end_if_answered()

    def due(self) -> None:
        """Send a Ping, or abort a connection that does not close in time."""
        if self.state is CLOSED:
            self.transport.abort()
        else:
            presence.next_round(self)

    def watched(self, event: str) -> None:
        """Report an event to `LineOptions.watch`."""
        if self.options.watch is not None:
            self.options.watch(event, self.peer)

    def lost(self) -> None:
        """Handle the loss of the transport."""
        super().lost()
        self.watched("Disconnected")

    def log_in_overdue(self) -> None:
        """End the connection of a client that has not logged in in time."""
        self.fail("silent", "no log-in within the time limit")

    def fail(self, code: str, text: str) -> None:
        """Send an Error and end the connection."""
        if self.state is CLOSED:
            return
        if self.state is CONNECTED:
            self.why = text
        else:
            self.tell_refused(NOT_AUTHORIZED if code == "not-authorized" else 0, text)
        self.leave(send_will=True)
        self.say(error(code, text))
        self.close()

    def displaced(self) -> None:
        """End the connection: another one has taken over the client id."""
        self.why = "taken over by another connection"
        self.say(error("displaced", "another connection has taken over this client id"))
        self.session = None
        self.close()

    def ended(self, reason: int) -> None:
        """End the connection on the broker's behalf; `reason` is an MQTT 5 reason code."""
        self.why = "the broker is shutting down" if reason == 0x8B else "closed by the broker"
        self.say(error("ended", self.why))
        self.leave(send_will=False)
        self.close()
