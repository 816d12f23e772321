"""Resuming a session: what was in flight is sent again, in its first order [MQTT-4.4.0-1].

Of a session that was away, only the place of such messages in the log is known: they are read first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyrite.broker.access import UNSPECIFIED
from pyrite.broker.inflight import SHARED, Flight, InFlight
from pyrite.broker.targets import earlier_target, shared_target, target_for
from pyrite.broker.withholding import MayRead, give_up, withhold_sent

if TYPE_CHECKING:
    from pyrite.broker.journal import Stream
    from pyrite.broker.message import Batch
    from pyrite.broker.session import Session

logger = logging.getLogger(__name__)


class Resume:
    """One connection's resumption of its session."""

    __slots__ = ("_found", "_left", "_link", "_may_read", "_session")

    def __init__(self, session: Session, may_read: MayRead | None) -> None:
        self._session = session
        self._link = session.link
        self._may_read = may_read
        """For which topics messages are sent again; None for all."""
        self._found: dict[tuple[Stream, int], Batch] = {}
        self._left = 0
        """Streams that are still being read."""

    def start(self) -> None:
        """Read what is only known by its place in the log, then send."""
        inflight = self._session.inflight
        if inflight is None or not inflight.flights:
            self._send()
            return
        self._session.pause()
        places: dict[Stream, list[int]] = {}
        for message_id, flight in inflight.flights.items():
            if flight.batch.absent:
                assert flight.batch.stream is not None
                offset = flight.batch.offset + flight.index(message_id)
                places.setdefault(flight.batch.stream, []).append(offset)
        self._left = len(places)
        if not places:
            self._send()
            return
        for stream, offsets in places.items():
            fetched = partial(self._fetched, inflight, stream)
            self._session.broker.journal.fetch(stream, offsets, fetched, self._session.asker)

    def _fetched(self, inflight: InFlight, stream: Stream, batches: dict[int, Batch]) -> None:
        session = self._session
        self._left -= 1
        self._found.update({(stream, offset): batch for offset, batch in batches.items()})
        if self._left or session.link is not self._link or session.inflight is not inflight:
            return
        try:
            session.do(self._put_in_place(inflight), then=self._send)
        except Exception:  # raised by an access plug-in; nothing is sent unchecked, nor forgotten
            logger.exception("internal error in the access plug-in")
            assert self._link is not None
            self._link.ended(UNSPECIFIED)

    def _put_in_place(self, inflight: InFlight) -> Iterator[None]:
        session = self._session
        for message_id, flight in list(inflight.flights.items()):
            if not flight.batch.absent:
                continue
            yield
            assert flight.batch.stream is not None
            batch = self._found.get((flight.batch.stream, flight.batch.offset + flight.index(message_id)))
            if batch is None:  # the log does not hold it any longer
                give_up(session, message_id, flight)
                continue
            target = shared_target(session, batch) if flight.target is SHARED else flight.target
            target = target or target_for(session, batch) or earlier_target(session, batch, flight.qos)
            inflight.flights[message_id] = Flight(batch, 0, message_id, flight.qos, target, 1)
            inflight.size += len(batch.data)

    def _send(self) -> None:
        session = self._session
        if self._may_read is None:
            session.send_again()
        else:
            session.do(withhold_sent(session, self._may_read), then=session.send_again)
