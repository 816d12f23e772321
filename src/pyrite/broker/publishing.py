"""Publishing: a batch joins the log, and is delivered to the receivers on its topic's route. HOT."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyrite.broker.journal import Done, Fault
from pyrite.broker.message import Batch, MixedBatch

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker
    from pyrite.broker.routes import Route

logger = logging.getLogger(__name__)

RUN = 16
"""Messages of a batch up to which it is delivered at once, if it has few receivers."""


class Publishing:
    """Publishes batches: commit if a stream captures the topic, then route and deliver."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._fan_outs = broker.fan_outs
        self._journal = broker.journal
        self._subscriptions = broker.subscriptions

    def publish(
        self,
        batch: Batch,
        route: Route | None = None,
        done: Done | None = None,
        packet_ids: Sequence[int] | None = None,
    ) -> None:
        """Publish a batch. HOT.

        `done` is called once it is durable and delivered, or with the fault. QoS 0 without `done` waits for
        nothing. `packet_ids` are those of QoS 2 messages of a session that outlives the process.
        """
        broker = self._broker
        if route is None:
            route = self._subscriptions.route(batch.topic)
        stream = route.stream
        if batch.retain and (batch.qos or done is not None):
            done = broker.retained.pending(batch.topic, done)
        if (batch.qos or done is not None) and self._journal.lasting:
            if route.is_costly or batch.count > RUN:
                done = self._fan_outs.charged(batch, route, done)
            if stream is not None:
                self._journal.append(stream, batch, done, packet_ids)
            else:  # acknowledgements keep the order of the messages
                self._journal.in_turn(partial(self.deliver_in_turn, batch, done))
            return
        if stream is not None:
            self._journal.append(stream, batch, None, packet_ids)
        matched = self.deliver(batch, route, begins=True)
        if batch.retain:
            broker.retained.retain_in_turn(batch)
        if done is not None:
            done(matched, None)

    def publish_for(
        self,
        account: Account,
        batch: Batch,
        route: Route | None = None,
        done: Done | None = None,
        packet_ids: Sequence[int] | None = None,
    ) -> None:
        """Publish a batch of a metered account, if its quota of stored bytes has room.

        Without room, QoS 0 is dropped and counted; otherwise `done` gets a fault, and nothing is published.
        """
        if route is None:
            route = self._subscriptions.route(batch.topic)
        stream, size = route.stream, batch.content_size
        if stream is None:
            self.publish(batch, route, done, packet_ids)
            return
        if not account.may_store(size):
            figures = self._broker.figures
            figures.quota_refused += batch.count
            if done is None:
                figures.messages_dropped += batch.count
            else:
                fault = Fault(True, account.refusal("stored_bytes", size), quota=True)
                self._journal.in_turn(partial(done, False, fault))
            return
        end = stream.next_offset + batch.count
        account.store(stream, end, size)
        if done is None:
            self.publish(batch, route, None, packet_ids)
            return

        def told(matched: bool, fault: Fault | None) -> None:
            if fault is not None:
                account.unstore(stream, end, size)
            done(matched, fault)

        self.publish(batch, route, told, packet_ids)

    def deliver_in_turn(self, batch: Batch, done: Done | None) -> None:
        """Deliver a batch that no stream captures, in the place among others that it came at."""
        matched, fault = False, None
        try:
            matched = self.deliver_committed(batch)
        except Exception as error:
            self.log_error(batch)
            fault = Fault(False, f"internal error: {error!r}")
        if done is not None:
            done(matched, fault)

    def log_error(self, batch: Batch) -> None:
        """Log the exception that kept a batch from some of its receivers."""
        logger.exception("internal error: a message on %r missed some receivers", batch.topic[:200])

    def deliver_committed(self, batch: Batch) -> bool:
        """Route, deliver and retain a batch that is durable now; return whether it has a receiver."""
        routes = self._subscriptions
        if not isinstance(batch, MixedBatch):
            matched = self.deliver(batch, routes.route(batch.topic))
        else:
            found = {routes.route(topic) for topic in batch.topics}
            if len(found) == 1 and (batch.origins is None or not next(iter(found)).has_no_local):
                matched = self.deliver(batch, found.pop())
            else:  # a subscription came or went meanwhile
                matched = sum(self.deliver(part, routes.route(part.topic)) for part in batch.parts()) > 0
        if batch.retain:
            self.retain(batch)
        return matched

    def retain(self, batch: Batch) -> None:
        """Retain a committed batch's last message."""
        self._broker.retained.retain(batch)

    def deliver(self, batch: Batch, route: Route, begins: bool = False) -> bool:
        """Deliver a batch to every receiver on its route; return whether there is one. HOT.

        A long delivery is queued. `begins`: work on it at once if it is the only one.
        """
        if route.is_wide or batch.count > RUN or self._fan_outs.queue:
            self._fan_outs.send(batch, route, begins)
            return route.receivers > 0
        for target in route.targets:
            session = target.session
            if target.no_local and session.client_id == batch.origin:
                if target.own is not None:
                    session.deliver(batch, target.own)
                continue  # [MQTT-3.8.3-3]
            if batch.qos:
                session.deliver(batch, target)
            elif session.link is not None:
                session.link.send_qos0(batch, target)
            elif target.latest:
                session.keep_latest(batch)
        for group in route.groups:
            self._broker.groups.deliver(batch, group)
        return route.receivers > 0
