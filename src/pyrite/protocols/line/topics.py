"""List, Create and Delete: the topics that were created or have a retained message."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyrite.protocols.line.frames import FrameError, Line, error, escape, line
from pyrite.protocols.line.subscribing import check
from pyrite.topics.filters import InvalidTopic, check_filter, check_topic

if TYPE_CHECKING:
    from pyrite.protocols.line.connection import LineConnection

MAX_ESCAPED_IN_STEP = 8 * 1024
"""Bytes of a retained message escaped in one step of List."""


def list_topics(connection: LineConnection, asked: Line) -> None:
    """`List [FILTER]`."""
    connection.ensure_session()
    topic_filter = asked.word(0, "a topic filter") if asked.words else b"#"
    check_filter(topic_filter, connection.broker.limits.max_topic_levels)
    asked.options(1, ())
    check(asked, connection.broker.policy.refuse_list(connection.credentials, topic_filter))
    connection.add_work(_list_in_steps(connection, topic_filter))


def _list_in_steps(connection: LineConnection, topic_filter: bytes) -> Iterator[None]:
    """Collect at most one topic per step, and send the whole list at the end."""
    most = connection.max_list
    listed = bytearray()
    for found in connection.broker.catalog.each(topic_filter):
        if found is not None:
            topic, value = found
            listed += escape(topic)
            if value is not None:
                listed += b" "
                for at in range(0, min(len(value), most + 1), MAX_ESCAPED_IN_STEP):
                    listed += escape(value[at : at + MAX_ESCAPED_IN_STEP])
                    yield
            listed += b"\n"
            if len(listed) > most:
                text = f"List: the list has more than {most} bytes: ask for fewer topics"
                connection.say(error("too-long", text))
                return
        yield
    connection.write(line("List", max(0, len(listed) - 1)))
    connection.say(listed or b"\n")


def create(connection: LineConnection, asked: Line) -> None:
    """`Create TOPIC [new]`."""
    topic = _topic_to_change(connection, asked)
    new = "new" in asked.options(1, ("new",))
    if new and topic in connection.broker.catalog.created.values:
        raise FrameError("exists", f"Create: topic {topic.decode()!r} already exists")
    _changed(connection, asked, topic, connection.broker.catalog.create(topic))


def delete(connection: LineConnection, asked: Line) -> None:
    """`Delete TOPIC`."""
    topic = _topic_to_change(connection, asked)
    asked.options(1, ())
    _changed(connection, asked, topic, connection.broker.catalog.delete(topic))


def _topic_to_change(connection: LineConnection, asked: Line) -> bytes:
    """Return the topic of a Create or Delete; raise FrameError unless the client may administer it."""
    connection.ensure_session()
    topic = asked.word(0, "a topic")
    try:
        topic.decode()
    except UnicodeDecodeError:
        raise InvalidTopic("the topic is not UTF-8") from None
    check_topic(topic, connection.broker.limits.max_topic_levels)
    check(asked, connection.broker.policy.refuse_admin(connection.credentials, topic))
    return topic


def _changed(connection: LineConnection, asked: Line, topic: bytes, refusal: str) -> None:
    """Answer a Create or Delete; raise FrameError if it was refused."""
    if refusal:
        raise FrameError("no-topic", f"{asked.command}: {refusal}")
    session, answer = connection.ensure_session(), line("Ack", asked.command, topic)
    connection.answers.when_committed(partial(connection.send_answer, session, answer))
