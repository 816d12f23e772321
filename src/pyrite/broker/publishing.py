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
    from pyrite.broker.session import Session
    from pyrite.broker.shared_group import SharedGroup
    from pyrite.broker.subscriptions import Subscription

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
            done = broker.retained.pending((batch.topic,), done)
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

    def publish_mixed(
        self,
        batch: MixedBatch,
        routes: Sequence[Route],
        done: Done | None = None,
        packet_ids: Sequence[int] | None = None,
    ) -> None:
        """Publish a mixed batch, with the route of each message. All routes have the same stream. HOT."""
        stream = routes[0].stream
        retained = self._broker.retained
        if batch.retain and (batch.qos or done is not None):
            done = retained.pending(batch.topics, done)
        if (batch.qos or done is not None) and self._journal.lasting:
            done = self._fan_outs.charged(batch, routes[0], done)
            if stream is not None:
                self._journal.append(stream, batch, done, packet_ids)
            else:
                self._journal.in_turn(partial(self.deliver_in_turn, batch, done))
            return
        if stream is not None:
            self._journal.append(stream, batch, None, packet_ids)
        matched = self._deliver_mixed(batch, routes, begins=True)
        if batch.retain:
            for part in batch.parts():
                retained.retain_in_turn(part)
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

    def publish_will(self, session: Session, batch: Batch) -> None:
        """Publish the will of a session."""
        account = session.account
        if batch.retain:
            batch = batch.owned_by(account)
        if account is None or account.meter is None:
            self.publish(batch)
        else:
            account.charge(1, len(batch.data))
            self.publish_for(account, batch)

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
        route = self._subscriptions.route
        if isinstance(batch, MixedBatch):
            matched = self._deliver_mixed(batch, [route(topic) for topic in batch.topics])
        else:
            matched = self.deliver(batch, route(batch.topic))
        if batch.retain:
            for part in batch.parts():
                self.retain(part)
        return matched

    def retain(self, batch: Batch) -> None:
        """Retain a committed batch's last message."""
        self._broker.retained.retain(batch)

    def _deliver_mixed(self, batch: MixedBatch, routes: Sequence[Route], begins: bool = False) -> bool:
        """Deliver messages, each on its route; return whether any has a receiver. HOT."""
        first = routes[0]
        plain = batch.unretained()
        if all(route is first for route in routes):
            depends = batch.retain and any(target.retain_as_published for target in first.targets)
            if not depends and (batch.origins is None or not first.has_no_local):
                return self.deliver(plain, first, begins)
        if self._fan_outs.queue or any(route.is_wide for route in routes):
            parts = zip(batch.parts(), routes, strict=True)
            return sum(self.deliver(part, route) for part, route in parts) > 0
        self._deliver_shares(batch, routes)
        return any(route.receivers for route in routes)

    def _deliver_shares(self, batch: MixedBatch, routes: Sequence[Route]) -> None:
        """Deliver to each receiver its messages of a batch, together and in their order. HOT.

        Messages of a session's other subscription, with other options, are delivered before or after them.
        """
        shares: dict[Session, tuple[Subscription, list[int]]] = {}
        dealt: dict[SharedGroup, list[int]] = {}
        for index, route in enumerate(routes):
            for target in route.targets:
                session = target.session
                if target.no_local and session.client_id == self._origin(batch, index):
                    if target.own is None:
                        continue  # [MQTT-3.8.3-3]
                    target = target.own
                share = shares.get(session)
                if share is not None:
                    if share[0] is target:
                        share[1].append(index)
                        continue
                    self._deliver_share(batch, *share)
                shares[session] = (target, [index])
            for group in route.groups:
                dealt.setdefault(group, []).append(index)
        for target, indexes in shares.values():
            self._deliver_share(batch, target, indexes)
        for group, indexes in dealt.items():
            try:
                for index in indexes:
                    self._broker.groups.deliver(batch.parts()[index], group)
            except Exception:
                self.log_error(batch)

    def _origin(self, batch: MixedBatch, index: int) -> str | None:
        return batch.origin if batch.origins is None else batch.origins[index]

    def _deliver_share(self, batch: MixedBatch, target: Subscription, indexes: list[int]) -> None:
        """Deliver some messages of a batch to one subscriber."""
        session = target.session
        if not target.retain_as_published:
            batch = batch.unretained()
        try:
            if not batch.qos and session.link is not None:
                session.link.send_some_qos0(batch, indexes, target)
            elif len(indexes) == batch.count:
                session.deliver(batch, target)
            elif batch.stream is None and len(indexes) > 1:
                session.deliver(batch.only(indexes), target)
            else:  # offsets in a batch are consecutive
                parts = batch.parts()
                for index in indexes:
                    session.deliver(parts[index], target)
        except Exception:  # a defect with one receiver must not keep the batch from the others
            self.log_error(batch)

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
