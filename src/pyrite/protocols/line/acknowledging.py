"""Ack: a client acknowledges messages by numbers and ranges of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyrite.broker.inflight import WrongAcknowledgement
from pyrite.protocols.line.frames import MAX_WORDS, FrameError, Line
from pyrite.protocols.line.numbers import FIRST_NUMBER, Pulled
from pyrite.protocols.line.ranges import among, merge, within

if TYPE_CHECKING:
    from pyrite.broker.consumers import Consumer
    from pyrite.broker.pending import Place
    from pyrite.broker.session import Session
    from pyrite.protocols.line.connection import LineConnection


def acknowledge(connection: LineConnection, asked: Line) -> None:
    """`Ack NUMBER-OR-RANGE...`."""
    session = connection.ensure_session()
    if not asked.words:
        raise FrameError("missing-word", "Ack: expected the number of a message, or a range such as 1-10")
    if len(asked.words) > MAX_WORDS:
        raise FrameError("too-long", f"Ack: expected at most {MAX_WORDS} numbers or ranges in a line")
    ranges: list[range] = []
    for word in asked.words:
        first, dash, last = word.partition(b"-")
        if not first.isdigit() or (dash and not last.isdigit()) or len(word) > 20:
            raise FrameError("bad-number", "Ack: expected numbers of messages, or ranges such as 1-10")
        ranges.append(range(int(first), int(last or first) + 1))
    connection.add_work(_acknowledge_in_steps(connection, session, merge(ranges)))


def _acknowledge_in_steps(
    connection: LineConnection, session: Session, ranges: list[range]
) -> Iterator[None]:
    """Acknowledge a bounded number of messages in each step."""
    for numbers in among(within(ranges, 0, FIRST_NUMBER), session.inflight_ids):
        for number in numbers:
            connection.acknowledged(number)
        try:
            session.acknowledge(numbers)
        except WrongAcknowledgement:  # sent with QoS 2, to an MQTT client that had this session before
            for number in numbers:
                if session.received((number,)):
                    session.complete((number,))
        yield
    waiting = connection.numbers
    for numbers in among(within(ranges, FIRST_NUMBER, waiting.next), waiting.in_use):
        pulled: dict[Consumer, list[Place]] = {}
        for number in numbers:
            message = waiting.pop(number)
            if isinstance(message, Pulled):
                pulled.setdefault(message.consumer, []).append(message.place)
            connection.acknowledged(number)
            if isinstance(message, bytes):
                connection.newest.acknowledged(message)
        for consumer, places in pulled.items():
            consumer.acknowledge(places, lambda _: None)
        yield
