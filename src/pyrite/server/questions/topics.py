"""Questions about topics: which there are, in a list or level by level; creating and deleting them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge

from pyrite.broker.access import Credentials
from pyrite.broker.core import Broker
from pyrite.broker.topics import SHARE_PREFIX, InvalidTopic, check_filter, check_topic, matches
from pyrite.server.questions.pages import Page
from pyrite.server.questions.problem import Message, Problem, Reply, refused
from pyrite.server.questions.tree import children, level_at

SHOWN = 64 * 1024
"""Bytes of a kept value that are told with a list of topics; of a longer one, only how long it is."""
ALL_SHOWN = 4 * 1024 * 1024
"""Bytes of kept values that are told with one page, and of that of a topic which is asked for alone."""
LEVELS = 50
"""Levels that are looked at in one turn: about a millisecond's work."""


@dataclass(slots=True)
class Room:
    """Bytes that kept values may still take in an answer."""

    left: int = ALL_SHOWN
    of_each: int = SHOWN


def checked_filter(broker: Broker, text: str) -> bytes:
    """Return a filter as bytes; Problem if it is none."""
    try:
        topic_filter = text.encode()
        check_filter(topic_filter, broker.limits.max_topic_levels)
        if topic_filter.startswith(SHARE_PREFIX):
            raise InvalidTopic("$share is for subscriptions: leave it and the group out")
    except (InvalidTopic, UnicodeEncodeError) as wrong:
        raise Problem(400, f"filter {text!r}: {wrong}") from None
    return topic_filter


def checked_topic(broker: Broker, text: str, what: str = "topic") -> bytes:
    """Return a topic as bytes; Problem if it is none, which says `what` is wrong."""
    try:
        topic = text.encode()
        check_topic(topic, broker.limits.max_topic_levels)
    except (InvalidTopic, UnicodeEncodeError) as wrong:
        raise Problem(400, f"{what} {text!r}: {wrong}") from None
    return topic


class Topics:
    """Knows what topics there are."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def page(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of some topics, in order."""
        broker = self._broker
        topic_filter = checked_filter(broker, message["filter"])
        self._check_subscribe(who, message["filter"])
        after = message["after"]

        def following(after: bytes | None) -> Iterator[bytes]:
            trees = (broker.catalog.created, broker.retained)
            return merge(*(tree.following(after, topic_filter) for tree in trees))

        def found(page: list[bytes], more: bool) -> None:
            room = Room()
            told = [self._about(topic, room) for topic in page]
            topics = [one for one in told if one["created"] or one["kept"] is not None]
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

    def one(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of one topic."""
        topic = checked_topic(self._broker, message["topic"])
        self._check_subscribe(who, message["topic"])
        about = self._about(topic, Room(of_each=ALL_SHOWN))
        if not about["created"] and about["kept"] is None:
            raise Problem(404, f"topic {message['topic']!r} was not created, and has no retained message")
        reply(about)

    def level(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of the levels that follow one, or of the first ones, with how many topics are below each."""
        broker, after = self._broker, message["after"]
        below: str | None = message["below"]
        stem = b"" if below is None else checked_topic(broker, f"{below}/", "below")
        self._check_subscribe(who, "#" if below is None else f"{below}/#")
        trees = (broker.catalog.created, broker.retained)
        room = Room()
        levels: list[Message] = []

        def look_at(place: bytes) -> bool:
            level = level_at(stem, place)
            counts = {
                "created": broker.catalog.created.count_below(level),
                "kept": broker.retained.count_below(level),
            }
            name = level[len(stem) :].decode()
            levels.append({"name": name, **self._about(level, room), "below": counts})
            return True

        def found(page: list[bytes], more: bool) -> None:
            there = [one for one in levels[: len(page)] if _has_some(one)]
            reply({"levels": there, "next": page[-1].decode() if more else None})

        Page(
            broker,
            lambda place: children(trees, stem, place),
            None if after is None else after.encode("utf-8", "replace"),
            message["limit"],
            look_at,
            found,
            reply,
            LEVELS,
        )

    def _about(self, topic: bytes, room: Room) -> Message:
        created = topic in self._broker.catalog.created.values
        return {"topic": topic.decode(), "created": created, "kept": self._kept(topic, room)}

    def _kept(self, topic: bytes, room: Room) -> Message | None:
        batch = self._broker.retained.values.get(topic)
        if batch is None or (batch.expires_at is not None and batch.expires_at <= self._broker.now):
            return None
        payload = batch.payload()
        about: Message = {"size": len(payload), "qos": batch.qos}
        if len(payload) <= min(room.of_each, room.left):
            room.left -= len(payload)
            try:
                about["payload"] = payload.decode()
            except UnicodeDecodeError:
                about["payload_base64"] = base64.b64encode(payload).decode()
        return about

    def _check_subscribe(self, who: Credentials, topic_filter: str) -> None:
        access = self._broker.access
        if access.checks_topics and not access.may_subscribe(who, topic_filter):
            raise refused("subscribe", topic_filter)

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
        if access.checks_topics and not access.may_admin(who, name):
            raise refused("admin", name)
        return topic

    def _change(
        self, change: Callable[[bytes], str], topic: bytes, status: int, reply: Reply, found: Message | None
    ) -> None:
        refusal = change(topic)
        if refusal:
            raise Problem(status, refusal)
        self._broker.journal.after(lambda: reply(found))


def _has_some(level: Message) -> bool:
    """Tell whether there is something at a level, or below: a kept value may have expired."""
    return bool(level["created"] or level["kept"] is not None or any(level["below"].values()))
