"""A client's connection: opens it, keeps it alive, and reconnects when it is lost."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from pyrite.client.errors import ClientError, ConnectError, ConnectionLost, reason_text
from pyrite.client.message import Message, Properties
from pyrite.client.options import ClientOptions
from pyrite.client.protocol import (
    Answered,
    Connected,
    ConnectRefused,
    Ended,
    Protocol,
    ProtocolError,
    Settled,
)
from pyrite.client.trace import Trace
from pyrite.client.trace import log as packets_log
from pyrite.client.transport import ClientTransport, open_transport
from pyrite.protocols.mqtt.packets import V5, Connack, Connect
from pyrite.protocols.mqtt.reasons import Reason

_log = logging.getLogger("pyrite.client")

FIRST_DELAY = 0.1
"""Delay before the first attempt to reconnect, in seconds."""
STABLE_AFTER = 10.0
"""A connection that lasted this many seconds resets the reconnect delay."""
CLOSE_TIMEOUT = 2.0
"""Seconds allowed for sending the remaining data at close."""
_RETURN_CODES = {
    1: "the broker does not support this MQTT version",
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
"""Refusals that another attempt would meet again."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the connection reports to the client."""

    connect_packet: Callable[[bool], Connect]
    """Build the CONNECT packet, with or without a clean start."""
    accepted: Callable[[Connack], None]
    """Called when a connection is accepted."""
    event: Callable[[Message | Settled | Answered], None]
    """Called for each received event."""
    read: Callable[[], None]
    """Called after all events of one read."""
    lost: Callable[[ClientError], None]
    """Called when the connection is lost."""
    ended: Callable[[ClientError], None]
    """Called when the connection is lost and will not be reopened."""


