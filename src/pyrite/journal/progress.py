"""State that messages change: deliveries, unfinished QoS 2 ids, cursors of shared groups, stored bytes.

These change with every message, so they are encoded once for each commit, as they are at that time.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyrite.broker.fanout import lowest_offsets
from pyrite.broker.journal import Stream
from pyrite.broker.record import snapshot
from pyrite.broker.session import Session
from pyrite.broker.shared_group import SharedGroup
from pyrite.journal import state as sql
from pyrite.journal.changes import Changes
from pyrite.journal.tables import STORED

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker

MAX_STEP_ROWS = 32
"""Rows of delivery steps of a session, after which they are replaced by one row."""
SWEEP_INTERVAL = 60.0
"""Seconds between two recordings of the cursors of connected sessions that were sent nothing."""
MAX_SWEPT = 1_000
"""Sessions whose cursors are recorded at a time."""


class Progress:
    """Sessions, shared groups and accounts whose rows must be made at the next commit."""

    def __init__(self) -> None:
        self.deliveries: dict[Session, None] = {}
        self.incoming: dict[Session, None] = {}
        self.groups: dict[SharedGroup, None] = {}
        self.accounts: dict[str, Account] = {}
        """By key, the accounts whose stored bytes have changed."""
        self.applied: dict[Stream, int] = {}
        """The offset up to which the committed state includes the effects of messages."""
        self._step_rows: dict[Session, int] = {}
        """How many rows of steps a session has."""
        self._to_sweep: deque[Session] = deque()
        self._swept_at = 0.0

    def __bool__(self) -> bool:
        return bool(self.deliveries or self.incoming or self.groups or self.accounts)

    def begin(self, broker: Broker, applied: dict[Stream, int]) -> None:
        """Serve a broker whose state includes the effects of messages up to `applied`."""
        self._broker = broker
        self.applied = applied

    @property
    def streams_moved(self) -> bool:
        """Whether messages were routed whose effects the committed state does not include."""
        return any(stream.routed > applied for stream, applied in self.applied.items())

    def forget_session(self, session: Session) -> None:
        """Forget a session that has ended."""
        for one in (self.deliveries, self.incoming, self._step_rows):
            one.pop(session, None)

    def sweep(self) -> None:
        """Record the cursors of idle connected sessions, so that they need not read the log after a crash."""
        broker = self._broker
        if not self._to_sweep and broker.now - self._swept_at >= SWEEP_INTERVAL:
            self._swept_at = broker.now
            sessions = broker.sessions.by_id.values()
            self._to_sweep.extend(one for one in sessions if one.lasting and one.link is not None)
        for _ in range(min(MAX_SWEPT, len(self._to_sweep))):
            session = self._to_sweep.popleft()
            if session.record is not None and session.link is not None:
                self.replace_steps(session)
                self.deliveries[session] = None

    def replace_steps(self, session: Session) -> None:
        """Have the next commit replace all rows of a session's steps by one."""
        self._step_rows[session] = MAX_STEP_ROWS

    def take(self, changes: Changes, unsafe: Mapping[str | None, set[int]]) -> None:
        """Add the rows of everything that has changed; `unsafe` are QoS 2 ids that are not in the log yet."""
        for session in self.deliveries:
            self._add_steps(changes, session)
        self.deliveries.clear()
        self._add_incoming(changes, unsafe)
        for group in self.groups:
            if group.members:
                row = group.name, group.topic_filter, self._group_state(group)
                changes.add((sql.SAVE_GROUP, row))
        self.groups.clear()
        for account in self.accounts.values():
            self._add_stored(changes, account)
        self.accounts.clear()
        for stream, applied in self.applied.items():
            if stream.routed != applied:
                self.applied[stream] = stream.routed
                changes.add((sql.SAVE_STREAM, (stream.number, stream.name, stream.routed)))

    def _add_steps(self, changes: Changes, session: Session) -> None:
        if session.record is None:
            return
        rows = self._step_rows.get(session, 0) + 1
        if rows > MAX_STEP_ROWS:
            changes.add((sql.DROP_STEPS, (session.client_id,)))
            changes.add((sql.ADD_STEPS, (session.client_id, snapshot(session))))
            rows = 1
        elif session.record.steps:
            changes.add((sql.ADD_STEPS, (session.client_id, bytes(session.record.steps))))
        session.record.steps.clear()
        self._step_rows[session] = rows

    def _add_incoming(self, changes: Changes, unsafe: Mapping[str | None, set[int]]) -> None:
        """Add the ids of unfinished QoS 2 messages that are in the log.

        The others are found in the log after a crash, if they get there; `applied` passes them only with a
        later commit, which must include them.
        """
        again: dict[Session, None] = {}
        for session in self.incoming:
            if session.record is None:
                continue
            incoming, waiting = session.incoming or set(), unsafe.get(session.client_id, set())
            ids = array("H", sorted(incoming - waiting)).tobytes()
            changes.add((sql.SAVE_INCOMING, (session.client_id, ids)))
            if not waiting.isdisjoint(incoming):
                again[session] = None
        self.incoming = again

    def _group_state(self, group: SharedGroup) -> str:
        positions = {stream: stream.routed for stream in self.applied}
        owed = self._broker.fan_outs.owed_to_group(group)
        positions.update(lowest_offsets(one for one in owed if one.qos))
        positions.update(group.positions)
        if group.reader is not None:
            positions.update(group.reader.reached_positions())
        returned = [
            [batch.stream.number, batch.offset, batch.count]
            for batch in group.returned
            if batch.stream is not None
        ]
        return json.dumps({"positions": numbers(positions), "returned": returned})

    def _add_stored(self, changes: Changes, account: Account) -> None:
        """Add what an account has stored, and the offset of each stream up to which that is complete."""
        if not account.stored:
            changes.add((sql.DROP_ACCOUNT, (STORED, account.key)))
            return
        spans = {
            stream.number: [[one.end, one.size] for one in spans] for stream, spans in account.stored.items()
        }
        complete = {stream.number: stream.next_offset for stream in self.applied}
        value = json.dumps({"spans": spans, "complete": complete})
        changes.add((sql.SAVE_ACCOUNT, (STORED, account.key, value)))


def numbers(positions: Mapping[Stream, int]) -> dict[int, int]:
    """Return positions by the number of the stream."""
    return {stream.number: position for stream, position in positions.items()}
