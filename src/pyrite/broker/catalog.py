"""The topics that were created, and which topics may be used.

A topic need not be created to be used, unless the policy says so; one that was created is listed even while
it has no kept value, and lasts until it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyrite.topics.tree import OrderedTopicTree

if TYPE_CHECKING:
    from pyrite.broker.journal import Journal

ANY, CREATED, LISTED = "any", "created", "listed"
POLICIES = (ANY, CREATED, LISTED)


@dataclass(slots=True)
class TopicOptions:
    """The [topics] table."""

    policy: str = ANY
    """Which topics may be used: any; created, those that were created; listed, only those in `names`."""
    names: list[str] = field(default_factory=list)
    """Topics that are there from the start."""


class Catalog:
    """What topics there are."""

    def __init__(self, journal: Journal, options: TopicOptions | None = None) -> None:
        options = options or TopicOptions()
        self._journal = journal
        self.policy = options.policy
        self.restricts = options.policy != ANY
        """Whether some topics may not be used."""
        self._fixed = {name.encode() for name in options.names}
        self.created: OrderedTopicTree[bool] = OrderedTopicTree()
        for topic in self._fixed:
            self.created[topic] = True

    def refusal(self, topic: bytes) -> str:
        """Return why messages may not be published on a topic, or nothing if they may."""
        if not self.restricts or topic in self.created.values or topic.startswith(b"$"):
            return ""
        return self._refusal(topic)

    def filter_refusal(self, topic_filter: bytes) -> str:
        """Return why a filter may not be subscribed to, or nothing if it may: wildcards may."""
        if b"+" in topic_filter or b"#" in topic_filter:
            return ""
        return self.refusal(topic_filter)

    def _refusal(self, topic: bytes) -> str:
        name = topic.decode()
        if self.policy == LISTED:
            return f"there is no topic {name!r} here: there are {_listed(self.created.values)}"
        return f"there is no topic {name!r}: create it first"

    def create_refusal(self, topic: bytes) -> str:
        """Return why a topic may not be created, or nothing if it may."""
        if topic.startswith(b"$"):
            return "a topic that begins with $ is the broker's own"
        if self.policy == LISTED and topic not in self._fixed:
            return f"topics are fixed here: there are {_listed(self.created.values)}"
        return ""

    def create(self, topic: bytes) -> None:
        """Create a topic that is not there. It is safe when the journal calls what is `after` it."""
        self.created[topic] = True
        self._journal.state.save_topic(topic)

    def delete(self, topic: bytes) -> bool:
        """Delete a topic that is not fixed; tell whether it was there."""
        if self.created.pop(topic) is None:
            return False
        self._journal.state.drop_topic(topic)
        return True

    def is_fixed(self, topic: bytes) -> bool:
        """Tell whether the configuration names a topic, so that it cannot be deleted."""
        return topic in self._fixed


def _listed(topics: Iterable[bytes]) -> str:
    names = sorted(topic.decode() for topic in topics)
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") if names else "none"
