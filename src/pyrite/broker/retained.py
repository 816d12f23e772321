"""Retained messages by topic: what they take in all, and of the account that published each."""

from __future__ import annotations

from collections.abc import Callable

from pyrite.broker.accounts import Account
from pyrite.broker.message import Batch
from pyrite.topics.tree import OrderedTopicTree

SYSTEM = b"$SYS/"
"""How the topics begin on which the broker alone publishes; what it retains there is its own affair."""


class Retained(OrderedTopicTree[Batch]):
    """All retained messages. Those below $SYS are the broker's own, and not counted."""

    __slots__ = ("_kept", "bytes", "messages")

    def __init__(self, kept: Callable[[Account | None], Account | None]) -> None:
        super().__init__()
        self._kept = kept
        self.messages = 0
        self.bytes = 0

    def __setitem__(self, topic: bytes, batch: Batch) -> None:
        before = self.values.get(topic)
        if before is not None:
            self._count(before, -1)
        super().__setitem__(topic, batch)
        self._count(batch, 1)

    def pop(self, topic: bytes) -> Batch | None:
        """Remove `topic` and return its value, or None if it was not there."""
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
        owner = self._kept(batch.owner)
        if owner is not None:
            owner.retained_messages += sign
            owner.retained_bytes += size


def retained_size(batch: Batch) -> int:
    """Return how many bytes a message takes as a retained one: topic, last payload and properties."""
    size = len(batch.topic) + batch.stride - batch.payload_at
    properties = batch.properties
    if properties is not None:
        size += len(properties.content_type or "") + len(properties.response_topic or "")
        size += len(properties.correlation_data or b"")
        size += sum(len(name) + len(value) for name, value in properties.user_properties)
    return size
