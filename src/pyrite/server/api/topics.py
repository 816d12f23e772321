"""Requests that list topics, list them level by level, create and delete them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Any

from msgspec import UNSET

from pyrite.broker.access import Credentials
from pyrite.broker.core import Broker
from pyrite.ipc.api.topics import (
    Below,
    Created,
    CreateTopic,
    DeleteTopic,
    GetTopic,
    LevelInfo,
    LevelPage,
    ListLevels,
    ListTopics,
    RetainedInfo,
    TopicInfo,
    TopicPage,
)
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call
from pyrite.server.api.checks import check, checked_filter, checked_topic
from pyrite.server.api.pages import Entry, PageBuilder, PageTurns
from pyrite.server.api.tree import children, level_at
from pyrite.server.gate import answers
from pyrite.topics.filters import matches

MAX_LISTED_PAYLOAD = 64 * 1024
"""Maximum bytes of a payload in a list; only the size of a larger one is listed."""
MAX_PAYLOADS = 4 * 1024 * 1024
"""Maximum bytes of payloads in a page, and in the answer about one topic."""


@dataclass(slots=True)
class PayloadRoom:
    """Bytes left for payloads in an answer."""

    left: int = MAX_PAYLOADS
    of_each: int = MAX_LISTED_PAYLOAD


class TopicRequests:
    """Answers requests about topics."""

    def __init__(self, broker: Broker, turns: PageTurns) -> None:
        self._broker = broker
        self._turns = turns

    @answers(ListTopics)
    def page(self, caller: Credentials, request: ListTopics, call: Call[TopicPage]) -> None:
        """Return a page of topics."""
        broker = self._broker
        topic_filter = checked_filter(broker, request.filter)
        check(broker.policy.refuse_list(caller, topic_filter))
        room = PayloadRoom()

        def following(after: bytes | None) -> Iterator[bytes]:
            trees = (broker.catalog.created, broker.retained)
            return merge(*(tree.following(after, topic_filter) for tree in trees))

        def describe(topic: bytes) -> Entry | None:
            if not matches(topic_filter, topic):
                return None
            created, kept = self._state(topic, room)
            if not created and kept is None:
                return None
            return TopicInfo(topic.decode(), created, kept), _payload_size(kept)

        page = PageBuilder(
            broker,
            call,
            following,
            _name(request.after),
            request.limit,
            describe,
            lambda topics, last: TopicPage(topics, None if last is None else last.decode()),
        )
        self._turns.add(caller.asker, page.work)

    @answers(GetTopic)
    def one(self, caller: Credentials, request: GetTopic, call: Call[TopicInfo]) -> None:
        """Return one topic."""
        topic = checked_topic(self._broker, request.topic)
        check(self._broker.policy.refuse_list(caller, topic))
        created, kept = self._state(topic, PayloadRoom(of_each=MAX_PAYLOADS))
        if not created and kept is None:
            raise Problem(404, f"topic {request.topic!r} was not created and has no retained message")
        call.reply(TopicInfo(request.topic, created, kept))

    @answers(ListLevels)
    def levels(self, caller: Credentials, request: ListLevels, call: Call[LevelPage]) -> None:
        """Return a page of the levels below a level, or of the first levels."""
        broker = self._broker
        below = None if request.below is UNSET else request.below
        stem = b"" if below is None else checked_topic(broker, f"{below}/", "below")
        check(broker.policy.refuse_list(caller, stem + b"#"))
        created_topics, retained = broker.catalog.created, broker.retained
        trees = (created_topics, retained)
        room = PayloadRoom()

        def describe(place: bytes) -> Entry | None:
            level = level_at(stem, place)
            counts = Below(created_topics.count_below(level), retained.count_below(level))
            created, kept = self._state(level, room)
            if not (created or kept is not None or counts.created or counts.kept):
                return None  # its retained message has expired
            name = level[len(stem) :].decode()
            return LevelInfo(level.decode(), created, kept, name, counts), _payload_size(kept)

        page = PageBuilder(
            broker,
            call,
            lambda place: children(trees, stem, place),
            _name(request.after),
            request.limit,
            describe,
            lambda levels, last: LevelPage(levels, None if last is None else last.decode()),
        )
        self._turns.add(caller.asker, page.work)

    def _state(self, topic: bytes, room: PayloadRoom) -> tuple[bool, RetainedInfo | None]:
        """Return True if a topic was created, and its retained message, with the payload if there is room."""
        is_created = topic in self._broker.catalog.created.values
        batch = self._broker.retained.values.get(topic)
        if batch is None or (batch.expires_at is not None and batch.expires_at <= self._broker.now):
            return is_created, None
        size = batch.stride - batch.payload_at
        kept = RetainedInfo(size=size, qos=batch.qos)
        if size <= min(room.of_each, room.left):
            room.left -= size
            kept.payload_base64 = batch.payload()
        return is_created, kept

    @answers(CreateTopic)
    def create(self, caller: Credentials, request: CreateTopic, call: Call[Created]) -> None:
        """Create a topic, unless it exists."""
        topic = self._managed(caller, request.topic)
        is_new = topic not in self._broker.catalog.created.values
        self._change(self._broker.catalog.create, topic, 409, call, Created(is_new))

    @answers(DeleteTopic)
    def delete(self, caller: Credentials, request: DeleteTopic, call: Call[None]) -> None:
        """Delete a topic and its retained message."""
        topic = self._managed(caller, request.topic)
        is_fixed = self._broker.catalog.is_fixed(topic)
        self._change(self._broker.catalog.delete, topic, 409 if is_fixed else 404, call, None)

    def _managed(self, caller: Credentials, name: str) -> bytes:
        topic = checked_topic(self._broker, name)
        check(self._broker.policy.refuse_admin(caller, topic))
        return topic

    def _change(
        self, change: Callable[[bytes], str], topic: bytes, status: int, call: Call[Any], answer: Any
    ) -> None:
        refusal = change(topic)
        if refusal:
            raise Problem(status, refusal)
        self._broker.journal.after(lambda: call.reply(answer))


def _name(after: str) -> bytes | None:
    """Return the name after which a page begins."""
    return after.encode("utf-8", "replace") if after else None


def _payload_size(kept: RetainedInfo | None) -> int:
    """Return the bytes of an entry's payload."""
    return 0 if kept is None or kept.payload_base64 is UNSET else len(kept.payload_base64)
