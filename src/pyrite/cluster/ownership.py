"""Which sessions this node owns: claims of clients that connect, moves to other nodes, and releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyrite.broker.consumers import Consumer
from pyrite.broker.journal import Fault
from pyrite.broker.pending import BLOCK, Place
from pyrite.cluster.ledger import CONSUMER, SESSION, Owner
from pyrite.journal import state as sql
from pyrite.journal.restoring import load_bits, load_block, restore_consumer, restore_session
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
        self._handed_out: dict[tuple[str, bytes], float] = {}
        """By consumer and block: when a message of the block was handed out last, on the broker's clock."""
        self._loaded: dict[str, int] = {}
        """Consumers that were loaded, and under which epoch."""

    # What this node owns

    def epoch(self, kind: str, name: str) -> int:
        """Return the epoch under which this node owns something; 0 if it does not."""
        owner = self._ledger.owner(kind, name)
        return owner.epoch if owner is not None and owner.node == self._journal.node else 0

    def epoch_of_session(self, client_id: str) -> int:
        """Return the epoch of a session; of one that has just moved, one that no node accepts."""
        return self.epoch(SESSION, client_id) or -1

    # Claims

    def claim(self, kind: str, name: str, then: Claimed, clean_start: bool = False) -> None:
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
            self._journal.do(["claim", kind, name, clean_start, int(self._journal.wall() * 1e6)])

    def _is_loaded(self, kind: str, name: str) -> bool:
        owner = self._ledger.owners[kind, name]
        if kind == CONSUMER:
            return self._loaded.get(name) == owner.epoch
        return not owner.lasts or name in self._journal.broker.sessions.by_id

    def claimed(self, sequence: int, author: str, kind: str, name: str, clean_start: bool) -> None:
        """Apply a claim."""
        journal, key = self._journal, (kind, name)
        before = self._ledger.owners.get(key)
        is_ours = self.epoch(kind, name) > 0
        lasts = before is not None and before.lasts
        owner = Owner(author, sequence) if before is None else before._replace(node=author, epoch=sequence)
        self._ledger.set_owner(kind, name, owner, journal.rows.note)
        if author != journal.node:
            if is_ours and kind == SESSION:
                self._moved(name, clean_start)
        elif kind == CONSUMER:
            journal.groups.after(lambda: self._load_consumer(name, sequence))
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

    def _load_consumer(self, name: str, epoch: int) -> None:
        """Load the rows of a consumer that this node has claimed; they are committed."""
        journal = self._journal

        def loaded(kept: tuple[dict[str, Any] | None, list[tuple[bytes, bytes]]] | None) -> None:
            if self.epoch(CONSUMER, name) != epoch:
                self._tell((CONSUMER, name), LOST)
                return
            if kept is None:
                journal.halt(f"consumer {name!r} cannot be read: see to the disk")
                return
            self._loaded[name] = epoch
            state, pending = kept
            if state is not None:
                consumer = restore_consumer(journal, journal.broker, name, state)
                self._restore_pending(consumer, pending)
            self._tell((CONSUMER, name), None)

        journal.writer.read_state(lambda: journal.database.consumer(name), loaded)

    def _restore_pending(self, consumer: Consumer, blocks: list[tuple[bytes, bytes]]) -> None:
        """Restore what another node has handed out: it may still be acknowledged in time."""
        streams = {stream.number: stream for stream in self._journal.streams}
        times = {block: self._handed_out.get((consumer.name, block), 0.0) for block, _ in blocks}
        for block, bits in sorted(blocks, key=lambda one: times[one[0]]):
            stream, number = load_block(block)
            due = times[block] + consumer.within
            for at in range(BLOCK):
                if load_bits(bits) >> at & 1:
                    consumer.pending.add(Place(streams[stream], number * BLOCK + at), due)
        for _ in consumer.pending.take_changed():
            pass  # they are in the state already

    def handed_out(self, name: str, block: bytes) -> None:
        """Apply that messages of a block were handed out, or some of them acknowledged."""
        self._handed_out[name, block] = self._journal.broker.now

    def none_pending(self, name: str, block: bytes) -> None:
        """Apply that no message of a block is pending."""
        self._handed_out.pop((name, block), None)

    # Moves

    def _moved(self, client_id: str, clean_start: bool) -> None:
        """Give up a session that another node has claimed."""
        session = self._journal.broker.sessions.by_id.get(client_id)
        if session is not None:
            self._journal.broker.sessions.move(session, clean_start)

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
                self._journal.broker.sessions.move(session, False)
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

    def saved(self, name: str, expiry: int, expires_at: float | None) -> None:
        """Apply that a session outlives its node, and for how long."""
        owner = self._ledger.owners[SESSION, name]
        now = owner._replace(lasts=True, expiry=expiry, expires_at=expires_at)
        if now != owner:
            self._ledger.set_owner(SESSION, name, now, self._journal.rows.note)

    def dropped(self, name: str) -> None:
        """Apply that a session has ended, or does not outlive its node any more."""
        owner = self._ledger.owners[SESSION, name]
        self._ledger.set_owner(SESSION, name, Owner(owner.node, owner.epoch), self._journal.rows.note)
