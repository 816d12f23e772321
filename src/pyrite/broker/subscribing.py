"""Subscribing and unsubscribing, the retained messages of a new subscription, and lost rights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pyrite.broker.session import NO_SUBSCRIPTIONS, Session
from pyrite.broker.subscriptions import Subscription
from pyrite.broker.timers import TURN
from pyrite.broker.turns import FREES_PER_CLOCK

if TYPE_CHECKING:
    from pyrite.broker.access import Credentials
    from pyrite.broker.core import Broker

MAX_PRUNED_AT_ONCE = 16
"""Subscriptions of a session that are checked at once when its client connects again; more take turns."""
REMOVALS_PER_CLOCK = 4
"""Subscriptions that are removed from the tree between two looks at the clock."""


class Subscribing:
    """Adds, replaces, restores and removes the subscriptions of sessions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leaving: list[Subscription] = []
        """Subscriptions of ended sessions that are still in the tree."""

    def subscribe(self, subscription: Subscription, group_name: str | None, key: bytes) -> bool:
        """Add a subscription, or replace that with the same full filter `key`; return whether it is new."""
        broker, session = self._broker, subscription.session
        journal = broker.journal
        broker.fan_outs.settle(session)
        if session.subscriptions is NO_SUBSCRIPTIONS:
            session.subscriptions = {}
        before = session.subscriptions.get(key)
        replay = None if before is None else before.replay
        if before is not None:
            broker.following.end_replay(before)
        session.subscriptions[key] = subscription
        if before is None and session.account is not None:
            session.account.subscriptions += 1
        if before is not None:
            subscription.since = before.since  # it still gets the messages that the former one missed
        elif journal.streams:
            subscription.since = {stream: stream.routed for stream in journal.streams}
        new = broker.subscriptions.add(subscription, group_name) and before is None
        self._free_routes()
        if replay is not None:  # continue it: new messages that came meanwhile are part of it
            broker.subscriptions.remove(subscription)
            successor = replay.succeeded_by(subscription)
            session.add_replay(successor)
            broker.timers.set(successor, broker.now)
        self.save(key, subscription)
        if subscription.group is not None and session.lasting:
            journal.state.save_group(subscription.group)  # or it would start over after a crash
        return new

    def restore(self, key: bytes, subscription: Subscription, group_name: str | None) -> None:
        """Restore a subscription of an earlier process."""
        session = subscription.session
        if session.subscriptions is NO_SUBSCRIPTIONS:
            session.subscriptions = {}
        session.subscriptions[key] = subscription
        if session.account is not None:
            session.account.subscriptions += 1
        self._broker.subscriptions.add(subscription, group_name)

    def save(self, key: bytes, subscription: Subscription) -> None:
        """Save a subscription, if its session outlives the process."""
        if subscription.session.lasting:
            self._broker.journal.state.save_subscription(subscription.session, key, subscription)

    def unsubscribe(self, session: Session, key: bytes) -> bool:
        """Remove the subscription with the full filter `key`; return whether there was one."""
        broker = self._broker
        broker.fan_outs.settle(session)
        subscription = session.subscriptions.pop(key, None)
        if subscription is None:
            return False
        if session.account is not None:
            session.account.subscriptions -= 1
        broker.following.end_replay(subscription)
        self._remove(subscription)
        if subscription.latest and session.latest is not None:
            steps = session.latest.remove_matching(subscription.topic_filter)
            if sum(1 for _ in islice(steps, FREES_PER_CLOCK)) == FREES_PER_CLOCK:
                broker.turns.free(steps)
        if session.lasting:
            broker.journal.state.drop_subscription(session, key)
        return True

    def takes_long_to_prune(self, client_id: str) -> bool:
        """Return whether the session of a client that connects is to be pruned in turns."""
        session = self._broker.sessions.by_id.get(client_id)
        return session is not None and len(session.subscriptions) > MAX_PRUNED_AT_ONCE

    def prune(self, session: Session, credentials: Credentials) -> Iterator[None]:
        """Remove the subscriptions that a client may not have any more, or not as another user: one a step.

        Then drop the queued messages that it may not read.
        """
        policy = self._broker.policy
        identity = (credentials.username, credentials.groups)
        if session.identity != identity:
            session.withhold_answers()
            session.identity = identity
        may_read = policy.reading_rights(session, credentials)
        if may_read is None:
            return
        for key, subscription in list(session.subscriptions.items()):
            if session.identity != identity:
                return  # another user has taken over the session
            if not policy.has_right("subscribe", credentials, subscription.topic_filter):
                self.unsubscribe(session, key)
            yield
        session.withhold(may_read)

    def prune_at_once(self, session: Session, credentials: Credentials) -> None:
        """Prune a session with few subscriptions, or a new one."""
        for _ in self.prune(session, credentials):
            pass

    # Removal

    def _remove(self, subscription: Subscription) -> None:
        """Remove a subscription from the tree, and its group if it was the last member."""
        self._broker.subscriptions.remove(subscription)
        self._free_routes()
        group = subscription.group
        if group is not None and not group.members:
            self._broker.groups.end(group)

    def remove_all(self, subscriptions: list[Subscription]) -> None:
        """Remove the subscriptions of a session that ends from the tree; in turns if they are many.

        Its shared groups deliver nothing to it from now on: that would be lost.
        """
        if len(subscriptions) <= REMOVALS_PER_CLOCK:
            for subscription in subscriptions:
                self._remove(subscription)
            return
        for subscription in subscriptions:
            if subscription.group is not None:
                self._broker.subscriptions.leave_group(subscription)
        if not self._leaving:
            self._broker.turns.soon(self._remove_more)
        self._leaving += subscriptions

    def _remove_more(self) -> None:
        broker, leaving = self._broker, self._leaving
        until = broker.clock() + TURN
        while leaving:
            for _ in range(min(REMOVALS_PER_CLOCK, len(leaving))):
                self._remove(leaving.pop())
            if leaving and broker.clock() > until:
                broker.turns.soon(self._remove_more)
                return

    def _free_routes(self) -> None:
        """Free the routes that a change of subscriptions has invalidated."""
        forgotten = self._broker.subscriptions.cache.forgotten
        while forgotten:
            self._broker.turns.free(forgotten.pop())

    # Retained messages

    def send_retained(self, subscription: Subscription) -> Iterator[None]:
        """Deliver the retained messages of a subscription's topics, at most one in each step."""
        # The retain flag is set whatever the subscription wants of live messages [MQTT-3.3.1-8], and no other
        # subscription's identifier is sent.
        session, topic_filter = subscription.session, subscription.topic_filter
        target = Subscription(
            session,
            topic_filter,
            subscription.qos,
            retain_as_published=True,
            identifiers=subscription.identifiers,
        )
        target.keeps_cursor = True
        target.latest = subscription.latest
        for batch in self._broker.retained.each(topic_filter):
            if batch is None:
                yield
                continue
            if topic_filter not in session.subscriptions:
                return  # the client has unsubscribed meanwhile
            if not (subscription.no_local and batch.origin == session.client_id):
                session.deliver_retained(batch, target)
                batch.wires = None  # a retained message is stored once, not in each wire form
            yield
