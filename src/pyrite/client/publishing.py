"""ClientPublishing, the sending half of the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pyrite.client.address import Address
from pyrite.client.connection import ClientConnection
from pyrite.client.errors import ClientError, ConnectionLost, PublishError, reason_text
from pyrite.client.events import Outgoing, Settled, Tally
from pyrite.client.message import Properties
from pyrite.client.protocol import Protocol


class ClientPublishing:
    """Publishes over a connection, and waits for connections, buffer space and acknowledgements."""

    def __init__(self, address: Address, protocol: Protocol, connection: ClientConnection) -> None:
        self._address = address
        self._protocol = protocol
        self._connection = connection
        self._over: ClientError | None = ClientError(
            "the client is not connected: use it in an `async with` block"
        )
        """Why calls fail: the client is not connected yet, or has ended."""
        self._arrivals: set[asyncio.Future[None]] = set()
        """Calls that wait for a connection."""
        self._outgoing: set[Outgoing] = set()
        """QoS 1 and 2 messages that a caller waits for."""
        self._tallies: set[Tally] = set()
        """Messages published together that a caller waits for."""

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish a message.

        With QoS 1 and 2, return when the broker has acknowledged it, across reconnects if need be; with QoS
        0, when it is in the send buffer. Raises PublishError if the broker refuses it. If the call is
        cancelled, a message that was already sent is still published.
        """
        data = payload.encode() if isinstance(payload, str) else payload
        self._check()
        if not qos:
            while (
                not self._protocol.connected
                or self._connection.transport is None
                or not self._connection.transport.writable
            ):
                await self._ready()
            self._protocol.publish(topic, data, 0, retain, properties)
            if self._protocol.should_flush:
                self._connection.flush()
                await asyncio.sleep(0)  # let other tasks run between the publishes of a loop
            else:
                self._connection.flush_soon()
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
        """Publish a message with QoS 1 or 2 without waiting.

        The returned future completes as a call of `publish` would, and is cheaper than a task per message.
        When publishing many messages, await some of the futures to bound memory.
        """
        data = payload.encode() if isinstance(payload, str) else payload
        self._check()
        future: asyncio.Future[None] = self._send(topic, data, qos, retain, properties).note
        return future

    async def publish_many(self, messages: Iterable[tuple[str, bytes | str]], qos: int = 1) -> None:
        """Publish messages, given as pairs of topic and payload.

        With QoS 1 and 2, return when the broker has acknowledged all of them. Raises PublishError as soon as
        it refuses one. If the call is cancelled, messages that were already sent are still published.
        """
        pairs = [
            (topic, payload.encode() if isinstance(payload, str) else payload) for topic, payload in messages
        ]
        if not qos:
            for topic, data in pairs:
                await self.publish(topic, data)
            return
        if qos not in (1, 2):
            raise ValueError(f"QoS must be 0, 1 or 2, not {qos!r}")
        self._check()
        if not pairs:
            return
        tally = Tally(len(pairs), asyncio.get_running_loop().create_future())
        self._protocol.publish_all(pairs, qos, tally)
        self._tallies.add(tally)
        self._soon()
        try:
            await tally.done
        except asyncio.CancelledError:
            self._protocol.withdraw_all(tally)
            raise
        finally:
            self._tallies.discard(tally)

    def _send(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None
    ) -> Outgoing:
        if qos not in (1, 2):
            raise ValueError(f"QoS must be 0, 1 or 2, not {qos!r}")
        outgoing = self._protocol.publish(topic, payload, qos, retain, properties)
        outgoing.note = asyncio.get_running_loop().create_future()
        self._outgoing.add(outgoing)
        self._soon()
        return outgoing

    def _soon(self) -> None:
        """Schedule a flush, and resume reading: a caller now waits for an answer."""
        self._connection.flush_soon()
        if self._connection.paused:
            self._adjust_reading()

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | str = b"",
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish a message with QoS 0 without waiting.

        Raises ConnectionLost without a connection. When publishing many messages, call `drained` regularly to
        bound memory.
        """
        data = payload.encode() if isinstance(payload, str) else payload
        self._check()
        if not self._protocol.connected:
            raise ConnectionLost(f"not connected to {self._address}")
        self._protocol.publish(topic, data, 0, retain, properties)
        if self._protocol.should_flush:
            self._connection.flush()
        else:
            self._connection.flush_soon()

    async def drained(self, everything: bool = False) -> None:
        """Wait until at most 1 MiB of sent data is buffered; with `everything`, until none is."""
        if everything:
            self._connection.flush()
        while self._connection.transport is not None and (
            everything or not self._connection.transport.writable
        ):
            await self._connection.transport.drained(everything)
            everything = False
        self._check()

    async def _ready(self) -> None:
        """Wait for a connection and for buffer space."""
        self._check()
        if self._connection.transport is not None and self._protocol.connected:
            await self._connection.transport.drained()
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
        is_last = True
        if isinstance(waiter, Tally):
            waiter.left -= 1
            is_last = not waiter.left
            waiter = waiter.done
        if waiter is None or waiter.done():
            return
        if reason < 0x80:
            if is_last:
                waiter.set_result(None)
        else:
            topic, why = outgoing.topic[2:].decode(), reason_text(reason, event.text)
            waiter.set_exception(
                PublishError(f"the broker refused a message on {topic}: {why}", reason, event.text)
            )

    def _arrived(self) -> None:
        """Wake the calls that wait for a connection."""
        for waiter in self._arrivals:
            if not waiter.done():
                waiter.set_result(None)

    def _end_publishing(self, error: ClientError) -> None:
        """Fail every waiting call."""
        waiting = [outgoing.note for outgoing in self._outgoing]
        for waiter in (*waiting, *(tally.done for tally in self._tallies), *self._arrivals):
            if not waiter.done():
                waiter.set_exception(error)

    def _check(self) -> None:
        if self._over is not None:
            raise self._over

    def _adjust_reading(self) -> None:
        """Resume reading if a call waits for an answer."""
        raise NotImplementedError
