"""The broker's interface to a connection of any protocol.

A link buffers output and is flushed once per batch: the first link with output wakes the event loop (or the
test) that drives the broker, which then calls `Output.flush`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyrite.broker.access import Credentials
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker
    from pyrite.broker.message import Batch, MixedBatch
    from pyrite.broker.subscriptions import Subscription


class Transport(Protocol):
    """Destination of a link's bytes; asyncio's transports have this interface."""

    def write(self, data: bytes | bytearray) -> None:
        """Send `data` now, or as soon as the peer reads."""

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the peer has not read yet."""

    def pause_reading(self) -> None:
        """Stop feeding the connection until `resume_reading`."""

    def resume_reading(self) -> None:
        """Feed the connection again."""

    def input_has_ended(self) -> bool:
        """Return whether the peer sends nothing more; what it sent before may still wait to be read."""

    def close(self) -> None:
        """Close after sending all buffered bytes."""

    def abort(self) -> None:
        """Close at once, and discard buffered bytes."""


EMPTY_OUTBOX: list[bytes | bytearray] = []
"""The outbox of every link without output; never appended to."""


class Link:
    """One connection: an outbox and a transport, with one bound on the bytes buffered in both."""

    __slots__ = ("broker", "chunks", "held", "meter", "room", "transport")

    credentials: Credentials
    """Identity of the client."""

    def __init__(self, broker: Broker, transport: Transport) -> None:
        self.broker = broker
        self.transport = transport
        self.chunks = EMPTY_OUTBOX
        self.meter: Account | None = None
        """The account that the client's publishing is charged to; None if it has no rate quota."""
        self.held = False
        """True while the start of the outbox must not be sent because its changes are not committed."""
        self.room = broker.limits.max_waiting_bytes
        """Bytes that may still be buffered before messages for this client are held back or dropped."""

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages `start` to `stop` of a batch, with consecutive ids from `first_id` if qos > 0.

        Return False if the messages are too large for this client.
        """
        raise NotImplementedError

    @property
    def is_roomy(self) -> bool:
        """True if at least half of the output buffer is free."""
        if 2 * self.room < self.broker.limits.max_waiting_bytes:
            self.flush()
            self.measure()
        return 2 * self.room >= self.broker.limits.max_waiting_bytes

    def can_take(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Return whether the messages are small enough for this client."""
        raise NotImplementedError

    def takes_as_it_came(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Return whether the batch's bytes can be sent to this client unchanged, except message ids."""
        raise NotImplementedError

    def send_qos0(self, batch: Batch, target: Subscription) -> None:
        """Send a whole batch with QoS 0; without room, leave it in the log, or drop and count it."""
        raise NotImplementedError

    def send_some_qos0(self, batch: MixedBatch, indexes: Sequence[int], target: Subscription) -> None:
        """Send some messages of a batch with QoS 0."""
        parts = batch.parts()
        for index in indexes:
            self.send_qos0(parts[index], target)

    def release(self, message_id: int) -> None:
        """Resend the second step of a QoS 2 delivery."""
        raise NotImplementedError

    def go_on(self) -> object:
        """Continue with input that was interrupted at the end of a turn."""
        raise NotImplementedError

    def displaced(self) -> None:
        """Close the connection: another one has taken over the session."""
        raise NotImplementedError

    def ended(self, reason: int) -> None:
        """Close the connection on the broker's behalf, with an MQTT 5 reason code."""
        raise NotImplementedError

    def write(self, data: bytes | bytearray) -> None:
        """Append `data` to the outbox, which is flushed once per batch."""
        if self.chunks:
            self.chunks.append(data)
        else:
            self.chunks = [data]
            self.broker.output.add(self)
        self.room -= len(data)
        if self.room < 0:
            self.overfull()

    def flush(self) -> None:
        """Write the whole outbox to the transport in one call."""
        chunks = self.chunks
        if not chunks or self.held:
            return
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.chunks = EMPTY_OUTBOX
        broker, transport = self.broker, self.transport
        broker.figures.bytes_sent += len(data)
        transport.write(data)
        self.room = broker.limits.max_waiting_bytes - transport.get_write_buffer_size()

    def overfull(self) -> None:
        """Act on a full output buffer: more than the bound is in it."""
        raise NotImplementedError

    def measure(self) -> None:
        """Update `room` from the number of bytes that the transport buffers."""
        if not self.held:  # otherwise all output is in the outbox, and already counted
            self.room = self.broker.limits.max_waiting_bytes - self.transport.get_write_buffer_size()

    def drained(self) -> None:
        """Send the messages that were held back: the transport has room again."""
        raise NotImplementedError
