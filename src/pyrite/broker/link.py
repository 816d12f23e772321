"""The live end of a session: what the broker needs of a connection, whatever protocol it speaks.

A link gathers what is to be sent and is flushed once a batch: whoever drives the broker (a server's event
loop, a test) is woken when the first link has something, and then calls `Broker.flush`.
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
    """Where a link's bytes go; asyncio's transports are this."""

    def write(self, data: bytes | bytearray) -> None:
        """Send `data`, now or as soon as the peer takes it."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for the peer."""

    def pause_reading(self) -> None:
        """Feed the connection nothing until further notice."""

    def resume_reading(self) -> None:
        """Feed the connection again."""

    def close(self) -> None:
        """Close once everything written is sent."""

    def abort(self) -> None:
        """Close at once."""


NOTHING: list[bytes | bytearray] = []
"""The outbox of every link that has nothing to send; never added to."""


class Link:
    """One connection: an outbox before a transport, with a bound on what may wait in both."""

    __slots__ = ("broker", "chunks", "held", "meter", "room", "transport")

    credentials: Credentials
    """Who is at the other end."""

    def __init__(self, broker: Broker, transport: Transport) -> None:
        self.broker = broker
        self.transport = transport
        self.chunks = NOTHING
        self.meter: Account | None = None
        """The account that what the client publishes is metered for; None if it is not metered."""
        self.held = False
        """Whether nothing is to be sent yet: what it begins with is not safe."""
        self.room = broker.limits.max_waiting_bytes
        """How many more bytes may wait for this client before messages to it are held back or dropped."""

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages `start` to `stop` of a batch, with consecutive ids from `first_id` if qos > 0.

        Return False if this client can never take them (too large for it).
        """
        raise NotImplementedError

    @property
    def is_roomy(self) -> bool:
        """Whether there is room for more than a little."""
        if 2 * self.room < self.broker.limits.max_waiting_bytes:
            self.flush()
            self.measure()
        return 2 * self.room >= self.broker.limits.max_waiting_bytes

    def can_take(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Tell whether messages are not too large for this client."""
        raise NotImplementedError

    def takes_as_it_came(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Tell whether the batch's bytes, but for ids, are what this client would be sent."""
        raise NotImplementedError

    def forward(self, batch: Batch, target: Subscription) -> None:
        """Send a whole batch with QoS 0, or drop and count it where there is no room."""
        raise NotImplementedError

    def release(self, message_id: int) -> None:
        """Repeat the second step of a QoS 2 delivery."""
        raise NotImplementedError

    def go_on(self) -> object:
        """Go on where the connection was interrupted for the others' sake."""
        raise NotImplementedError

    def displaced(self) -> None:
        """Make way: another connection has taken over the session."""
        raise NotImplementedError

    def ended(self, reason: int) -> None:
        """End the connection for a reason of the broker's own (an MQTT 5 reason code)."""
        raise NotImplementedError

    def write(self, data: bytes | bytearray) -> None:
        """Put `data` into the outbox, to be sent with the rest of the batch."""
        if self.chunks:
            self.chunks.append(data)
        else:
            self.chunks = [data]
            self.broker.dirty(self)
        self.room -= len(data)

    def flush(self) -> None:
        """Hand the outbox to the transport in one write."""
        chunks = self.chunks
        if not chunks or self.held:
            return
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.chunks = NOTHING
        self.broker.figures.bytes_sent += len(data)
        self.transport.write(data)
        self.measure()

    def measure(self) -> None:
        """Find out how much room there is, from what waits in the transport."""
        if not self.held:  # else all of it waits here
            self.room = self.broker.limits.max_waiting_bytes - self.transport.get_write_buffer_size()

    def drained(self) -> None:
        """Note that the transport has room again, and send what was held back meanwhile."""
        raise NotImplementedError
