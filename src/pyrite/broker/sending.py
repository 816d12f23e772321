"""Sending with QoS 1 and 2: queue, in-flight window, link, and the acknowledgements of the client. HOT."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyrite.broker.delivery_queue import DeliveryQueue
from pyrite.broker.inflight import MAX_MESSAGE_ID, RELEASED, Flight, InFlight
from pyrite.broker.link import Link
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.broker.timers import TURN

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.record import DeliveryRecord

MESSAGES_PER_CLOCK = 32
"""Messages that are sent between two looks at the clock."""


class Sender:
    """The messages on their way to one client: queued, in flight, or to be sent again."""

    __slots__ = (
        "_unsent",
        "broker",
        "inflight",
        "is_pumping",
        "link",
        "queue",
        "record",
        "resend",
        "window",
    )

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.link: Link | None = None
        self.window = 0
        """The number of messages that may be in flight to the present link."""
        self.queue = DeliveryQueue(broker.figures)
        self.inflight: InFlight | None = None
        """Made when the first message is sent: most clients receive QoS 0 alone."""
        self.resend: deque[int] | None = None
        """Ids in flight that are to be sent again first. While it is a deque, even an empty one, nothing new
        is sent."""
        self.record: DeliveryRecord | None = None
        """The durable record of deliveries; None for a session that does not outlive the process."""
        self._unsent = 0
        """Messages in flight that are sent when the record is committed."""
        self.is_pumping = False
        """Whether `send_waiting` goes on in a later turn."""

    @property
    def inflight_ids(self) -> Collection[int]:
        """The ids of messages in flight."""
        return self.inflight.flights.keys() if self.inflight is not None else ()

    @property
    def inflight_messages(self) -> int:
        """The number of messages in flight."""
        return len(self.inflight.flights) if self.inflight is not None else 0

    @property
    def capacity(self) -> int:
        """The number of messages that may be sent right now."""
        link = self.link
        if link is None or self.queue.entries or self.resend is not None:
            return 0
        if self.inflight is None:
            self.inflight = InFlight()
        if not self._may_send(link, self.inflight):
            return 0
        return self.window - len(self.inflight.flights)

    @property
    def has_room(self) -> bool:
        """Whether more messages may be read from the log for this session."""
        return (
            self.link is not None
            and self.resend is None
            and (not self.queue.entries or self.queue.bytes < self.broker.limits.max_buffered_bytes // 2)
        )

    # Sending

    def send_if_idle(self, batch: Batch, qos: int, target: Subscription) -> int:
        """Send the front of a batch, unless older messages wait. Return the number of messages sent."""
        if self.link is not None and not self.queue.entries and self.resend is None:
            return self._send(batch, qos, target)
        return 0

    def _send(self, batch: Batch, qos: int, target: Subscription) -> int:
        """Send as much of the front of a batch as may be in flight. Return the number of messages sent."""
        link = self.link
        assert link is not None
        inflight = self.inflight
        if inflight is None:
            inflight = self.inflight = InFlight()
        if batch.count == 1:  # three times as fast as the general case
            flights = inflight.flights
            is_full = len(flights) >= self.window or inflight.size >= self.broker.limits.max_queued_bytes
            if (is_full or link.room <= 0) and not self._may_send(link, inflight):
                return 0
            message_id = inflight.next_id
            if message_id in flights:
                message_id = inflight.free_id()
            flight = Flight(batch, 0, message_id, qos, target, 1)
            if self.record is None:
                fits = link.send(batch, 0, 1, target, qos, message_id, False)
            else:
                fits = self._record_and_send(link, flight, 1)
            if fits:
                flights[message_id] = flight
                inflight.size += len(batch.data)
                inflight.next_id = message_id % MAX_MESSAGE_ID + 1
            return 1  # [MQTT-3.1.2-25]: one too large for this client is as if it had been sent
        sent = 0
        while sent < batch.count and self._may_send(link, inflight):
            free = self.window - len(inflight.flights) + len(self.resend or ())
            count = min(batch.count - sent, free, max(1, link.room // batch.stride))
            first_id, count = inflight.free_ids(count)
            flight = Flight(batch, sent, first_id, qos, target, count)
            if not self._record_and_send(link, flight, count):
                return batch.count  # [MQTT-3.1.2-25]: too large for this client, as if it had been sent
            inflight.add(flight, count)
            sent += count
        return sent

    def _record_and_send(self, link: Link, flight: Flight, count: int) -> bool:
        """Record and send messages; return false if this client can never take them.

        With QoS 2, the id of a message is committed before the message is sent. Later messages wait for that.
        """
        batch, start, target = flight.batch, flight.start, flight.target
        assert target is not None
        record = self.record
        if record is None or (batch.stream is None and flight.qos == 1):
            return link.send(batch, start, start + count, target, flight.qos, flight.first_id, False)
        if flight.qos == 1 and not self._unsent:
            sent = link.send(batch, start, start + count, target, 1, flight.first_id, False)
            if sent:
                record.sent(flight, count)
            return sent
        if not link.can_take(batch, target, flight.qos):
            return False
        record.sent(flight, count)
        self._unsent += 1
        self.broker.journal.after(partial(self._send_recorded, link, flight, count))
        return True

    def _send_recorded(self, link: Link, flight: Flight, count: int) -> None:
        self._unsent -= 1
        if self.link is link:
            start, target = flight.start, flight.target
            assert target is not None
            link.send(flight.batch, start, start + count, target, flight.qos, flight.first_id, False)

    def _may_send(self, link: Link, inflight: InFlight) -> bool:
        """Return whether one more message may be in flight: by number, by bytes, and by the link's room."""
        if len(inflight.flights) - len(self.resend or ()) >= self.window:
            return False
        if inflight.flights and inflight.size >= self.broker.limits.max_queued_bytes:
            return False
        if link.room <= 0:
            link.measure()
        return link.room > 0

    def send_share(self, batch: Batch, target: Subscription) -> int:
        """Send what can be sent now of a batch for a shared subscription. Return the number of messages."""
        qos = batch.qos if batch.qos < target.qos else target.qos
        link = self.link
        if link is None or (qos and not self.capacity):
            return 0
        if qos == 0:
            link.send_qos0(batch, target)
            return batch.count
        if not batch.mixed or link.takes_as_it_came(batch, target, qos):
            return self._send(batch, qos, target)
        taken = 0
        for single in batch.parts():
            if not self._send(single, qos, target):
                break
            taken += 1
        return taken

    # Going on

    def go_on(self) -> None:
        """Take a turn: send more of what waits."""
        self.is_pumping = False
        self.send_waiting()

    def _is_turn_over(self, count: int, until: float) -> bool:
        """Return whether the rest, after `count` messages, waits for another turn; ask for one if so."""
        if count % MESSAGES_PER_CLOCK or self.broker.clock() <= until:
            return False
        self.is_pumping = True
        self.broker.turns.add(self)
        return True

    def send_waiting(self) -> None:
        """Send what waits, as far as window and link allow; in turns if it is much."""
        link = self.link
        if link is None or self.is_pumping:
            return
        queue = self.queue
        until = self.broker.clock() + TURN if self.resend or queue.entries else 0.0
        if self.resend:
            self._resend_waiting(link, self.resend, until)
        if self.resend is not None:
            return
        count = 0
        while queue.entries:
            count += 1
            if self._is_turn_over(count, until):
                return
            batch, qos, target = queue.entries[0]
            if batch.expires_at is not None and batch.expires_at <= self.broker.now:
                queue.remove_first(batch.count)  # [MQTT-3.3.2-5]
                continue
            if batch.mixed and not link.takes_as_it_came(batch, target, qos):
                queue.split_first()
                continue
            sent = self._send(batch, qos, target)
            if sent:
                queue.remove_first(sent)
            if sent < batch.count:
                return
        self.read_backlog()

    def read_backlog(self) -> None:
        """Read on in the log what waits there for the client."""
        raise NotImplementedError

    def has_backlog(self) -> bool:
        """Return whether messages wait in the log for the client, or for a shared group."""
        raise NotImplementedError

    def _resend_waiting(self, link: Link, waiting: deque[int], until: float) -> None:
        inflight = self.inflight
        assert inflight is not None
        flights = inflight.flights
        count = 0
        while waiting and len(flights) - len(waiting) < self.window and link.room > 0:
            count += 1
            if self._is_turn_over(count, until):
                return
            message_id = waiting.popleft()
            flight = flights.get(message_id)
            if flight is RELEASED:
                link.release(message_id)
            elif flight is not None and flight.target is not None:
                index = flight.index(message_id)
                if not link.send(flight.batch, index, index + 1, flight.target, flight.qos, message_id, True):
                    self.drop_flight(message_id, flight)
        if not waiting:
            self.resend = None

    # Acknowledgements of the client

    def acknowledge(self, message_ids: Sequence[int]) -> None:
        """Handle PUBACK, or Ack."""
        inflight = self.inflight
        if inflight is None or not inflight.flights:
            return
        flight = inflight.flights.get(message_ids[0]) if len(message_ids) == 1 else None
        if flight is not None and flight.qos == 1:  # most clients acknowledge one message at a time
            del inflight.flights[message_ids[0]]
            inflight.landed(flight)
        else:
            inflight.acknowledged(message_ids)
        if self.record is not None:
            self.record.done(message_ids)
        if self.queue.entries or self.resend or self.has_backlog():
            self.send_waiting()

    def complete(self, message_ids: Sequence[int]) -> None:
        """Handle PUBCOMP."""
        inflight = self.inflight
        if inflight is None or not inflight.flights:
            return
        inflight.completed(message_ids)
        if self.record is not None:
            self.record.done(message_ids)
        if self.queue.entries or self.resend or self.has_backlog():
            self.send_waiting()

    def received(self, message_ids: Sequence[int]) -> bool:
        """Handle PUBREC. Return false if any of the ids is unknown."""
        if self.inflight is None or not self.inflight.received(message_ids):
            return False
        if self.record is not None:
            self.record.received(message_ids)
        return True

    def refuse(self, message_id: int) -> None:
        """Handle PUBACK or PUBREC with a failure: the client does not want the message."""
        flight = self.inflight.flights.get(message_id) if self.inflight is not None else None
        if flight is not None:
            self.drop_flight(message_id, flight)
        self.send_waiting()

    def drop_flight(self, message_id: int, flight: Flight) -> None:
        """Remove a message from the window and the record."""
        assert self.inflight is not None
        del self.inflight.flights[message_id]
        self.inflight.landed(flight)
        if self.record is not None:
            self.record.done((message_id,))
