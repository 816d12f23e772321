"""Recording state changes: which row of which table a change of the broker's state becomes.

Sessions' deliveries, unfinished QoS 2 ids, cursors of shared groups and stored bytes change with every
message. Of these only the owner is remembered (progress.py); their rows are made when the group is cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyrite.broker.consumers import Consumer
from pyrite.broker.journal import StateChanges, Stream
from pyrite.broker.message import Batch
from pyrite.broker.session import Session
from pyrite.broker.shared_group import SharedGroup
from pyrite.broker.subscriptions import Subscription
from pyrite.journal import state as sql
from pyrite.journal.changes import Changes
from pyrite.journal.progress import Progress, numbers
from pyrite.journal.restoring import dump_bits, dump_block, dump_properties
from pyrite.journal.sink_state import SinkState
from pyrite.journal.state import Change
from pyrite.journal.tables import OWNER

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker


class RecordedChanges(StateChanges):
    """State changes that wait to be committed, of each row the last."""

    def __init__(self, wall: Callable[[], float], on_new_row: Callable[[], object]) -> None:
        self._wall = wall
        self._on_new_row = on_new_row
        """Called when a row is changed that no waiting change is of."""
        self._changes = Changes()
        self.noted = 0
        """Rows changed since the last commit began."""
        self.progress = Progress()

    def begin(self, broker: Broker, applied: dict[Stream, int]) -> None:
        """Serve a broker whose state includes the effects of messages up to `applied`."""
        self._broker = broker
        self.progress.begin(broker, applied)

    @property
    def has_changes(self) -> bool:
        """Whether anything waits to be committed."""
        return bool(self._changes) or bool(self.progress)

    @property
    def number_of_rows(self) -> int:
        """How many rows wait to be committed, besides those of progress."""
        return len(self._changes)

    def note(self, change: Change) -> None:
        """Record a change."""
        if self._changes.add(change):
            self.noted += 1
            self._on_new_row()

    def take(self, unsafe: Mapping[str | None, set[int]]) -> Changes:
        """Return everything to be committed now; `unsafe` are QoS 2 ids that are not in the log yet."""
        changes, self._changes = self._changes, Changes()
        self.noted = 0
        self.progress.take(changes, unsafe)
        return changes

    def keep_uncommitted(self, changes: Changes) -> None:
        """Keep changes that could not be committed."""
        changes.update(self._changes)
        self._changes = changes

    # Sessions

    def save_session(self, session: Session) -> None:
        """Record a session and its expiry."""
        expires_at = None
        if session.expires_at is not None:
            expires_at = self._wall() + session.expires_at - self._broker.now
        self.note((sql.SAVE_SESSION, (session.client_id, session.expiry, expires_at)))

    def drop_session(self, session: Session) -> None:
        """Delete a session with everything that belongs to it."""
        self.progress.forget_session(session)
        self.drop_remains(session.client_id)

    def drop_remains(self, client_id: str) -> None:
        """Delete every row of a session."""
        for statement in (sql.DROP_SESSION, sql.DROP_SUBSCRIPTIONS, sql.DROP_STEPS, sql.DROP_INCOMING):
            self.note((statement, (client_id,)))

    def save_owner(self, session: Session) -> None:
        """Record the account that a session counts for."""
        if session.account is None:
            self.drop_owner(session)
        else:
            self.note((sql.SAVE_ACCOUNT, (OWNER, session.client_id, session.account.key)))

    def drop_owner(self, session: Session) -> None:
        """Record that a session counts for no account any more."""
        self.drop_owner_of(session.client_id)

    def drop_owner_of(self, client_id: str) -> None:
        """Record that no session of this id counts for an account."""
        self.note((sql.DROP_ACCOUNT, (OWNER, client_id)))

    def save_stored(self, account: Account) -> None:
        """Record that the bytes an account has stored in the log have changed."""
        self.progress.accounts[account.key] = account

    def save_subscription(self, session: Session, key: bytes, subscription: Subscription) -> None:
        """Record a subscription."""
        options: dict[str, Any] = {
            "qos": subscription.qos,
            "no_local": subscription.no_local,
            "retain_as_published": subscription.retain_as_published,
            "retain_handling": subscription.retain_handling,
            "identifiers": subscription.identifiers,
            "lossless": subscription.lossless,
            "latest": subscription.latest,
            "since": None if subscription.since is None else numbers(subscription.since),
        }
        if subscription.replay is not None:
            options["replay"] = numbers(subscription.replay.reached)
        self.note((sql.SAVE_SUBSCRIPTION, (session.client_id, key, json.dumps(options))))

    def drop_subscription(self, session: Session, key: bytes) -> None:
        """Delete a subscription."""
        self.note((sql.DROP_SUBSCRIPTION, (session.client_id, key)))

    def save_incoming(self, session: Session) -> None:
        """Record that the ids of a session's unfinished QoS 2 messages have changed."""
        self.progress.incoming[session] = None

    def save_deliveries(self, session: Session) -> None:
        """Record that messages were sent to a client, or acknowledged by it."""
        self.progress.deliveries[session] = None

    def save_group(self, group: SharedGroup) -> None:
        """Record that the cursor of a shared group has moved."""
        self.progress.groups[group] = None

    def drop_group(self, group: SharedGroup) -> None:
        """Delete a shared group that has no members left."""
        self.progress.groups.pop(group, None)
        self.note((sql.DROP_GROUP, (group.name, group.topic_filter)))

    # Everything else

    def save_retained(self, batch: Batch) -> None:
        """Record a retained message."""
        message: dict[str, Any] = {"qos": batch.qos, "origin": batch.origin}
        if batch.owner is not None:
            message["owner"] = batch.owner.key
        if batch.stream is not None:
            message["stream"], message["offset"] = batch.stream.number, batch.offset
        if batch.expires_at is not None:
            message["expires_at"] = self._wall() + batch.expires_at - self._broker.now
        if batch.properties is not None:
            message["properties"] = dump_properties(batch.properties)
        self.note((sql.SAVE_RETAINED, (batch.topic, json.dumps(message), batch.payload())))

    def drop_retained(self, topic: bytes) -> None:
        """Delete the retained message of a topic."""
        self.note((sql.DROP_RETAINED, (topic,)))

    def save_consumer(self, consumer: Consumer) -> None:
        """Record a consumer, its cursor, and the changes of its pending messages."""
        state = {
            "filter": consumer.topic_filter.decode(),
            "positions": numbers(consumer.positions),
            "within": consumer.within,
        }
        if consumer.owner is not None:
            state["owner"] = consumer.owner.key
        self.note((sql.SAVE_CONSUMER, (consumer.name, json.dumps(state))))
        for (stream, number), bits in consumer.pending.take_changed():
            block = dump_block(stream.number, number)
            if bits:
                self.note((sql.SAVE_PENDING, (consumer.name, block, dump_bits(bits))))
            else:
                self.drop_pending(consumer.name, block)

    def drop_consumer(self, name: str) -> None:
        """Delete a consumer."""
        self.note((sql.DROP_CONSUMER, (name,)))
        self.note((sql.DROP_ALL_PENDING, (name,)))

    def drop_pending(self, name: str, block: bytes) -> None:
        """Record that no message of a block is pending."""
        self.note((sql.DROP_PENDING, (name, block)))

    def save_topic(self, topic: bytes) -> None:
        """Record a created topic."""
        self.note((sql.SAVE_TOPIC, (topic,)))

    def drop_topic(self, topic: bytes) -> None:
        """Delete a created topic."""
        self.note((sql.DROP_TOPIC, (topic,)))

    def save_sink(self, sink: SinkState) -> None:
        """Record a sink."""
        self.note((sql.SAVE_SINK, (sink.name, json.dumps(sink.dump()))))

    def drop_sink(self, name: str) -> None:
        """Delete a sink."""
        self.note((sql.DROP_SINK, (name,)))
