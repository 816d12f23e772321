"""Link: what the broker needs of a connection, in every protocol.

A link collects output, which `Output.flush` sends in one write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyrite.broker.access import Credentials
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker
    from pyrite.broker.message import Batch
    from pyrite.broker.subscriptions import Subscription


class Transport(Protocol):
    """The destination of a link's bytes; asyncio's transports have this interface."""

    def write(self, data: bytes | bytearray) -> None:
        """Send `data`, now or when the peer has room."""

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait for the peer."""

    def pause_reading(self) -> None:
        """Stop feeding the connection."""

    def resume_reading(self) -> None:
        """Feed the connection again."""

    def close(self) -> None:
        """Close when everything written has been sent."""

    def abort(self) -> None:
        """Close at once."""


NOTHING: list[bytes | bytearray] = []
"""The outbox of every link without output; never added to."""


class Link:
    """One connection: an outbox before a transport, with a bound on the bytes in both."""

    __slots__ = ("broker", "chunks", "held", "meter", "room", "transport")

    credentials: Credentials
    """The client's identity."""

    def __init__(self, broker: Broker, transport: Transport) -> None:
        self.broker = broker
        self.transport = transport
        self.chunks = NOTHING
        self.meter: Account | None = None
        """The account that is charged for the client's messages; None if it is not metered."""
        self.held = False
        """Whether output is held back until the journal has committed the session."""
        self.room = broker.limits.max_waiting_bytes
        """Bytes that may still be buffered for this client before messages to it are held back or dropped."""

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages `start` to `stop` of a batch, with consecutive ids from `first_id` if qos > 0.

        Return False if they are too large for this client.
        """
        raise NotImplementedError

    @property
    def is_roomy(self) -> bool:
        """Whether at least half of the buffer is free."""
        if 2 * self.room < self.broker.limits.max_waiting_bytes:
            self.flush()
            self.measure()
        return 2 * self.room >= self.broker.limits.max_waiting_bytes

    def can_take(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Return whether messages are small enough for this client."""
        raise NotImplementedError

    def takes_as_it_came(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Return whether the batch's bytes, except ids, are what this client would be sent."""
        raise NotImplementedError

    def forward(self, batch: Batch, target: Subscription) -> None:
        """Send a whole batch with QoS 0, or drop and count it without room."""
        raise NotImplementedError

    def release(self, message_id: int) -> None:
        """Repeat the second step of a QoS 2 delivery."""
        raise NotImplementedError

    def go_on(self) -> object:
        """Continue with input that had to wait for its turn."""
        raise NotImplementedError

    def displaced(self) -> None:
        """Close: another connection has taken over the session."""
        raise NotImplementedError

    def ended(self, reason: int) -> None:
        """End the connection for a reason of the broker (an MQTT 5 reason code)."""
        raise NotImplementedError

    def write(self, data: bytes | bytearray) -> None:
        """Add `data` to the outbox."""
        if self.chunks:
            self.chunks.append(data)
        else:
            self.chunks = [data]
            self.broker.output.add(self)
        self.room -= len(data)

    def flush(self) -> None:
        """Write the outbox to the transport, in one call."""
        chunks = self.chunks
        if not chunks or self.held:
            return
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.chunks = NOTHING
        self.broker.figures.bytes_sent += len(data)
        self.transport.write(data)
        self.measure()

    def measure(self) -> None:
        """Set `room` from the bytes that wait in the transport."""
        if not self.held:  # else everything waits here
            self.room = self.broker.limits.max_waiting_bytes - self.transport.get_write_buffer_size()

    def drained(self) -> None:
        """Send what was held back while the transport had no room."""
        raise NotImplementedError
