"""A client's connection, again and again: opens it, keeps it alive, and comes back when it is lost."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from pyrite.client.errors import ClientError, ConnectError, ConnectionLost, reason_text
from pyrite.client.message import Message, Properties
from pyrite.client.options import Options
from pyrite.client.protocol import Answered, Connected, Ended, Protocol, ProtocolError, Refusal, Settled
from pyrite.client.trace import Trace
from pyrite.client.trace import log as packets_log
from pyrite.client.wire import Wire, open_wire
from pyrite.protocols.mqtt.packets import V5, Connack, Connect
from pyrite.protocols.mqtt.reasons import Reason

_log = logging.getLogger("pyrite.client")

FIRST_DELAY = 0.1
"""Seconds before the first attempt to reconnect."""
STEADY = 10.0
"""Seconds that a connection has to last, for the next attempts to begin with short delays again."""
CLOSE_TIME = 2.0
"""Seconds for what is to be sent at the end."""
_OLDER_REASONS = {
    1: "the broker does not speak this version of MQTT",
    2: "the broker does not accept the client identifier",
    3: "the broker is unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
_FINAL = {
    *(1, 2, 4, 5),
    Reason.UNSUPPORTED_PROTOCOL_VERSION,
    Reason.CLIENT_IDENTIFIER_NOT_VALID,
    Reason.BAD_USER_NAME_OR_PASSWORD,
    Reason.NOT_AUTHORIZED,
    Reason.BANNED,
    Reason.BAD_AUTHENTICATION_METHOD,
}
"""Refusals that will be the same the next time."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the client is to know."""

    connect_packet: Callable[[bool], Connect]
    """Makes the CONNECT, with a clean start or not."""
    accepted: Callable[[Connack], None]
    """A connection has begun."""
    event: Callable[[Message | Settled | Answered], None]
    """Something has come over it."""
    read: Callable[[], None]
    """Everything that came with one read has been passed on."""
    lost: Callable[[ClientError], None]
    """It is gone."""
    ended: Callable[[ClientError], None]
    """It is gone, and there will be no other."""


