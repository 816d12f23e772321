"""The durable record of a session's deliveries: steps that the journal writes (deliveries.py).

With QoS 2, a step is committed before the client can know of it. With QoS 1 it may be lost in a crash: then
the message is sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyrite.broker import deliveries
from pyrite.broker.deliveries import DONE, NO_STREAM, POSITION, RECEIVED, SENT, SENT_KEPT_CURSOR, SENT_SHARED
from pyrite.broker.fanout import lowest_offsets
from pyrite.broker.inflight import RELEASED, SHARED, Flight

if TYPE_CHECKING:
    from pyrite.broker.session import Session


class DeliveryRecord:
    """Steps that the journal has not taken yet."""

    __slots__ = ("_session", "steps")

    def __init__(self, session: Session, steps: bytes = b"") -> None:
        self._session = session
        self.steps = bytearray(steps)

    def sent(self, flight: Flight, count: int) -> None:
        """Record that messages are in flight, and how far their session has come by that."""
        target, stream = flight.target, flight.batch.stream
        assert target is not None
        if stream is None:
            self._add(SENT_KEPT_CURSOR, flight.qos, flight.first_id, count, NO_STREAM, 0)
            return
        offset = flight.batch.offset + flight.start
        kind = SENT if not target.keeps_cursor else SENT_KEPT_CURSOR if target.group is None else SENT_SHARED
        self._add(kind, flight.qos, flight.first_id, count, stream.number, offset)
        if target.group is not None:
            self._session.broker.journal.state.save_group(target.group)
        elif target.replay is not None:
            target.replay.sent(stream, offset + count)

    def done(self, message_ids: Sequence[int]) -> None:
        """Record that deliveries are complete or given up."""
        self._add_ids(DONE, message_ids)

    def received(self, message_ids: Sequence[int]) -> None:
        """Record that the client has received QoS 2 messages."""
        self._add_ids(RECEIVED, message_ids)

    def position(self, stream: int, offset: int) -> None:
        """Record from where on a session reads a stream."""
        self._add(POSITION, 0, 0, 0, stream, offset)

    def _add(self, kind: int, qos: int, first_id: int, count: int, stream: int, offset: int) -> None:
        self.steps += deliveries.step(kind, qos, first_id, count, stream, offset)
        self._session.broker.journal.state.save_deliveries(self._session)

    def _add_ids(self, kind: int, message_ids: Sequence[int]) -> None:
        self.steps += deliveries.steps(kind, message_ids)
        self._session.broker.journal.state.save_deliveries(self._session)


def snapshot(session: Session) -> bytes:
    """Return steps that lead to the present state of a session's deliveries, from nothing."""
    positions = lowest_offsets([one for one in session.broker.fan_outs.owed_to(session) if one.qos])
    positions.update(session.positions or {})
    if session.follower is not None:
        positions.update(session.follower.reached_positions())
    for batch, _, target in session.queue:
        if batch.stream is not None and not target.keeps_cursor:
            before = positions.get(batch.stream, batch.offset)
            positions[batch.stream] = min(before, batch.offset)
    steps = bytearray()
    for stream in session.broker.journal.streams:
        position = positions.get(stream, stream.routed)
        steps += deliveries.step(POSITION, 0, 0, 0, stream.number, position)
    released: list[int] = []
    flights = {} if session.inflight is None else session.inflight.flights
    for message_id, flight in flights.items():
        if flight is RELEASED:
            released.append(message_id)
            continue
        asked = flight.target
        shared = asked is SHARED or (asked is not None and asked.group is not None)
        kind = SENT_SHARED if shared else SENT_KEPT_CURSOR
        lies_in = flight.batch.stream
        if lies_in is not None:
            offset = flight.batch.offset + flight.index(message_id)
            steps += deliveries.step(kind, flight.qos, message_id, 1, lies_in.number, offset)
        elif flight.qos == 2:
            steps += deliveries.step(kind, 2, message_id, 1, NO_STREAM, 0)
    return bytes(steps + deliveries.steps(RECEIVED, released))