class ClientConnection:
    """The connection of a client, across reconnects."""

    def __init__(self, options: ClientOptions, protocol: Protocol, callbacks: Callbacks) -> None:
        self.connected = asyncio.Event()
        self.transport: ClientTransport | None = None
        self._options = options
        self._address = options.address
        self._protocol = protocol
        self._callbacks = callbacks
        self._greeting: asyncio.Future[None] | None = None
        """Resolved by CONNACK."""
        self._farewell: Ended | None = None
        """The DISCONNECT that the broker sent, if any."""
        self._sent_trace: Trace | None = None
        self._received_trace: Trace | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._delay = FIRST_DELAY
        self._timer: asyncio.TimerHandle | None = None
        self._since = self._last_sent = self._last_heard = self._pinged = 0.0
        self._flushing = False
        self.paused = False
        """True while reading is paused."""

    # Opening and closing

    async def connect(self, clean_start: bool) -> None:
        """Open one connection and wait for CONNACK; raises ConnectError."""
        self._greeting = asyncio.get_running_loop().create_future()
        self._farewell = None
        options = self._options
        if packets_log.isEnabledFor(logging.DEBUG):
            self._sent_trace = Trace("sending", options.version)
            self._received_trace = Trace("received", options.version)
        try:
            async with asyncio.timeout(options.timeout):
                self.transport = await open_transport(
                    self._address, options.tls, options.bind_address, self._received, self._lost
                )
                if self.transport.closed.done():
                    self._lost(
                        self.transport, self.transport.fault or "the peer closed the connection at once"
                    )
                self._protocol.connect(self._callbacks.connect_packet(clean_start))
                self.flush()
                await self._greeting
        except TimeoutError:
            self._drop_transport()
            raise ConnectError(
                f"cannot connect to {self._address}: no answer within {options.timeout:g} seconds"
            ) from None
        except BaseException:
            if self.connected.is_set():  # cancelled just after CONNACK: disconnect normally
                await self.close(options.disconnect_properties())
            else:
                self._drop_transport()
            raise
        finally:
            self._greeting = None

    def _drop_transport(self) -> None:
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abort()

    async def close(self, properties: Properties) -> None:
        """Send the remaining data and a DISCONNECT with these properties, and close."""
        task, self._reconnecting = self._reconnecting, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.connected.clear()
        if self._timer is not None:
            self._timer.cancel()
        transport, self.transport = self.transport, None
        if transport is None:
            return
        if self._protocol.connected:
            self._protocol.disconnect(0, properties)
        if self._protocol.has_output:
            self._write(transport)
        self._protocol.lost()
        transport.end()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await asyncio.shield(transport.closed)
        except TimeoutError:
            transport.abort()

    def _lost(self, transport: ClientTransport, text: str) -> None:
        """Handle a lost connection."""
        if transport is not self.transport:
            return
        self.transport = None
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
        # After a session takeover, two clients with one identifier would take it from each other forever.
        if self._options.reconnect and reason != Reason.SESSION_TAKEN_OVER:
            if asyncio.get_running_loop().time() - self._since > STABLE_AFTER:
                self._delay = FIRST_DELAY
            self._reconnecting = asyncio.create_task(self._reconnect())
        else:
            self._callbacks.ended(error)
        self._callbacks.lost(error)

    async def _reconnect(self) -> None:
        """Reconnect, with growing delays."""
        while True:
            # Jitter keeps clients that lost their connections together from reconnecting together.
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

    # Sending

    def flush_soon(self) -> None:
        """Flush at the end of this turn of the event loop: many packets, one write."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flushing = False
        self.flush()

    def flush(self) -> None:
        """Write the pending packets."""
        if self.transport is not None and self._protocol.has_output:
            self._last_sent = asyncio.get_running_loop().time()
            self._write(self.transport)

    def _write(self, transport: ClientTransport) -> None:
        data = self._protocol.take()
        if self._sent_trace is not None:
            self._sent_trace.feed(data)
        transport.write(data)

    def _check_keep_alive(self, interval: float) -> None:
        """Send PINGREQ when idle, and abort when the broker does not answer."""
        if self.transport is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        unanswered = self._protocol.pings_unanswered
        if unanswered and not self.paused and now - max(self._last_heard, self._pinged) >= interval:
            self.transport.abort(f"no packet from the broker for {interval:g} seconds")
            return
        if not unanswered and now - self._last_sent >= interval / 2:
            self._pinged = now
            self._protocol.ping()
            self.flush()
        self._timer = loop.call_later(interval / 4, self._check_keep_alive, interval)

    # Receiving

    def pause_reading(self) -> None:
        if self.transport is not None and not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.transport is not None and self.paused:
            self.paused = False
            self._pinged = asyncio.get_running_loop().time()  # answers could not be read while paused
            self.transport.resume_reading()

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
            text = f"not a valid MQTT broker: {error}"
            if self._protocol.connected:
                self._protocol.disconnect(error.reason)
                self.flush()
            if self.transport is not None:
                self.transport.end(text)
            elif self._greeting is not None and not self._greeting.done():
                self._greeting.set_exception(ConnectError(f"cannot connect to {self._address}: {text}"))
        self.flush()
        self._callbacks.read()

    def _handle(self, event: Connected | ConnectRefused | Ended) -> None:
        greeting = self._greeting
        match event:
            case Connected(connack):
                self._since = asyncio.get_running_loop().time()
                keep_alive = connack.properties.get("server_keep_alive", self._options.keep_alive)
                if keep_alive:
                    self._check_keep_alive(float(keep_alive))
                self.connected.set()
                _log.debug("connected to %s", self._address)
                if greeting is not None and not greeting.done():
                    greeting.set_result(None)
                self._callbacks.accepted(connack)
            case ConnectRefused(connack):
                said = connack.properties.get("reason_string", "")
                if self._protocol.version == V5:
                    text = reason_text(connack.reason, said)
                else:
                    text = _RETURN_CODES.get(connack.reason, f"return code {connack.reason}")
                if greeting is not None and not greeting.done():
                    refusal = f"{self._address} refused the connection: {text}"
                    greeting.set_exception(ConnectError(refusal, connack.reason, said))
            case Ended():
                self._farewell = event
                if self.transport is not None:
                    self.transport.end()
