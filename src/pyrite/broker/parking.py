"""Parking a session that is away: of what waits and is in flight, it keeps only the place in the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyrite.broker.delivery_queue import Queued
from pyrite.broker.message import AbsentBatch, Batch
from pyrite.broker.subscriptions import Subscription

if TYPE_CHECKING:
    from pyrite.broker.journal import Stream
    from pyrite.broker.session import Session


def park(session: Session) -> None:
    """Have a session read everything that it has not received from the log, as far as the log has it."""
    streams = session.broker.journal.streams
    if not streams or session.expiry == 0:
        return
    positions = session.positions = session.positions or {}
    for stream in streams:  # what is published from here on is read from the log
        positions.setdefault(stream, stream.routed)
    session.do(_park(session, positions))


def _park(session: Session, positions: dict[Stream, int]) -> Iterator[None]:
    def keep(batch: Batch, qos: int, target: Subscription) -> tuple[Queued, ...]:
        stream = batch.stream
        if stream is None or (target.keeps_cursor and target.replay is None):
            return ((batch, qos, target),)
        if target.replay is None:  # a replay reads again what was not sent
            positions[stream] = min(batch.offset, positions.get(stream, batch.offset))
        return ()

    yield from session.queue.sift(keep)
    inflight = session.inflight
    for flight in dict.fromkeys(() if inflight is None else inflight.flights.values()):
        yield
        batch = flight.batch
        if batch.stream is not None and not batch.absent and flight.left:
            assert inflight is not None
            inflight.size -= len(batch.data)
            flight.batch = AbsentBatch(batch.stream, batch.offset, batch.count)
    if session.record is not None:
        for stream, position in positions.items():
            session.record.position(stream.number, position)
