"""The newest message of each topic, for a session that wants no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyrite.topics.filters import matches

if TYPE_CHECKING:
    from pyrite.broker.limits import Limits
    from pyrite.broker.message import Batch


class Latest:
    """What waits for a client's acknowledgement: of each topic the newest message, and never another."""

    __slots__ = ("_limits", "_size", "values")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._size = 0
        self.values: dict[bytes, Batch] = {}

    def put(self, batch: Batch) -> int:
        """Have the last message of a batch of one topic wait; return how many messages it replaces.

        One of a topic that there is no room for is not kept, and counts as replaced itself.
        """
        newest = batch.part(batch.count - 1, batch.count)
        before = self.values.get(batch.topic)
        size = self._size + newest.stride - (before.stride if before is not None else 0)
        limits = self._limits
        if size > limits.max_queued_bytes or (
            before is None and len(self.values) >= limits.max_queued_messages
        ):
            return batch.count
        self._size = size
        self.values[batch.topic] = newest
        return batch.count - (before is None)

    def remove(self, topic: bytes) -> None:
        """Forget what waits for a topic."""
        value = self.values.pop(topic, None)
        if value is not None:
            self._size -= value.stride

    def remove_matching(self, topic_filter: bytes) -> Iterator[None]:
        """Forget what waits now for the topics of a filter, a topic at each step."""
        return self._remove(topic_filter, list(self.values), list(self.values.values()))

    def _remove(self, topic_filter: bytes, topics: list[bytes], values: list[Batch]) -> Iterator[None]:
        for topic, value in zip(topics, values, strict=True):
            if self.values.get(topic) is value and matches(topic_filter, topic):
                self.remove(topic)
            yield
