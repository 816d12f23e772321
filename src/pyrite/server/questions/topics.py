"""Questions about topics: which there are, in a list or level by level; creating and deleting them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge

from pyrite.broker.access import Credentials
from pyrite.broker.core import Broker
from pyrite.server.questions.pages import Entry, Page, PageTurns
from pyrite.server.questions.problem import Message, Part, Problem, Reply, refused
from pyrite.server.questions.tree import children, level_at
from pyrite.topics.filters import SHARE_PREFIX, InvalidTopic, check_filter, check_topic, matches

SHOWN = 64 * 1024
"""Bytes of a kept value that are told with a list of topics; of a longer one, only how long it is."""
ALL_SHOWN = 4 * 1024 * 1024
"""Bytes of kept values that are told with one page, and of that of a topic which is asked for alone."""


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

    def __init__(self, broker: Broker, turns: PageTurns) -> None:
        self._broker = broker
        self._turns = turns

    def page(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of some topics, in order."""
        broker = self._broker
        topic_filter = checked_filter(broker, message["filter"])
        self._check_subscribe(who, message["filter"])
        after = message["after"]
        room = Room()

        def following(after: bytes | None) -> Iterator[bytes]:
            trees = (broker.catalog.created, broker.retained)
            return merge(*(tree.following(after, topic_filter) for tree in trees))

        def describe(topic: bytes) -> Entry | None:
            if not matches(topic_filter, topic):
                return None
            about, payload = self._about(topic, room)
            return (about, payload) if about["created"] or about["kept"] is not None else None

        page = Page(
            broker,
            following,
            None if after is None else after.encode("utf-8", "replace"),
            message["limit"],
            describe,
            lambda last: reply({"next": None if last is None else last.decode()}),
            reply,
        )
        self._turns.add(who.asker, page.work)

    def one(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of one topic."""
        topic = checked_topic(self._broker, message["topic"])
        self._check_subscribe(who, message["topic"])
        about, payload = self._about(topic, Room(of_each=ALL_SHOWN))
        if not about["created"] and about["kept"] is None:
            raise Problem(404, f"topic {message['topic']!r} was not created, and has no retained message")
        reply(Part([about], payload))
        reply(None)

    def level(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of the levels that follow one, or of the first ones, with how many topics are below each."""
        broker, after = self._broker, message["after"]
        below: str | None = message["below"]
        stem = b"" if below is None else checked_topic(broker, f"{below}/", "below")
        self._check_subscribe(who, "#" if below is None else f"{below}/#")
        trees = (broker.catalog.created, broker.retained)
        room = Room()

        def describe(place: bytes) -> Entry | None:
            level = level_at(stem, place)
            counts = {
                "created": broker.catalog.created.count_below(level),
                "kept": broker.retained.count_below(level),
            }
            about, payload = self._about(level, room)
            entry = {"name": level[len(stem) :].decode(), **about, "below": counts}
            return (entry, payload) if _has_some(entry) else None

        page = Page(
            broker,
            lambda place: children(trees, stem, place),
            None if after is None else after.encode("utf-8", "replace"),
            message["limit"],
            describe,
            lambda last: reply({"next": None if last is None else last.decode()}),
            reply,
        )
        self._turns.add(who.asker, page.work)

    def _about(self, topic: bytes, room: Room) -> Entry:
        """Return what is told of a topic, and the payload of its kept value if there is room for it."""
        created = topic in self._broker.catalog.created.values
        kept, payload = self._kept(topic, room)
        return {"topic": topic.decode(), "created": created, "kept": kept}, payload

    def _kept(self, topic: bytes, room: Room) -> tuple[Message | None, bytes]:
        batch = self._broker.retained.values.get(topic)
        if batch is None or (batch.expires_at is not None and batch.expires_at <= self._broker.now):
            return None, b""
        size = batch.stride - batch.payload_at
        about: Message = {"size": size, "qos": batch.qos, "attached": size <= min(room.of_each, room.left)}
        if not about["attached"]:
            return about, b""
        room.left -= size
        return about, batch.payload()

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
