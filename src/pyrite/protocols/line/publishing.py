"""Publish: combine runs of frames into batches. HOT.

A publisher's frames mostly begin with the same line. The connection remembers the line as a shape: a frame
with the same line needs no parsing, and a run of such frames becomes one batch, which is one slice of the
read.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyrite.broker.journal import Fault
from pyrite.broker.message import Batch
from pyrite.protocols.line.frames import FrameError, Line, error, line
from pyrite.protocols.line.messages import LINE_FORM
from pyrite.protocols.runs import MIN_COUNTED_RUN, count_alike, words
from pyrite.topics.filters import InvalidTopic, check_topic

if TYPE_CHECKING:
    from pyrite.broker.session import Session
    from pyrite.protocols.line.connection import LineConnection

_LF = 10


class Shape(NamedTuple):
    """First line and size, which consecutive Publish frames often have in common."""

    prefix: bytes
    """The line, with its end."""
    size: int
    """Bytes of the whole frame."""
    topic: bytes
    qos: int
    retain: bool
    request: str | None
    """The `id` option."""
    form: int
    """LINE_FORM if sending the message requires only its first word to be changed, else -1."""


def read_shape(connection: LineConnection, asked: Line, prefix: bytes) -> Shape:
    """Parse the line of a Publish frame; `prefix` is the line as received, with its end."""
    topic = asked.word(0, "a topic")
    length = asked.number(1, "the length of the payload")
    most = connection.broker.limits.max_packet_size
    if length > most:
        raise FrameError("too-long", f"Publish: the payload exceeds {most} bytes", ends=True)
    try:
        options = asked.options(2, ("retain", "noack", "id"))
    except FrameError as wrong:
        # End the connection: the payload that follows must not be read as commands.
        raise FrameError(wrong.code, str(wrong), ends=True) from None
    connection.ensure_session()  # refuse an unauthenticated client before receiving a large payload
    size = len(prefix) + length + 1
    qos = 0 if "noack" in options else 1
    plain = prefix == line("Publish", topic, length, noack=True)
    form = LINE_FORM if plain else -1
    return Shape(prefix, size, topic, qos, "retain" in options, options.get("id"), form)


def run_end(shape: Shape, data: bytes, at: int) -> int:
    """Return the end of the run of frames of one shape at `at`, whose first frame is complete. HOT."""
    size, length = shape.size, len(shape.prefix)
    between = b"\n" + shape.prefix  # the end of one frame and the start of the next
    at += size
    first, last = at, len(data) - size
    if last - at >= MIN_COUNTED_RUN * size and data[at - 1 : at + length] == between:
        at += count_alike(data, at, size, words(between, -1)) * size
    else:
        while at <= last and data[at - 1 : at + length] == between:
            at += size
    if at > first and data[at - 1] != _LF:
        at -= size
    return at


def publish(connection: LineConnection, shape: Shape, data: bytes, count: int) -> None:
    """Publish a run of messages; `data` begins with the line end before the first frame. HOT."""
    session = connection.session or connection.ensure_session()
    connection.unanswered_pings = 0
    broker = connection.broker
    figures = broker.figures
    figures.publish_received += count
    figures.publish_bytes_received += len(data)
    at = len(shape.prefix) + 1
    batch = Batch(
        shape.topic,
        data,
        shape.qos,
        shape.retain,
        origin=session.client_id,
        count=count,
        stride=len(data) // count,
        payload_at=at,
        form=shape.form,
    )
    refusal = _refusal(connection, shape)
    if refusal is None and shape.retain:
        batch = batch.owned_by(session.account)
        fault = broker.retained.fault(batch)
        if fault is not None:
            figures.quota_refused += count * fault.quota
            refusal = "full", f"Publish: {fault.text}"
    if refusal is not None:
        figures.messages_dropped += count
        answer = error(*refusal) * count
        connection.answers.in_turn(partial(connection.send_answer, session, answer, count))
        return
    publish = broker.publishing.publish
    if connection.meter is not None:
        publish = partial(broker.publishing.publish_for, connection.meter)
    if not shape.qos:
        publish(batch)
        return
    done = partial(_published, connection, session, shape, count)
    if not connection.answers.uncommitted:
        publish(batch, done=done)
    else:  # the batch may be committed before earlier answers are sent, so its answer has to wait for them
        told: list[tuple[bool, Fault | None]] = []
        publish(batch, done=lambda matched, fault: told.append((matched, fault)))
        connection.answers.when_committed(lambda: done(*told[0]))


def _refusal(connection: LineConnection, shape: Shape) -> tuple[str, str] | None:
    """Return why messages of a shape are refused, as a code and a text, or None."""
    broker, topic = connection.broker, shape.topic
    if topic not in broker.subscriptions.cache.routes:  # a topic that has a route is valid
        try:
            topic.decode()
            check_topic(topic, broker.limits.max_topic_levels)
        except UnicodeDecodeError:
            return "bad-topic", "Publish: the topic is not UTF-8"
        except InvalidTopic as wrong:
            return "bad-topic", f"Publish: {wrong}"
    refusal = broker.policy.refuse_publish(connection.credentials, topic, shape.qos)
    if refusal is None:
        return None
    return "not-authorized" if refusal.is_unauthorized else "no-topic", f"Publish: {refusal.text}"


def _published(
    connection: LineConnection, session: Session, shape: Shape, count: int, _: bool, fault: Fault | None
) -> None:
    """Answer a run of messages once it is committed, or has failed."""
    if fault is not None:
        answer = error("full" if fault.full else "not-kept", f"Publish: {fault.text}")
    else:
        answer = line("PubAck", shape.topic, id=shape.request)
    connection.send_answer(session, answer * count, count)
