"""Retained messages: one for each topic, counted in all and for the account that published each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyrite.broker.journal import Done, Fault
from pyrite.broker.message import Batch
from pyrite.topics.tree import OrderedTopicTree, walk

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker

SYSTEM = b"$SYS/"
"""Prefix of the topics on which the broker alone publishes; its retained messages are not saved."""


class Retained(OrderedTopicTree[Batch]):
    """All retained messages. Those below $SYS are the broker's own, and are not counted."""

    __slots__ = ("_broker", "_pending", "bytes", "messages")

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self.messages = 0
        self.bytes = 0
        self._pending: dict[bytes, int] = {}
        """How many messages of a topic are retained as soon as they are durable."""

    def __setitem__(self, topic: bytes, batch: Batch) -> None:
        before = self.values.get(topic)
        if before is not None:
            self._count(before, -1)
        super().__setitem__(topic, batch)
        self._count(batch, 1)

    def pop(self, topic: bytes) -> Batch | None:
        """Remove `topic` and return its message, or None if there was none."""
        batch = super().pop(topic)
        if batch is not None:
            self._count(batch, -1)
        return batch

    def _count(self, batch: Batch, sign: int) -> None:
        if batch.topic.startswith(SYSTEM):
            return
        size = sign * retained_size(batch)
        self.messages += sign
        self.bytes += size
        owner = self._broker.quotas.kept(batch.owner)
        if owner is not None:
            owner.retained_messages += sign
            owner.retained_bytes += size

    # Retaining

    def has_room(self, owner: Account | None, messages: int, size: int) -> bool:
        """Return whether so many more messages of so many bytes can be retained for an owner."""
        limits = self._broker.limits
        if self.messages + messages > limits.max_retained_messages:
            return False
        if self.bytes + size > limits.retained_bytes:
            return False
        return owner is None or not (
            owner.refusal("retained_messages", messages) or owner.refusal("retained_bytes", size)
        )

    def fault(self, batch: Batch) -> Fault | None:
        """Return why a batch's last message cannot be retained for its owner, or None."""
        topic, limits, quotas = batch.topic, self._broker.limits, self._broker.quotas
        size = retained_size(batch)
        if topic.startswith(SYSTEM) or batch.stride == batch.payload_at:
            return None  # an empty message removes the retained one
        owner = quotas.kept(batch.owner)
        before = self.values.get(topic)
        more, more_bytes = int(before is None), size - (0 if before is None else retained_size(before))
        if self.messages + more > limits.max_retained_messages:
            return Fault(True, "there are too many kept values")
        if more_bytes > 0 and self.bytes + more_bytes > limits.retained_bytes:
            return Fault(True, "the kept values take too many bytes")
        if owner is None:
            return None
        if before is None or quotas.kept(before.owner) is not owner:
            more, more_bytes = 1, size
        refusal = owner.refusal("retained_messages", more) if more else ""
        if not refusal and more_bytes > 0:
            refusal = owner.refusal("retained_bytes", more_bytes)
        return Fault(True, refusal, quota=True) if refusal else None

    def retain(self, batch: Batch, checked: bool = False) -> None:
        """Retain a batch's last message; an empty one removes the topic's retained message. HOT.

        `checked`: there is room for it.
        """
        topic, last = batch.topic, batch.count - 1
        journal = self._broker.journal
        if batch.stride == batch.payload_at:
            self.pop(topic)  # [MQTT-3.3.1-6], [MQTT-3.3.1-7]
            journal.state.drop_retained(topic)
            return
        retained = batch if last == 0 else batch.part(last, batch.count)
        if not self._replace(retained):
            if not checked and self.fault(retained) is not None:
                self._broker.figures.retained_refused += 1
                return
            self[topic] = retained
        if not topic.startswith(SYSTEM):
            journal.state.save_retained(retained)

    def _replace(self, batch: Batch) -> bool:
        """Replace the retained message of a topic if it has the same owner and there is room. HOT."""
        topic, owner = batch.topic, batch.owner
        before = self.values.get(topic)
        if before is None or before.owner is not owner or topic.startswith(SYSTEM):
            return False
        more = retained_size(batch) - retained_size(before)
        if more > 0 and self.bytes + more > self._broker.limits.retained_bytes:
            return False
        if more > 0 and owner is not None and owner.refusal("retained_bytes", more):
            return False
        self.values[topic] = batch
        self.bytes += more
        if owner is not None:
            owner.retained_bytes += more
        return True

    def retain_in_turn(self, batch: Batch) -> None:
        """Retain a batch, after earlier messages on its topic that are not durable yet."""
        if batch.topic not in self._pending:
            self.retain(batch)
            return
        retained = self.pending((batch.topic,), None)

        def turn() -> None:
            self.retain(batch)
            retained(False, None)

        self._broker.journal.in_turn(turn)

    def pending(self, topics: Sequence[bytes], done: Done | None) -> Done:
        """Count a message as pending on each topic until the returned call is made in place of `done`."""
        pending = self._pending
        for topic in topics:
            pending[topic] = pending.get(topic, 0) + 1

        def retained(matched: bool, fault: Fault | None) -> None:
            for topic in topics:
                pending[topic] -= 1
                if not pending[topic]:
                    del pending[topic]
            if done is not None:
                done(matched, fault)

        return retained

    # Reading

    def each(self, topic_filter: bytes) -> Iterator[Batch | None]:
        """Yield the messages that match a filter, ordered by topic.

        Each step takes a bounded time, and yields None if it found no message. Messages may be added and
        removed between two steps.
        """
        for topic in walk((self,), topic_filter):
            yield None if topic is None else self.current(topic)

    def current(self, topic: bytes) -> Batch | None:
        """Return the message of a topic; remove it if it has expired."""
        batch = self.values.get(topic)
        if batch is not None and batch.expires_at is not None and batch.expires_at <= self._broker.now:
            self.remove(topic)  # [MQTT-3.3.2-5]
            return None
        return batch

    def remove(self, topic: bytes) -> None:
        """Remove the message of a topic, which has expired."""
        self.pop(topic)
        self._broker.journal.state.drop_retained(topic)

    def delete(self, topic: bytes) -> None:
        """Remove the message of a topic at a client's request."""
        self.pop(topic)
        self._broker.journal.state.delete_retained(topic)


def last_of(batch: Batch) -> Batch:
    """Return the last message of a batch, as it is retained."""
    last = batch.count - 1
    retained = Batch(
        batch.topic, batch.payload(last), batch.qos, True, batch.properties, batch.expires_at, batch.origin
    )
    if batch.owner is not None:
        retained = retained.owned_by(batch.owner)
    return retained.lies_in(batch.stream, batch.offset + last)


def retained_size(batch: Batch) -> int:
    """Return the bytes that a retained message counts: topic, last payload and properties."""
    size = len(batch.topic) + batch.stride - batch.payload_at
    properties = batch.properties
    if properties is not None:
        size += len(properties.content_type or "") + len(properties.response_topic or "")
        size += len(properties.correlation_data or b"")
        size += sum(len(name) + len(value) for name, value in properties.user_properties)
    return size
