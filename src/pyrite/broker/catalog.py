"""The created topics, and the topic policy.

By default, a topic need not be created to be used. A created topic is listed even without a retained message,
and lasts until it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyrite.broker.retained import SYSTEM
from pyrite.topics.tree import OrderedTopicTree, walk

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

ANY, CREATED, LISTED = "any", "created", "listed"
POLICIES = (ANY, CREATED, LISTED)
MAX_LISTED = 20
"""Topics that a refusal lists."""


@dataclass(slots=True)
class TopicOptions:
    """The [topics] table."""

    policy: str = ANY
    """Which topics may be used: any; created, those that were created; listed, only those in `names`."""
    names: list[str] = field(default_factory=list)
    """Topics that exist from the start."""


class Catalog:
    """The topics that were created."""

    def __init__(self, broker: Broker, options: TopicOptions | None = None) -> None:
        options = options or TopicOptions()
        self._broker = broker
        self.policy = options.policy
        self._fixed = {name.encode() for name in options.names}
        self.created: OrderedTopicTree[bool] = OrderedTopicTree()
        for topic in self._fixed:
            self.created[topic] = True

    def is_fixed(self, topic: bytes) -> bool:
        """Return whether the configuration names a topic, so that it cannot be deleted."""
        return topic in self._fixed

    def create_refusal(self, topic: bytes) -> str:
        """Return why a topic may not be created, or an empty text."""
        if topic.startswith(b"$"):
            return "topics that begin with $ are reserved for the broker"
        if self.policy == LISTED and topic not in self._fixed:
            return f"the list of topics is fixed; allowed topics: {self.names()}"
        return ""

    def names(self) -> str:
        """Return the names of the topics as a text, shortened if they are many."""
        names = sorted(topic.decode() for topic in self.created.values)
        return (
            ", ".join(names[:MAX_LISTED]) + (", ..." if len(names) > MAX_LISTED else "") if names else "none"
        )

    def create(self, topic: bytes) -> str:
        """Create a topic unless it exists; return why it cannot be created, or an empty text.

        The topic is durable when `Journal.after` calls back.
        """
        refusal = self.create_refusal(topic)
        if not refusal and topic not in self.created.values:
            if len(self.created) >= self._broker.limits.max_created_topics:
                return "too many topics"
            self.created[topic] = True
            self._broker.journal.state.save_topic(topic)
        return refusal

    def delete(self, topic: bytes) -> str:
        """Delete a topic and its retained message; return why it cannot be deleted, or an empty text."""
        if self.is_fixed(topic):
            return f"topic {topic.decode()!r} is listed in the configuration and cannot be deleted"
        existed = self.created.pop(topic) is not None
        if existed:
            self._broker.journal.state.drop_topic(topic)
        retained = self._broker.retained
        if topic in retained.values and not topic.startswith(SYSTEM):
            retained.delete(topic)
            existed = True
        return "" if existed else f"there is no topic {topic.decode()!r}"

    def each(self, topic_filter: bytes) -> Iterator[tuple[bytes, bytes | None] | None]:
        """Yield the created or retained topics that match a filter, in order.

        Each is paired with its retained payload, or None. Like `Retained.each`, yield None in steps that
        found no topic.
        """
        created, retained = self.created, self._broker.retained
        for topic in walk((created, retained), topic_filter):
            if topic is None:
                yield None
                continue
            batch = retained.current(topic)
            if batch is not None:
                yield topic, batch.payload()
            else:
                yield (topic, None) if topic in created.values else None