class Link:
    """The connection of a client."""

    def __init__(self, options: Options, protocol: Protocol, callbacks: Callbacks) -> None:
        self.connected = asyncio.Event()
        self.wire: Wire | None = None
        self._options = options
        self._address = options.address
        self._protocol = protocol
        self._callbacks = callbacks
        self._greeting: asyncio.Future[None] | None = None
        """Waits for the CONNACK."""
        self._farewell: Ended | None = None
        """What the broker gave as its reason to disconnect."""
        self._sent_trace: Trace | None = None
        self._received_trace: Trace | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._delay = FIRST_DELAY
        self._timer: asyncio.TimerHandle | None = None
        self._since = self._last_sent = self._last_heard = self._pinged = 0.0
        self._flushing = False
        self.paused = False
        """Whether nothing is being read at the time."""

    # Beginning and end.

    async def connect(self, clean_start: bool) -> None:
        """Open one connection, and see it accepted; raises ConnectError."""
        self._greeting = asyncio.get_running_loop().create_future()
        self._farewell = None
        options = self._options
        if packets_log.isEnabledFor(logging.DEBUG):
            self._sent_trace = Trace("sending", options.version)
            self._received_trace = Trace("received", options.version)
        try:
            async with asyncio.timeout(options.timeout):
                self.wire = await open_wire(
                    self._address, options.tls, options.bind_address, self._received, self._lost
                )
                if self.wire.closed.done():
                    self._lost(self.wire, self.wire.fault or "the peer closed the connection at once")
                self._protocol.connect(self._callbacks.connect_packet(clean_start))
                self.flush()
                await self._greeting
        except TimeoutError:
            self._drop_wire()
            raise ConnectError(
                f"cannot connect to {self._address}: no answer within {options.timeout:g} seconds"
            ) from None
        except BaseException:
            if self.connected.is_set():  # who asked for it gave up in that very moment: say goodbye
                await self.close(options.disconnect_properties())
            else:
                self._drop_wire()
            raise
        finally:
            self._greeting = None

    def _drop_wire(self) -> None:
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.abort()

    async def close(self, properties: Properties) -> None:
        """Send what is to be sent and a DISCONNECT with these properties, and close."""
        task, self._reconnecting = self._reconnecting, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.connected.clear()
        if self._timer is not None:
            self._timer.cancel()
        wire, self.wire = self.wire, None
        if wire is None:
            return
        if self._protocol.connected:
            self._protocol.disconnect(0, properties)
        if self._protocol.has_output:
            self._write(wire)
        self._protocol.lost()
        wire.end()
        try:
            async with asyncio.timeout(CLOSE_TIME):
                await asyncio.shield(wire.closed)
        except TimeoutError:
            wire.abort()

    def _lost(self, wire: Wire, text: str) -> None:
        """Take note that a connection is gone."""
        if wire is not self.wire:
            return
        self.wire = None
        was_connected = self.connected.is_set()
        self._protocol.lost()
        self.connected.clear()
        self.paused = False
        if self._timer is not None:
            self._timer.cancel()
        reason, said = None, ""
        if self._farewell is not None:
            reason, said = self._farewell.reason, self._farewell.text
            text = f"the broker disconnected: {reason_text(reason, said)}"
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(ConnectError(f"cannot connect to {self._address}: {text}"))
            return
        if not was_connected:
            return
        error = ConnectionLost(f"the connection to {self._address} was lost: {text}", reason, said)
        # Two clients of one name would take the session from each other for ever.
        if self._options.reconnect and reason != Reason.SESSION_TAKEN_OVER:
            if asyncio.get_running_loop().time() - self._since > STEADY:
                self._delay = FIRST_DELAY
            self._reconnecting = asyncio.create_task(self._come_back())
        else:
            self._callbacks.ended(error)
        self._callbacks.lost(error)

    async def _come_back(self) -> None:
        """Connect again, with longer and longer pauses."""
        while True:
            # The jitter keeps clients that were lost together from coming back together.
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))  # noqa: S311
            self._delay = min(self._delay * 2, self._options.longest_pause)
            try:
                await self.connect(clean_start=False)
                return
            except ConnectError as error:
                if error.reason in _FINAL:
                    self._callbacks.ended(error)
                    return
                _log.info("%s", error)
            except Exception as error:
                _log.exception("cannot reconnect")
                self._callbacks.ended(ConnectionLost(f"cannot reconnect: {error!r}"))
                return

    # Sending.

    def soon(self) -> None:
        """Send what there is to send at the end of this turn of the event loop: many packets, one write."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flushing = False
        self.flush()

    def flush(self) -> None:
        """Send what there is to send."""
        if self.wire is not None and self._protocol.has_output:
            self._last_sent = asyncio.get_running_loop().time()
            self._write(self.wire)

    def _write(self, wire: Wire) -> None:
        data = self._protocol.take()
        if self._sent_trace is not None:
            self._sent_trace.feed(data)
        wire.write(data)

    def _watch(self, interval: float) -> None:
        """Keep the connection alive, and see whether the broker is."""
        if self.wire is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        unanswered = self._protocol.pings_unanswered
        if unanswered and not self.paused and now - max(self._last_heard, self._pinged) >= interval:
            self.wire.abort(f"the broker gave no sign of life for {interval:g} seconds")
            return
        if not unanswered and now - self._last_sent >= interval / 2:
            self._pinged = now
            self._protocol.ping()
            self.flush()
        self._timer = loop.call_later(interval / 4, self._watch, interval)

    # Receiving.

    def pause_reading(self) -> None:
        """Take nothing more from the broker for now."""
        if self.wire is not None and not self.paused:
            self.paused = True
            self.wire.pause_reading()

    def resume_reading(self) -> None:
        """Take what comes again."""
        if self.wire is not None and self.paused:
            self.paused = False
            self._pinged = asyncio.get_running_loop().time()  # the broker could not be heard meanwhile
            self.wire.resume_reading()

    def _received(self, data: bytes) -> None:
        self._last_heard = asyncio.get_running_loop().time()
        if self._received_trace is not None:
            self._received_trace.feed(data)
        try:
            for event in self._protocol.receive(data):
                if isinstance(event, Message | Settled | Answered):
                    self._callbacks.event(event)
                else:
                    self._handle(event)
        except ProtocolError as error:
            text = f"the peer does not speak MQTT as a broker does: {error}"
            if self._protocol.connected:
                self._protocol.disconnect(error.reason)
                self.flush()
            if self.wire is not None:
                self.wire.end(text)
            elif self._greeting is not None and not self._greeting.done():
                self._greeting.set_exception(ConnectError(f"cannot connect to {self._address}: {text}"))
        self.flush()
        self._callbacks.read()

    def _handle(self, event: Connected | Refusal | Ended) -> None:
        greeting = self._greeting
        match event:
            case Connected(connack):
                self._since = asyncio.get_running_loop().time()
                keep_alive = connack.properties.get("server_keep_alive", self._options.keep_alive)
                if keep_alive:
                    self._watch(float(keep_alive))
                self.connected.set()
                _log.debug("connected to %s", self._address)
                if greeting is not None and not greeting.done():
                    greeting.set_result(None)
                self._callbacks.accepted(connack)
            case Refusal(connack):
                said = connack.properties.get("reason_string", "")
                if self._protocol.version == V5:
                    text = reason_text(connack.reason, said)
                else:
                    text = _OLDER_REASONS.get(connack.reason, f"return code {connack.reason}")
                if greeting is not None and not greeting.done():
                    refusal = f"{self._address} refused the connection: {text}"
                    greeting.set_exception(ConnectError(refusal, connack.reason, said))
            case Ended():
                self._farewell = event
                if self.wire is not None:
                    self.wire.end()
