"""The half of a client that publishes: with an acknowledgement to wait for, or without."""

from __future__ import annotations

import asyncio

from pyrite.client.errors import ClientError, ConnectionLost, PublishError, reason_text
from pyrite.client.events import Outgoing, Settled
from pyrite.client.link import Link
from pyrite.client.message import Properties
from pyrite.client.protocol import Protocol
from pyrite.client.wire import Address


class Publishing:
    """Publishes over a link, and waits: for a connection, for room, for acknowledgements."""

    def __init__(self, address: Address, protocol: Protocol, link: Link) -> None:
        self._address = address
        self._protocol = protocol
        self._link = link
        self._over: ClientError | None = ClientError("the client is not connected: use it in `async with`")
        """Why nothing can be done any more, or yet."""
        self._arrivals: set[asyncio.Future[None]] = set()
        """Calls that wait for a connection."""
        self._outgoing: set[Outgoing] = set()
        """QoS 1 and 2 messages that someone waits for."""

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish a message.

        With QoS 1 and 2, return when the broker has acknowledged it, however many connections that takes;
        with QoS 0, when it is on its way. Raises PublishError if the broker refuses, with its reason. A call
        that is cancelled leaves the message on its way if it was sent already.
        """
        data = payload.encode() if isinstance(payload, str) else payload
        self._check()
        if not qos:
            while not self._protocol.connected or self._link.wire is None or not self._link.wire.writable:
                await self._ready()
            self._protocol.publish(topic, data, 0, retain, properties)
            if self._protocol.has_much_output:
                self._link.flush()
                await asyncio.sleep(0)  # a loop that publishes is not to keep everyone else from their turn
            else:
                self._link.soon()
            return
        outgoing = self._send(topic, data, qos, retain, properties)
        try:
            await outgoing.note
        except asyncio.CancelledError:
            self._protocol.withdraw(outgoing)
            raise
        finally:
            self._outgoing.discard(outgoing)

    def publish_soon(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 1,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> asyncio.Future[None]:
        """Publish a message with QoS 1 or 2 without waiting for anything.

        The future that is returned ends as a call of `publish` would. It takes less time than a task for each
        message; who sends many waits for some of them now and then.
        """
        data = payload.encode() if isinstance(payload, str) else payload
        self._check()
        future: asyncio.Future[None] = self._send(topic, data, qos, retain, properties).note
        return future

    def _send(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None
    ) -> Outgoing:
        if qos not in (1, 2):
            raise ValueError(f"QoS is 0, 1 or 2, not {qos!r}")
        outgoing = self._protocol.publish(topic, payload, qos, retain, properties)
        outgoing.note = asyncio.get_running_loop().create_future()
        self._outgoing.add(outgoing)
        self._soon()
        return outgoing

    def _soon(self) -> None:
        """Send what there is to send, and read on: whoever asked waits for an answer."""
        self._link.soon()
        if self._link.paused:
            self._adjust_reading()

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | str = b"",
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish a message with QoS 0 without waiting for anything.

        Raises ConnectionLost if there is no connection at the time. Who sends many calls `drained` now and
        then, so that they do not pile up in memory.
        """
        data = payload.encode() if isinstance(payload, str) else payload
        self._check()
        if not self._protocol.connected:
            raise ConnectionLost(f"there is no connection to {self._address} at the time")
        self._protocol.publish(topic, data, 0, retain, properties)
        if self._protocol.has_much_output:
            self._link.flush()
        else:
            self._link.soon()

    async def drained(self, everything: bool = False) -> None:
        """Return when what was published has been given to the system: `everything`, or all but 1 MiB."""
        if everything:
            self._link.flush()
        while self._link.wire is not None and (everything or not self._link.wire.writable):
            await self._link.wire.drained(everything)
            everything = False
        self._check()

    async def _ready(self) -> None:
        """Wait for a connection with room for more."""
        self._check()
        if self._link.wire is not None and self._protocol.connected:
            await self._link.wire.drained()
        else:
            await self._until_connected()

    async def _until_connected(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._arrivals.add(waiter)
        try:
            await waiter
        finally:
            self._arrivals.discard(waiter)

    def _settle(self, event: Settled) -> None:
        outgoing, reason = event.outgoing, event.reason
        self._outgoing.discard(outgoing)
        waiter = outgoing.note
        if waiter is None or waiter.done():
            return
        if reason < 0x80:
            waiter.set_result(None)
        else:
            topic, why = outgoing.topic[2:].decode(), reason_text(reason, event.text)
            waiter.set_exception(
                PublishError(f"the broker refused a message on {topic}: {why}", reason, event.text)
            )

    def _arrived(self) -> None:
        """Let those go on who wait for a connection."""
        for waiter in self._arrivals:
            if not waiter.done():
                waiter.set_result(None)

    def _end_publishing(self, error: ClientError) -> None:
        """End everything that waits with an error."""
        for waiter in (*(outgoing.note for outgoing in self._outgoing), *self._arrivals):
            if not waiter.done():
                waiter.set_exception(error)

    def _check(self) -> None:
        if self._over is not None:
            raise self._over

    def _adjust_reading(self) -> None:
        """Read on if someone waits for an answer; the other half knows who else does."""
        raise NotImplementedError
