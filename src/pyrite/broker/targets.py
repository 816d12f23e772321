"""Which subscription of a session a message from the log is for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription, combine
from pyrite.topics.filters import matches

if TYPE_CHECKING:
    from pyrite.broker.session import Session

MAX_TRIED_FILTERS = 8
"""Subscriptions of a session up to which matching each is faster than walking the tree."""


def asks_for(session: Session, topic: bytes) -> bool:
    """Return whether any of a session's subscriptions matches a topic."""
    replays = session.replays or ()
    return any(_matching(session, topic)) or any(
        matches(replay.subscription.topic_filter, topic) for replay in replays
    )


def _matching(session: Session, topic: bytes) -> Iterable[Subscription]:
    """Return a session's subscriptions that match a topic; of many, without those that replay the past."""
    if len(session.subscriptions) <= MAX_TRIED_FILTERS:
        return [one for one in session.subscriptions.values() if matches(one.topic_filter, topic)]
    return session.broker.subscriptions.of(session, topic)


def shared_target(session: Session, batch: Batch) -> Subscription | None:
    """Return the shared subscription for which a session may have been sent a batch."""
    for one in _matching(session, batch.topic):
        if one.group is not None:
            return one
    return None


def target_for(session: Session, batch: Batch) -> Subscription | None:
    """Return the session's subscriptions to a batch from the log, merged into one; None without any."""
    matching = [
        one
        for one in _matching(session, batch.topic)
        if one.group is None and one.replay is None and one.wants(batch)
    ]
    target = combine(matching) if matching else None
    if target is not None and target.no_local and batch.origin == session.client_id:
        return target.own  # [MQTT-3.8.3-3]
    return target


def earlier_target(session: Session, batch: Batch, qos: int) -> Subscription:
    """Return a target for a message older than the subscription: it was sent as a retained message."""
    target = Subscription(session, batch.topic, qos, retain_as_published=True)
    target.keeps_cursor = True
    for one in _matching(session, batch.topic):
        if one.group is None:
            target.identifiers = one.identifiers
            break
    return target
