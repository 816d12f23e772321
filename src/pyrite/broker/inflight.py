"""The in-flight window: messages that were sent with QoS 1 or 2 and are not acknowledged, by message id.

Messages of one batch that are sent together share one `Flight`. So a thousand messages cost one object and a
few operations at the speed of C (`dict.fromkeys`, `map`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.errors import PyriteError

if TYPE_CHECKING:
    from pyrite.broker.message import AbsentBatch

MAX_MESSAGE_ID = 65_535


class Flight:
    """Consecutive messages of a batch, sent under consecutive ids and not all acknowledged."""

    __slots__ = ("batch", "first_id", "left", "qos", "start", "target")

    def __init__(
        self, batch: Batch, start: int, first_id: int, qos: int, target: Subscription | None, left: int
    ) -> None:
        self.batch = batch
        self.start = start
        self.first_id = first_id
        self.qos = qos
        self.target = target
        self.left = left
        """Messages that are still in flight; until there are none, the batch occupies memory."""

    def index(self, message_id: int) -> int:
        """Return the index in the batch of the message with an id."""
        return self.start + message_id - self.first_id


RELEASED = Flight(Batch(b"", b""), 0, 0, 2, None, 0)
"""A QoS 2 message that the client has received (PUBREC): only its id is still in use."""

SHARED = Subscription(None, b"", 1)  # type: ignore[arg-type]
"""The target of a restored message of a shared subscription that is not known any more."""


class WrongAcknowledgement(PyriteError):
    """A client acknowledged a message in a way that does not belong to its QoS."""


class InFlight:
    """The messages in flight to one client."""

    __slots__ = ("flights", "next_id", "size")

    def __init__(self) -> None:
        self.flights: dict[int, Flight] = {}
        self.size = 0
        """Bytes of the batches that are in flight, in whole or in part."""
        self.next_id = 1

    def free_id(self) -> int:
        """Return a message id that is not in use. The window is smaller than the number of ids."""
        message_id = self.next_id
        while message_id in self.flights:
            message_id = message_id % MAX_MESSAGE_ID + 1
        return message_id

    def free_ids(self, count: int) -> tuple[int, int]:
        """Return the first of up to `count` consecutive ids that are not in use, and their number."""
        first = self.next_id
        count = min(count, MAX_MESSAGE_ID + 1 - first)
        if not self.flights.keys().isdisjoint(range(first, first + count)):  # acknowledged out of order
            first = self.free_id()
            count = min(count, MAX_MESSAGE_ID + 1 - first)
            # All ids up to the next one in use: one at a time, each would search the same ids again.
            in_use = next(filter(self.flights.__contains__, range(first, first + count)), first + count)
            count = in_use - first
        return first, count

    def add(self, flight: Flight, count: int) -> None:
        """Add messages that were sent under consecutive ids."""
        first = flight.first_id
        self.flights.update(dict.fromkeys(range(first, first + count), flight))
        self.size += len(flight.batch.data)
        self.next_id = (first + count - 1) % MAX_MESSAGE_ID + 1

    def landed(self, flight: Flight, count: int = 1) -> None:
        """Record that messages of a flight are acknowledged or given up."""
        flight.left -= count
        if flight.left == 0:
            self.size -= len(flight.batch.data)

    def _landed_all(self, found: list[Flight | None], flights: set[Flight]) -> None:
        """Record it for many messages, each given by its flight; `flights` are the distinct ones."""
        if len(flights) == 1:
            for flight in flights:
                self.landed(flight, found.count(flight))
            return
        counts: dict[Flight, int] = {}
        for one in found:
            if one is not None:
                counts[one] = counts.get(one, 0) + 1
        for flight, count in counts.items():
            self.landed(flight, count)

    def acknowledged(self, message_ids: Sequence[int]) -> None:
        """Remove QoS 1 messages (PUBACK). Unknown ids are ignored."""
        found = list(map(self.flights.pop, message_ids, repeat(None)))
        flights = {flight for flight in found if flight is not None}
        if any(flight.qos != 1 for flight in flights):
            self._put_back(message_ids, found)
            raise WrongAcknowledgement("PUBACK for a message sent with QoS 2")
        self._landed_all(found, flights)

    def completed(self, message_ids: Sequence[int]) -> None:
        """Remove QoS 2 messages that the client has received (PUBCOMP). Unknown ids are ignored."""
        found = list(map(self.flights.pop, message_ids, repeat(None)))
        if any(flight is not None and flight is not RELEASED for flight in found):
            self._put_back(message_ids, found)
            raise WrongAcknowledgement("PUBCOMP before PUBREC")

    def _put_back(self, message_ids: Sequence[int], found: list[Flight | None]) -> None:
        for message_id, flight in zip(message_ids, found, strict=True):
            if flight is not None:
                self.flights[message_id] = flight

    def received(self, message_ids: Sequence[int]) -> bool:
        """Release QoS 2 messages (PUBREC). Return false, and do nothing, if an id is unknown."""
        found = list(map(self.flights.get, set(message_ids)))
        flights = {flight for flight in found if flight is not None}
        if None in found:
            return False
        if any(flight.qos != 2 for flight in flights):
            raise WrongAcknowledgement("PUBREC for a message sent with QoS 1")
        self._landed_all(found, flights)
        self.flights.update(dict.fromkeys(message_ids, RELEASED))
        return True

    def each_unreleased(self) -> Iterator[tuple[int, Flight]]:
        """Yield messages that the client may not have received. They may change between two steps."""
        for message_id, flight in list(self.flights.items()):
            if flight is not RELEASED and self.flights.get(message_id) is flight:
                yield message_id, flight

    def restore(self, sent: dict[int, tuple[AbsentBatch, int, bool] | None]) -> None:
        """Add messages of an earlier process: place in the log, QoS, and whether to a shared subscription.

        None stands for a message that the client has received.
        """
        self.flights = {
            message_id: RELEASED
            if message is None
            else Flight(message[0], 0, message_id, message[1], SHARED if message[2] else None, 1)
            for message_id, message in sent.items()
        }
