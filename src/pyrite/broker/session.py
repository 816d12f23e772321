"""A session: what the broker knows of one client, connected or not.

Deliveries with QoS 1 and 2 pass through here. In flight are those sent and not yet acknowledged, by message
id; whole batches share one `Flight`, so that a thousand messages cost one object and a few operations that
run at the speed of C (`dict.fromkeys`, `map`). What finds no place in flight waits in a bounded queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from pyrite.broker.link import Link
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.broker.timers import NO_SLOT

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

MAX_MESSAGE_ID = 65_535
NEVER = 0xFFFF_FFFF
"""The session expiry interval of a session that does not expire."""


class Will:
    """The message a client leaves behind for the case that it vanishes."""

    __slots__ = ("batch", "delay")

    def __init__(self, batch: Batch, delay: int) -> None:
        self.batch = batch
        self.delay = delay


class Flight:
    """Consecutive messages of a batch, sent under consecutive ids and not all acknowledged yet."""

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
        """How many of the messages are still in flight; while there are any, the batch takes up memory."""

    def index(self, message_id: int) -> int:
        """Return which message of the batch went out as `message_id`."""
        return self.start + message_id - self.first_id


RELEASED = Flight(Batch(b"", b""), 0, 0, 2, None, 0)
"""Stands in flight for a QoS 2 message that the client has (PUBREC came): only its id is still taken."""


class WrongAcknowledgement(Exception):
    """A client acknowledged a message in a way that its quality of service does not have."""


NO_SUBSCRIPTIONS: dict[bytes, Subscription] = {}
"""What all sessions without a subscription share; never added to."""


class Session:
    """One client's subscriptions, unfinished deliveries and queue."""

    __slots__ = (
        "_inflight",
        "_next_id",
        "_queue",
        "_resend",
        "broker",
        "client_id",
        "expires_at",
        "expiry",
        "incoming",
        "inflight_bytes",
        "link",
        "queued_bytes",
        "queued_messages",
        "slot",
        "subscriptions",
        "will",
        "will_at",
        "window",
    )

    def __init__(self, broker: Broker, client_id: str) -> None:
        self.broker = broker
        self.client_id = client_id
        self.link: Link | None = None
        self.window = 0
        """How many messages may be in flight to the client that is connected now."""
        self.expiry = 0
        """For how many seconds the session outlives its connection; NEVER for good."""
        self.expires_at: float | None = None
        self.will_at: float | None = None
        self.slot = NO_SLOT
        self.will: Will | None = None
        self.subscriptions = NO_SUBSCRIPTIONS
        """By filter, a shared one's with its $share/group/ before it."""
        self.incoming: set[int] | None = None
        """The ids of QoS 2 messages that came and are not released yet [MQTT-4.3.3-10]."""
        self.inflight_bytes = 0
        """Bytes of the batches that are in flight, in whole or in part."""
        self.queued_messages = 0
        self.queued_bytes = 0
        # Most clients never receive QoS 1 or 2, so what that takes is made when it is needed.
        self._queue: deque[tuple[Batch, int, Subscription]] | None = None
        self._inflight: dict[int, Flight] | None = None
        self._resend: deque[int] | None = None
        self._next_id = 1

    # Sending

    def deliver(self, batch: Batch, target: Subscription) -> None:
        """Give the client a batch that one of its subscriptions asked for."""
        qos = batch.qos if batch.qos < target.qos else target.qos  # [MQTT-3.8.4-8]
        link = self.link
        if qos == 0:
            if link is not None:
                link.forward(batch, target)
            return
        if batch.mixed and link is not None and not link.takes_as_it_came(batch, target, qos):
            for single in batch.parts():
                self.deliver(single, target)
            return
        sent = 0
        if link is not None and not self._queue and not self._resend:
            sent = self._send(batch, qos, target)
        if sent < batch.count:
            self._enqueue(batch.part(sent, batch.count), qos, target)

    def _send(self, batch: Batch, qos: int, target: Subscription) -> int:
        """Send as much of the front of `batch` as may be in flight, and return how many messages went."""
        link = self.link
        assert link is not None
        inflight = self._inflight
        if inflight is None:
            inflight = self._inflight = {}
        if batch.count == 1:
            return self._send_one(link, inflight, batch, qos, target)
        sent = 0
        while sent < batch.count and self._may_send(link, inflight):
            free = self.window - len(inflight) + len(self._resend or ())
            count = min(batch.count - sent, free, max(1, link.room // batch.stride))
            first_id, count = self._free_ids(count)
            if not link.send(batch, sent, sent + count, target, qos, first_id, False):
                return batch.count  # [MQTT-3.1.2-25]: too large for this client, as if it had been sent
            flight = Flight(batch, sent, first_id, qos, target, count)
            self.inflight_bytes += len(batch.data)
            inflight.update(dict.fromkeys(range(first_id, first_id + count), flight))
            sent += count
        return sent

    def _send_one(
        self, link: Link, inflight: dict[int, Flight], batch: Batch, qos: int, target: Subscription
    ) -> int:
        """Do the same for a single message, which most clients send: a third of the work."""
        if not self._may_send(link, inflight):
            return 0
        message_id = self._next_id
        while message_id in inflight:
            message_id = message_id % MAX_MESSAGE_ID + 1
        if link.send(batch, 0, 1, target, qos, message_id, False):
            inflight[message_id] = Flight(batch, 0, message_id, qos, target, 1)
            self.inflight_bytes += len(batch.data)
            self._next_id = message_id % MAX_MESSAGE_ID + 1
        return 1  # [MQTT-3.1.2-25]: one too large for this client is as if it had been sent

    def _may_send(self, link: Link, inflight: dict[int, Flight]) -> bool:
        """Tell whether one more may be in flight: by number, by bytes, and by what waits for the client."""
        if len(inflight) - len(self._resend or ()) >= self.window:
            return False
        if inflight and self.inflight_bytes >= self.broker.limits.max_queued_bytes:
            return False
        if link.room <= 0:
            link.measure()
        return link.room > 0

    def _landed(self, flight: Flight, count: int = 1) -> None:
        """Note that messages of a flight are no longer in it."""
        flight.left -= count
        if flight.left == 0:
            self.inflight_bytes -= len(flight.batch.data)

    def _free_ids(self, count: int) -> tuple[int, int]:
        """Return the first of up to `count` consecutive ids that are free, and how many they are."""
        inflight = self._inflight
        assert inflight is not None
        first = self._next_id
        count = min(count, MAX_MESSAGE_ID + 1 - first)
        if not inflight.keys().isdisjoint(range(first, first + count)):
            # Some client acknowledges out of order. The window is smaller than the number of ids, so
            # there is a free one.
            while first in inflight:
                first = first % MAX_MESSAGE_ID + 1
            count = 1
        self._next_id = (first + count - 1) % MAX_MESSAGE_ID + 1
        return first, count

    def _enqueue(self, batch: Batch, qos: int, target: Subscription) -> None:
        """Let messages wait for the client, within the bound on what may wait for one session."""
        broker = self.broker
        limits = broker.limits
        free = limits.max_queued_messages - self.queued_messages
        if batch.stride:
            free = min(free, (limits.max_queued_bytes - self.queued_bytes) // batch.stride)
        if free < batch.count:
            broker.figures.messages_dropped += batch.count - max(free, 0)
            if free <= 0:
                return
            batch = batch.part(0, free)
        if self._queue is None:
            self._queue = deque()
        self._queue.append((batch, qos, target))
        self._count_queued(batch, 1)

    def _count_queued(self, batch: Batch, sign: int) -> None:
        self.queued_messages += sign * batch.count
        self.queued_bytes += sign * len(batch.data)
        self.broker.figures.messages_stored += sign * batch.count

    def pump(self) -> None:
        """Send what waits, as far as the window and the client's room allow."""
        link = self.link
        if link is None:
            return
        if self._resend:
            self._pump_resend(link, self._resend)
        queue = self._queue
        while queue and not self._resend:
            batch, qos, target = queue[0]
            if batch.expires_at is not None and batch.expires_at <= self.broker.now:
                queue.popleft()  # [MQTT-3.3.2-5]
                self._count_queued(batch, -1)
                continue
            if batch.mixed and not link.takes_as_it_came(batch, target, qos):
                queue.popleft()
                queue.extendleft((single, qos, target) for single in reversed(batch.parts()))
                continue
            sent = self._send(batch, qos, target)
            if sent < batch.count:
                if sent:
                    rest = batch.part(sent, batch.count)
                    queue[0] = (rest, qos, target)
                    self._count_queued(batch, -1)
                    self._count_queued(rest, 1)
                return
            queue.popleft()
            self._count_queued(batch, -1)

    def _pump_resend(self, link: Link, waiting: deque[int]) -> None:
        inflight = self._inflight
        assert inflight is not None
        while waiting and len(inflight) - len(waiting) < self.window and link.room > 0:
            message_id = waiting.popleft()
            flight = inflight.get(message_id)
            if flight is RELEASED:
                link.release(message_id)
            elif flight is not None and flight.target is not None:
                index = flight.index(message_id)
                if not link.send(flight.batch, index, index + 1, flight.target, flight.qos, message_id, True):
                    self._landed(flight)
                    del inflight[message_id]

    # Acknowledgements of the client

    def acknowledge(self, message_ids: Sequence[int]) -> None:
        """Note that the client has these QoS 1 messages."""
        if len(message_ids) == 1 and self._inflight:  # as most clients do: a short way for it
            flight = self._inflight.get(message_ids[0])
            if flight is not None and flight.qos == 1:
                del self._inflight[message_ids[0]]
                self._landed(flight)
                if self._queue or self._resend:
                    self.pump()
                return
        self._finish(message_ids, lambda flight: flight.qos == 1, "PUBACK for a message sent with QoS 2")

    def complete(self, message_ids: Sequence[int]) -> None:
        """Note that these QoS 2 deliveries are over."""
        self._finish(message_ids, lambda flight: flight is RELEASED, "PUBCOMP before PUBREC")

    def _finish(self, message_ids: Sequence[int], fits: Callable[[Flight], bool], wrong: str) -> None:
        inflight = self._inflight
        if not inflight:
            return
        found = list(map(inflight.pop, message_ids, repeat(None)))
        flights = {flight for flight in found if flight is not None}
        if not all(map(fits, flights)):
            for message_id, flight in zip(message_ids, found, strict=True):
                if flight is not None and not fits(flight):
                    inflight[message_id] = flight
            raise WrongAcknowledgement(wrong)
        for flight in flights:
            self._landed(flight, found.count(flight))
        if self._queue or self._resend:
            self.pump()

    def received(self, message_ids: Sequence[int]) -> bool:
        """Note that the client has these QoS 2 messages (PUBREC); False if any of the ids is unknown."""
        inflight = self._inflight or {}
        found = list(map(inflight.get, set(message_ids)))
        flights = {flight for flight in found if flight is not None}
        if None in found:
            return False
        if any(flight.qos != 2 for flight in flights):
            raise WrongAcknowledgement("PUBREC for a message sent with QoS 1")
        for flight in flights:
            self._landed(flight, found.count(flight))
        inflight.update(dict.fromkeys(message_ids, RELEASED))
        return True

    def refuse(self, message_id: int) -> None:
        """Note that the client will not have this message (PUBACK or PUBREC with a failure)."""
        flight = self._inflight.pop(message_id, None) if self._inflight else None
        if flight is not None:
            self._landed(flight)
        self.pump()

    # Coming and going

    def attach(self, link: Link, window: int) -> None:
        """Connect the session to a link: from here on, what arrives is sent."""
        self.link = link
        self.window = window
        self.expires_at = None
        self.will_at = None

    def due(self) -> None:
        """Do what a session that is away does with time: send its will, expire."""
        self.broker.session_due(self)

    def resume(self) -> None:
        """Send again what was unfinished, in its first order [MQTT-4.4.0-1], then what waited."""
        if self._inflight:
            self._resend = deque(self._inflight)
        self.pump()

    def detach(self) -> None:
        """Forget the link; what was shared with others and not acknowledged goes to one of them."""
        self.link = None
        self._resend = None
        self.hand_over()

    def hand_over(self) -> None:
        """Give other members of the group what this one was dealt and has not acknowledged.

        A QoS 2 message that was sent stays: no one else may have it [MQTT-4.8.2-5].
        """
        again: list[tuple[Batch, Subscription]] = []
        if self._inflight:
            for message_id, flight in list(self._inflight.items()):
                target = flight.target
                if target is not None and flight.qos == 1 and self._others(target):
                    index = flight.index(message_id)
                    again.append((flight.batch.part(index, index + 1), target))
                    self._landed(flight)
                    del self._inflight[message_id]
        if self._queue:
            kept: deque[tuple[Batch, int, Subscription]] = deque()
            for batch, qos, target in self._queue:
                expired = batch.expires_at is not None and batch.expires_at <= self.broker.now
                if expired or self._others(target):
                    self._count_queued(batch, -1)
                    if not expired:
                        again.append((batch, target))
                else:
                    kept.append((batch, qos, target))
            self._queue = kept
        for batch, target in again:
            assert target.group is not None
            self.broker.deal(batch, target.group, self)

    def _others(self, target: Subscription) -> bool:
        """Tell whether another member of the target's group is connected."""
        if target.group is None:
            return False
        return any(m.session is not self and m.session.link is not None for m in target.group.members)

    def clear(self) -> None:
        """Forget every unfinished delivery."""
        for batch, _, _ in self._queue or ():
            self._count_queued(batch, -1)
        self._queue = None
        self._inflight = None
        self.inflight_bytes = 0
        self._resend = None
        self.incoming = None

    @property
    def inflight_messages(self) -> int:
        """How many messages are sent and not finished."""
        return len(self._inflight) if self._inflight else 0
