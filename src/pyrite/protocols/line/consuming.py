"""Register, Unregister and Pull: consumers, which fetch messages from the log at their own pace."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyrite.broker import consumers
from pyrite.broker.consumers import ACKNOWLEDGE_WITHIN, MAX_FETCH, Consumer
from pyrite.broker.message import Batch
from pyrite.broker.pending import Place
from pyrite.protocols.line.frames import FrameError, Line, error, line
from pyrite.protocols.line.messages import numbered_message
from pyrite.protocols.line.numbers import Pulled
from pyrite.protocols.line.subscribing import check, read_position
from pyrite.topics.filters import check_filter

if TYPE_CHECKING:
    from pyrite.broker.session import Session
    from pyrite.protocols.line.connection import LineConnection


def register(connection: LineConnection, asked: Line) -> None:
    """`Register NAME FILTER [from=POSITION]`."""
    session = connection.ensure_session()
    name = _read_name(asked)
    topic_filter = asked.word(1, "a topic filter")
    check_filter(topic_filter, connection.broker.limits.max_topic_levels)
    options = asked.options(2, ("from",))
    start = read_position(connection, asked, options.get("from", "earliest"))
    assert start is not None
    check(asked, connection.broker.policy.refuse_consumer(connection.credentials, topic_filter))
    answers = connection.answers
    answer = answers.reserve(partial(connection.send_answer, session, line("Ack", "Register", name)))
    try:
        consumers.create(
            connection.broker, connection.credentials, name, topic_filter, start, ACKNOWLEDGE_WITHIN, answer
        )
    except consumers.ConsumerError:
        answers.withdraw()
        raise


def unregister(connection: LineConnection, asked: Line) -> None:
    """`Unregister NAME`."""
    session = connection.ensure_session()
    name = _read_name(asked)
    asked.options(1, ())
    consumer = consumers.find(connection.broker, connection.credentials, name)
    answer = partial(connection.send_answer, session, line("Ack", "Unregister", name))
    consumers.delete(consumer, connection.answers.reserve(answer))


def pull(connection: LineConnection, asked: Line) -> None:
    """`Pull NAME [COUNT]`."""
    session = connection.ensure_session()
    name = _read_name(asked)
    count = asked.number(1, "how many messages") if len(asked.words) > 1 else 1
    asked.options(2, ())
    if not 1 <= count <= MAX_FETCH:
        raise FrameError("bad-number", f"Pull: expected a number from 1 to {MAX_FETCH}, not {count}")
    if not connection.numbers.has_room_for(count):
        raise FrameError("full", "Pull: too many unacknowledged messages")
    consumer = consumers.find(connection.broker, connection.credentials, name)
    connection.unanswered_pulls += 1
    send = partial(_send, connection, session, consumer)
    done = partial(_pulled, connection, session, consumer)
    fetch = partial(consumer.fetch, count, send, done)
    connection.broker.journal.after(fetch)  # earlier commands are answered first


def _read_name(asked: Line) -> str:
    return asked.word(0, "the name of a consumer").decode("utf-8", "replace")


def _send(
    connection: LineConnection, session: Session, consumer: Consumer, place: Place, batch: Batch
) -> None:
    if connection.session is session:  # otherwise the message is delivered again after its timeout
        number = connection.numbers.assign(Pulled(consumer, place))
        connection.write(numbered_message(batch, number, b" pull"))


def _pulled(connection: LineConnection, session: Session, consumer: Consumer, count: int) -> None:
    connection.unanswered_pulls -= 1
    if connection.session is session:
        # A deleted topic never has new messages: tell the client, so that it stops pulling.
        policy, refusal = connection.broker.policy, None
        if not count:
            refusal = policy.refuse_consumer(connection.credentials, consumer.topic_filter)
        if refusal is None:
            connection.say(line("Ack", "Pull", consumer.name, count))
        else:
            code = "not-authorized" if refusal.is_unauthorized else "no-topic"
            connection.say(error(code, f"Pull: {refusal.text}"))
        connection.end_if_answered()
