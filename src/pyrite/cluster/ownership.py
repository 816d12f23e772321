"""Which sessions this node owns: claims of clients that connect, moves to other nodes, and releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pyrite.broker.journal import Fault
from pyrite.cluster.ledger import SESSION, Owner
from pyrite.journal import state as sql
from pyrite.journal.restoring import restore_session
from pyrite.journal.state import KeptSession

if TYPE_CHECKING:
    from pyrite.broker.session import Session
    from pyrite.cluster.journal import ClusterJournal

Claimed = Callable[[Fault | None], object]
"""Called when this node owns what was claimed, or with the reason why it does not."""

LOST = Fault(False, "another node has taken over the session")
NOT_HERE = Fault(False, "this node cannot reach most of its cluster")
MOVED_TOGETHER = 16
"""Sessions that are given up between two turns of others."""


class Ownership:
    """Claims, moves and releases of the sessions of one node."""

    def __init__(self, journal: ClusterJournal) -> None:
        self._journal = journal
        self._ledger = journal.ledger
        self._claims: dict[tuple[str, str], list[Claimed]] = {}
        self._ended: set[str] = set()
        """Clients whose sessions ended since the last look."""
        self._idle: set[str] = set()
        """Clients whose sessions ended before: they are released."""
        self._releasing: set[tuple[str, str]] = set()

    # What this node owns

    def epoch(self, kind: str, name: str) -> int:
        """Return the epoch under which this node owns something; 0 if it does not."""
        owner = self._ledger.owner(kind, name)
        return owner.epoch if owner is not None and owner.node == self._journal.node else 0

    def epoch_of_session(self, client_id: str) -> int:
        """Return the epoch of a session; of one that has just moved, one that no node accepts."""
        return self.epoch(SESSION, client_id) or -1

    # Claims

    def claim(self, kind: str, name: str, then: Claimed) -> None:
        """Make this node the owner; call `then` when it is, and has loaded what belongs to it."""
        key = kind, name
        calls = self._claims.get(key)
        if calls is not None:
            calls.append(then)
        elif self.epoch(kind, name) and key not in self._releasing and self._is_loaded(kind, name):
            then(None)
        elif not self._journal.has_quorum:
            then(NOT_HERE)
        else:
            self._claims[key] = [then]
            self._journal.do(["claim", kind, name])

    def _is_loaded(self, kind: str, name: str) -> bool:
        owner = self._ledger.owners[kind, name]
        return not owner.lasts or name in self._journal.broker.sessions.by_id

    def claimed(self, sequence: int, author: str, kind: str, name: str) -> None:
        """Apply a claim."""
        journal, key = self._journal, (kind, name)
        before = self._ledger.owners.get(key)
        is_ours = self.epoch(kind, name) > 0
        lasts = before is not None and before.lasts
        self._ledger.set_owner(kind, name, Owner(author, sequence, lasts), journal.rows.note)
        if author != journal.node:
            if is_ours:
                self._moved(name)
        elif lasts and name not in journal.broker.sessions.by_id:
            journal.groups.after(lambda: self._load(name, sequence))
        else:
            self._tell(key, None)

    def _tell(self, key: tuple[str, str], fault: Fault | None) -> None:
        for call in self._claims.pop(key, ()):
            call(fault)

    def _load(self, client_id: str, epoch: int) -> None:
        """Load the rows of a session that this node has claimed; they are committed."""
        journal = self._journal

        def loaded(kept: KeptSession | None) -> None:
            if self.epoch(SESSION, client_id) != epoch:
                self._tell((SESSION, client_id), LOST)
                return
            if kept is None:
                journal.halt(f"the session of client {client_id!r} cannot be read: see to the disk")
                return
            if client_id not in journal.broker.sessions.by_id:
                restore_session(journal, journal.broker, kept)
            self._tell((SESSION, client_id), None)

        journal.writer.read_state(lambda: journal.database.session(client_id), loaded)

    # Moves

    def _moved(self, client_id: str) -> None:
        """Give up a session that another node has claimed."""
        session = self._journal.broker.sessions.by_id.get(client_id)
        if session is not None:
            self._journal.broker.sessions.move(session)

    def lose_all(self) -> None:
        """Give up every session: this node was declared gone."""
        claims, self._claims = self._claims, {}
        for calls in claims.values():
            for call in calls:
                call(NOT_HERE)
        self._releasing.clear()
        broker = self._journal.broker
        sessions = iter(list(broker.sessions.by_id.values()))

        def lose_some() -> None:
            if self._lose(sessions):
                broker.turns.soon(lose_some)

        lose_some()

    def _lose(self, sessions: Iterator[Session]) -> bool:
        """Give up some sessions that this node does not own any more; return whether there are more."""
        count = 0
        for session in islice(sessions, MOVED_TOGETHER):
            count += 1
            if not session.has_ended and not self.epoch(SESSION, session.client_id):
                self._journal.broker.sessions.move(session)
        return count == MOVED_TOGETHER

    # Releases

    def ended(self, client_id: str) -> None:
        """Note that a session has ended: it is released if no other one of its client follows soon."""
        self._ended.add(client_id)

    def release_idle(self) -> None:
        """Release the sessions that ended some time ago."""
        sessions = self._journal.broker.sessions.by_id
        for client_id in self._idle:
            epoch = self.epoch(SESSION, client_id)
            if epoch and client_id not in sessions and (SESSION, client_id) not in self._claims:
                self._releasing.add((SESSION, client_id))
                self._journal.do(["release", SESSION, client_id, epoch])
        self._idle, self._ended = self._ended, set()

    def released(self, kind: str, name: str, epoch: int) -> None:
        """Apply a release: nobody owns it any more, and nothing of it is left."""
        owner = self._ledger.owners.get((kind, name))
        if owner is None or owner.epoch != epoch:
            return
        self._releasing.discard((kind, name))
        note = self._journal.rows.note
        self._ledger.set_owner(kind, name, None, note)
        if owner.lasts:
            for statement in (sql.DROP_SESSION, sql.DROP_SUBSCRIPTIONS, sql.DROP_STEPS, sql.DROP_INCOMING):
                note((statement, (name,)))

    def lasts(self, kind: str, name: str, lasts: bool) -> None:
        """Apply that a session outlives its node from now on, or does not."""
        owner = self._ledger.owners[kind, name]
        if owner.lasts is not lasts:
            self._ledger.set_owner(kind, name, owner._replace(lasts=lasts), self._journal.rows.note)
