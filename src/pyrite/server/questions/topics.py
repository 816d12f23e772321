"""Questions about topics: which there are, with their kept values; creating and deleting them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from heapq import merge

from pyrite.broker.access import Credentials
from pyrite.broker.core import Broker
from pyrite.broker.topics import InvalidTopic, check_filter, check_topic, matches
from pyrite.server.questions.pages import Page
from pyrite.server.questions.problem import Message, Problem, Reply, refused

SHOWN = 64 * 1024
"""Bytes of a kept value that are told with a list of topics; of a longer one, only how long it is."""
ALL_SHOWN = 4 * 1024 * 1024
"""Bytes of kept values that are told with one page."""


def checked_filter(broker: Broker, text: str) -> bytes:
    """Return a filter as bytes; Problem if it is none."""
    try:
        topic_filter = text.encode()
        check_filter(topic_filter, broker.limits.max_topic_levels)
    except (InvalidTopic, UnicodeEncodeError) as wrong:
        raise Problem(400, f"filter {text!r}: {wrong}") from None
    return topic_filter


def checked_topic(broker: Broker, text: str) -> bytes:
    """Return a topic as bytes; Problem if it is none."""
    try:
        topic = text.encode()
        if len(topic) > 65_535:
            raise InvalidTopic("a topic has at most 65535 bytes")
        check_topic(topic, broker.limits.max_topic_levels)
    except (InvalidTopic, UnicodeEncodeError) as wrong:
        raise Problem(400, f"topic {text!r}: {wrong}") from None
    return topic


class Topics:
    """Knows what topics there are."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def page(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of some topics, in order."""
        broker = self._broker
        access = broker.access
        topic_filter = checked_filter(broker, message["filter"])
        if access.checks_topics and not access.may_subscribe(who, message["filter"]):
            raise refused("subscribe", message["filter"])
        created = broker.catalog.created.values
        after = message["after"]

        def following(after: bytes | None) -> Iterator[bytes]:
            trees = (broker.catalog.created, broker.retained)
            return merge(*(tree.following(after, topic_filter) for tree in trees))

        def found(page: list[bytes], more: bool) -> None:
            left = ALL_SHOWN
            topics = []
            for topic in page:
                value = self._kept(topic, left)
                left -= value.pop("shown") if value is not None else 0
                if value is not None or topic in created:
                    topics.append({"topic": topic.decode(), "created": topic in created, "kept": value})
            reply({"topics": topics, "next": page[-1].decode() if more else None})

        Page(
            broker,
            following,
            None if after is None else after.encode("utf-8", "replace"),
            message["limit"],
            lambda topic: matches(topic_filter, topic),
            found,
            reply,
        )

    def _kept(self, topic: bytes, left: int) -> Message | None:
        batch = self._broker.retained.values.get(topic)
        if batch is None or (batch.expires_at is not None and batch.expires_at <= self._broker.now):
            return None
        payload = batch.payload()
        about: Message = {"size": len(payload), "qos": batch.qos, "shown": 0}
        if len(payload) <= min(SHOWN, left):
            about["shown"] = len(payload)
            try:
                about["payload"] = payload.decode()
            except UnicodeDecodeError:
                about["payload_base64"] = base64.b64encode(payload).decode()
        return about

    def create(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Create a topic, if it is not there; tell whether it was not."""
        topic = self._managed(who, message)
        new = topic not in self._broker.catalog.created.values
        self._change(self._broker.create_topic, topic, 409, reply, {"created": new})

    def delete(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Delete a topic, and its kept value."""
        topic = self._managed(who, message)
        fixed = self._broker.catalog.is_fixed(topic)
        self._change(self._broker.delete_topic, topic, 409 if fixed else 404, reply, None)

    def _managed(self, who: Credentials, message: Message) -> bytes:
        access, name = self._broker.access, message["topic"]
        topic = checked_topic(self._broker, name)
        if access.checks_topics and not access.may_manage(who, name):
            raise refused("manage", name)
        return topic

    def _change(
        self, change: Callable[[bytes], str], topic: bytes, status: int, reply: Reply, found: Message | None
    ) -> None:
        refusal = change(topic)
        if refusal:
            raise Problem(status, refusal)
        self._broker.journal.after(lambda: reply(found))
