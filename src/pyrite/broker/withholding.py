"""Messages that a client may no longer read, as its rights or its user have changed: they are dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyrite.broker.delivery_queue import Queued
from pyrite.broker.inflight import RELEASED, Flight
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription

if TYPE_CHECKING:
    from pyrite.broker.session import Session

MayRead = Callable[[bytes], bool]
"""Returns whether a client may be sent messages of a topic."""


def withhold_queued(session: Session, may_read: MayRead) -> Iterator[None]:
    """Drop queued messages on topics that the client may not read."""

    def keep(batch: Batch, qos: int, target: Subscription) -> list[Queued]:
        parts = batch.parts()
        kept = [part for part in parts if may_read(part.topic)]
        if len(kept) < len(parts):
            session.broker.figures.messages_dropped += batch.count - sum(part.count for part in kept)
        return [(part, qos, target) for part in kept]

    return session.queue.sift(keep)


def withhold_sent(session: Session, may_read: MayRead) -> Iterator[None]:
    """Drop messages in flight, which would be sent again, on topics that the client may not read."""
    if session.inflight is None:
        return
    for message_id, flight in session.inflight.each_unreleased():
        yield
        index = flight.index(message_id)
        if not may_read(flight.batch.part(index, index + 1).topic):
            give_up(session, message_id, flight)


def forget_answers(session: Session) -> Iterator[None]:
    """Drop the answers to requests of the session's former user.

    Consumers deliver messages that were fetched and not acknowledged again, to clients that may fetch them.
    """

    def keep(batch: Batch, qos: int, target: Subscription) -> tuple[Queued, ...]:
        if not target.is_answer:
            return ((batch, qos, target),)
        session.broker.figures.messages_dropped += batch.count
        return ()

    yield from session.queue.sift(keep)
    if session.inflight is None:
        return
    for message_id, flight in session.inflight.each_unreleased():
        yield
        if flight.target is not None and flight.target.is_answer:
            give_up(session, message_id, flight)


def give_up(session: Session, message_id: int, flight: Flight) -> None:
    """Drop a message in flight.

    The client may have half received one with QoS 2: its id stays in use until the client has completed it.
    """
    inflight = session.inflight
    assert inflight is not None
    session.broker.figures.messages_dropped += 1
    if flight.qos != 2:
        session.drop_flight(message_id, flight)
        return
    inflight.landed(flight)
    inflight.flights[message_id] = RELEASED
    if session.record is not None:
        session.record.received((message_id,))
