"""Shared subscriptions: when a session leaves, other members get the messages it has not acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyrite.broker.delivery_queue import Queued
from pyrite.broker.inflight import SHARED, Flight
from pyrite.broker.message import Batch
from pyrite.broker.shared_group import SharedGroup
from pyrite.broker.subscriptions import Subscription

if TYPE_CHECKING:
    from pyrite.broker.session import Session


def reassign(session: Session, ends: bool) -> Iterator[None]:
    """Give unacknowledged messages to other members; `ends` says that the session ends, too.

    A QoS 2 message that was sent stays: no other member may have it [MQTT-4.8.2-5].
    """
    for message_id, flight in _each_unreleased(session):
        yield
        part = _take_back(session, message_id, flight, ends)
        if part is not None:
            _redeliver(session, part, flight.target)

    def keep(batch: Batch, qos: int, target: Subscription) -> tuple[Queued, ...]:
        expired = batch.expires_at is not None and batch.expires_at <= session.broker.now
        if not expired and not _has_others(session, target, ends):
            return ((batch, qos, target),)
        if not expired:
            _redeliver(session, batch, target)
        return ()

    yield from session.queue.sift(keep)


def return_logged(session: Session) -> dict[SharedGroup, None]:
    """Return messages in flight that are in the log to their groups at once, as the session ends.

    Its own record of them is about to be removed. The groups, which are returned, read on later.
    """
    groups: dict[SharedGroup, None] = {}
    for message_id, flight in _each_unreleased(session):
        if flight.batch.stream is None or flight.target is None:
            continue
        part = _take_back(session, message_id, flight, ends=True)
        if part is not None:
            assert flight.target.group is not None
            flight.target.group.returned.append(part)
            groups[flight.target.group] = None
    for group in groups:
        session.broker.journal.state.save_group(group)
    return groups


def return_restored(session: Session, groups: list[SharedGroup]) -> None:
    """Return messages that an earlier process sent to the session to one of its groups."""
    flights = () if session.inflight is None else session.inflight.flights.values()
    places = [flight.batch for flight in flights if flight.target is SHARED and flight.qos == 1]
    if places:
        session.broker.groups.redeliver_logged(places, groups)


def _each_unreleased(session: Session) -> Iterator[tuple[int, Flight]]:
    return iter(()) if session.inflight is None else session.inflight.each_unreleased()


def _take_back(session: Session, message_id: int, flight: Flight, ends: bool) -> Batch | None:
    """Remove a message from the window if another member may have it, and return it."""
    target, expires_at = flight.target, flight.batch.expires_at
    if expires_at is not None and expires_at <= session.broker.now:
        return None  # it is too late to send it to another member [MQTT-3.3.2-5]
    if target is None or flight.qos != 1 or not _has_others(session, target, ends):
        return None
    index = flight.index(message_id)
    part = flight.batch.part(index, index + 1)
    session.drop_flight(message_id, flight)
    return part


def _redeliver(session: Session, batch: Batch, target: Subscription | None) -> None:
    assert target is not None
    assert target.group is not None
    if batch.stream is None:
        session.broker.groups.deliver(batch, target.group, session)
    else:
        session.broker.groups.redeliver(batch, target.group)


def _has_others(session: Session, target: Subscription, ends: bool) -> bool:
    """Return whether the target's group has another member; a connected one, unless the session ends."""
    return target.group is not None and target.group.has_others(session, connected=not ends)
