"""The newest message of each topic, for subscriptions with `latest`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyrite.topics.filters import matches

if TYPE_CHECKING:
    from pyrite.broker.limits import Limits
    from pyrite.broker.message import Batch


class Latest:
    """The newest message of each topic that waits for a client's acknowledgement."""

    __slots__ = ("_limits", "_size", "values")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._size = 0
        self.values: dict[bytes, Batch] = {}

    def put(self, batch: Batch) -> int:
        """Keep the last message of a batch of one topic; return the number of messages that it replaces.

        Without room, the message is dropped and counts as replaced.
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
        """Forget the message of a topic."""
        value = self.values.pop(topic, None)
        if value is not None:
            self._size -= value.stride

    def remove_matching(self, topic_filter: bytes) -> Iterator[None]:
        """Forget the messages of topics that match a filter, one topic in each step."""
        return self._remove(topic_filter, list(self.values), list(self.values.values()))

    def _remove(self, topic_filter: bytes, topics: list[bytes], values: list[Batch]) -> Iterator[None]:
        for topic, value in zip(topics, values, strict=True):
            if self.values.get(topic) is value and matches(topic_filter, topic):
                self.remove(topic)
            yield
