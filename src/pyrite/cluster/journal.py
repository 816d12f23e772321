"""The journal of a node in a cluster: groups go out into one order, and are applied when they come back.

A group comes back to every node, its author included, at the same place in the order. Applying it hands its
messages and rows to the group commit of the journal on disk, which writes, syncs and settles them. So the
author acknowledges a message when a quorum has synced it, as it is in the order, and this node too.

Applying depends on the groups before it alone: not on a clock, a setting, or what only this node knows.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyrite.broker.consumers import Consumer
from pyrite.broker.core import Broker
from pyrite.broker.fetching import Deliver, IsFull
from pyrite.broker.journal import Done, Fault, Stream
from pyrite.broker.message import Batch
from pyrite.cluster.applying import Applying
from pyrite.cluster.changes import CODES, AppliedRows, ClusterChanges, owner_of
from pyrite.cluster.group import FORMAT, Contents, cluster_number, dump, seal
from pyrite.cluster.ledger import CONSUMER, SESSION, Ledger
from pyrite.cluster.order import Appended, OrderedLog
from pyrite.cluster.outbound import MAX_WAITING_BYTES, Call, Message, Outbound
from pyrite.cluster.ownership import Ownership
from pyrite.cluster.presence import Presence
from pyrite.cluster.publishing import OrderedPublishing
from pyrite.cluster.pulling import HandingOut
from pyrite.cluster.snapshot import take_snapshot
from pyrite.cluster.status import ClusterStatus, status_of
from pyrite.cluster.wills import Wills
from pyrite.cluster.writer import ReplicaWriter
from pyrite.journal import state as sql
from pyrite.journal.disk import DiskJournal
from pyrite.journal.disk_writer import DiskWriter
from pyrite.journal.faults import STATE
from pyrite.journal.gathering import warm_up
from pyrite.journal.group_commit import MAX_DELAYED_CHANGES
from pyrite.journal.restoring import restore_shared
from pyrite.journal.state_changes import RecordedChanges
from pyrite.journal.workers import Worker
from pyrite.storage.folder import DataFolder, FolderError
from pyrite.storage.options import StreamOptions

logger = logging.getLogger(__name__)

DAMAGED = "damaged"
"""Kind of the row that says why this node must not go on with its state."""
NO_QUORUM = "the cluster has no quorum: most of its nodes cannot be reached"


class ClusterJournal(DiskJournal):
    """Keeps on disk what the order of all nodes leads to."""

    lost_are_written_again = True
    deals_to_groups = False

    def __init__(
        self, folder: DataFolder, options: Sequence[StreamOptions], node: str, cluster: str, **parts: Any
    ) -> None:
        self.node = node
        self.cluster = cluster
        self.ledger = Ledger()
        self.order: OrderedLog | None = None
        self.halted = ""
        """Why this node must not go on; empty if it may."""
        self.is_ready = False
        """Whether this node has applied everything that was in the order before it joined."""
        self._nonce = ""
        self._when_ready: list[Callable[[], object]] = []
        self._when_halted: list[Callable[[str], object]] = []
        self._rows_are_due = False
        self._is_full = False
        for stream in options:
            if stream.fsync != "always":
                raise FolderError(
                    f"stream {stream.name}: fsync = {stream.fsync!r}: a cluster needs fsync = 'always'"
                )
        super().__init__(folder, options, **parts)
        self.outbound = Outbound(cluster, node)
        self.ownership = Ownership(self)
        self.wills = Wills(self)
        self.presence = Presence(self)
        self.state = ClusterChanges(
            self.wall,
            self.groups_changed,
            self.rows,
            self.do,
            self.ownership.ended,
            self.wills.save,
            self.ownership.epoch,
        )
        self.applying = Applying(self, self._load_ledger())

    # Parts that differ from those of one node

    def new_writer(self, writing: Worker, committing: Worker) -> DiskWriter:
        """Return a writer that commits no state when messages before it are missing."""
        return ReplicaWriter(self.log, self.database, writing, committing)

    def new_rows(self, wall: Callable[[], float]) -> RecordedChanges:
        """Return the state changes of groups, which are committed with the ledger."""
        return AppliedRows(wall, self.groups_changed, self._ledger_row)

    def _ledger_row(self) -> Any:
        return self.ledger.save(
            {stream.name: stream.next_offset for stream in self.streams}, self.groups.last_time
        )

    def _load_ledger(self) -> dict[Stream, int]:
        """Continue where the committed state was; return up to where each stream is written."""
        kept = self.database.cluster()
        self._refuse_damage(kept)
        position = self.ledger.load(kept)
        self.wills.load(kept)
        written = {stream: stream.next_offset for stream in self.streams}
        if position:
            self.groups.last_time = position["time"]
            for stream in self.streams:
                end = position["ends"].get(stream.name, 0)
                if end > stream.next_offset:
                    raise FolderError(
                        f"{self.folder.path}: stream {stream.name} ends at offset {stream.next_offset}, and "
                        f"the state includes messages up to {end}: copy the data of another node"
                    )
                stream.next_offset = stream.routed = end
        else:  # what is here already comes before the first group
            self.database.commit([self._ledger_row()])
        return written

    def _refuse_damage(self, kept: Sequence[tuple[str, str, str]]) -> None:
        """Refuse a state that has lost rows, now and at every later start: other nodes have these rows."""
        before = [text for kind, _, text in kept if kind == DAMAGED]
        if self.database.damages and not before:
            before = ["; ".join(self.database.damages)]
            self.database.commit([(sql.SAVE_CLUSTER, (DAMAGED, "", before[0]))])
        if before:
            raise FolderError(
                f"{self.folder.path}: the state was damaged ({before[0]}), so this node lacks rows: "
                "replace its data by a copy of another node's"
            )

    def load_state(self, broker: Broker) -> None:
        """Load what is not owned by a node; sessions and consumers are loaded when they are claimed."""
        self.state.begin(broker, {})
        broker.publishing = OrderedPublishing(broker, self)
        restore_shared(self, broker, self.database)

    def sync_state(self) -> None:
        """Send state changes that nothing waits for, and make those durable that were applied."""
        self.state.progress.sweep()
        self.ownership.release_idle()
        self.presence.look()
        if self.state.has_changes:
            self._rows_are_due = True
        groups = self.groups
        if self.rows.has_changes or self.rows.progress.streams_moved or STATE in groups.faults:
            groups.state_is_due = True
        self.kick()

    # Joining

    @property
    def applied_sequence(self) -> int:
        """The sequence after which the order is to be read."""
        return self.ledger.restart_after

    def join(self, order: OrderedLog) -> None:
        """Follow an order, and take part when everything before this moment is applied."""
        self.order = order
        self.applying.follow(order)
        self.start_incarnation()

    def start_incarnation(self) -> None:
        """Append the group that makes this process an author."""
        assert self.order is not None
        self.is_ready = False
        self.order.hold_lease(self.node, b"")
        nonce = self._nonce = secrets.token_hex(8)
        streams = {stream.name: stream.number for stream in self.streams}
        start = Contents(items=[["start", nonce, FORMAT, streams, int(self.wall() * 1e6)]])
        data = seal(cluster_number(self.cluster), self.node, 0, 0, True, dump(start, []))
        attempts = 0

        def append() -> None:
            nonlocal attempts
            attempts += 1
            assert self.order is not None
            self.order.append(data, f"{self.node}.{nonce}.{attempts}", done)

        def done(outcome: Appended) -> None:
            if outcome.sequence is None and self._nonce == nonce and not self.is_ready and not self.halted:
                append()

        append()

    def started(self, nonce: str, incarnation: int) -> None:
        """Take part: a start group of this node was applied."""
        assert self.order is not None
        if nonce != self._nonce:
            if self.is_ready:
                self.halt(
                    f"another process has joined the cluster as node {self.node!r}: give each node a name"
                )
            return
        if self.is_ready:
            return  # it was appended twice
        self.outbound.begin(self.order, incarnation)
        self.is_ready = True
        calls, self._when_ready = self._when_ready, []
        for call in calls:
            call()

    def declared_gone(self) -> None:
        """Leave and join again: the other nodes have given this one up, and its groups are ignored."""
        logger.warning("the other nodes have declared this node gone: its clients have to connect again")
        fault = Fault(False, "this node was declared gone")
        for group in self.outbound.abandon():
            for item in group.items:
                if isinstance(item, Message) and item.done is not None:
                    item.done(False, fault)
        self.ownership.lose_all()
        self.start_incarnation()

    def when_ready(self, call: Callable[[], object]) -> None:
        """Call once this node has caught up."""
        if self.is_ready:
            call()
        else:
            self._when_ready.append(call)

    def when_halted(self, call: Callable[[str], object]) -> None:
        """Call with the reason when this node must not go on."""
        self._when_halted.append(call)

    def halt(self, reason: str) -> None:
        """Apply, send and acknowledge nothing any more."""
        if self.halted:
            return
        self.halted = reason
        logger.error("this node stops: %s", reason)
        if self.order is not None:
            self.order.pause()
        for call in self._when_halted:
            call(reason)

    def snapshot(self, target: Path, done: Callable[[str], object]) -> None:
        """Make a copy of the data that another node can start from; see `take_snapshot`."""
        take_snapshot(self, target, done)

    def status(self) -> ClusterStatus:
        """Return what this node knows of its cluster."""
        return status_of(self)

    # Quorum

    @property
    def has_quorum(self) -> bool:
        """Whether what is sent now can become part of the order."""
        return self.is_ready and not self.halted and self.order is not None and self.order.has_quorum

    @property
    def fault(self) -> Fault | None:
        """Why something cannot be written or read at present."""
        if self.halted:
            return Fault(False, self.halted)
        return super().fault if self.has_quorum else Fault(False, NO_QUORUM)

    # What this node's clients cause

    @property
    def full(self) -> bool:
        """Whether so much waits that no more should be read from clients."""
        return self._is_full or self.groups.full

    def append(
        self, stream: Stream, batch: Batch, done: Done | None, packet_ids: Sequence[int] | None
    ) -> None:
        """Send a batch. It gets its offset when it is applied."""
        self.send(stream, batch, done, packet_ids)

    def send(
        self, stream: Stream | None, batch: Batch, done: Done | None, packet_ids: Sequence[int] | None
    ) -> None:
        """Send a batch into the order; refuse it without a quorum. HOT."""
        if not self.has_quorum:
            if done is None:
                self.broker.figures.messages_dropped += batch.count
            else:
                self.broker.turns.soon(partial(done, False, Fault(False, self.halted or NO_QUORUM)))
            return
        epoch = 0
        if packet_ids is not None and batch.origin is not None:
            epoch = self.ownership.epoch_of_session(batch.origin)
        self.outbound.add(Message(batch, stream, int(self.wall() * 1e6), packet_ids, done, epoch))
        if self.outbound.size > MAX_WAITING_BYTES:
            self._is_full = True
        self.broker.wake()

    def do(self, operation: list[Any]) -> None:
        """Send an operation into the order."""
        self.outbound.add(operation)
        self.broker.wake()

    def in_turn(self, call: Callable[[], object]) -> None:
        """Call when all earlier messages have been acknowledged or refused."""
        last = self.outbound.last_in_flight()
        if self.outbound.waiting:
            self.outbound.add(Call(call, True))
        elif last is not None:
            last.items.append(Call(call, True))
        else:
            self.groups.in_turn(call)

    def after(self, call: Callable[[], object]) -> None:
        """Call when all messages and state changes so far are in the order, and durable here."""
        last = self.outbound.last_in_flight()
        if self.state.has_changes or self.outbound.waiting or self.outbound.waiters:
            self.outbound.waiters.append(call)
            self._rows_are_due = True
            self.broker.wake()
        elif last is not None:
            last.waiters.append(call)
        else:
            self.groups.after(call)

    def unrouted(self, stream: Stream) -> list[Batch]:
        """Return nothing: no message is delivered before it can be read from the log."""
        return []

    def claim_session(
        self, client_id: str, clean_start: bool, then: Callable[[Fault | None], object]
    ) -> None:
        """Call `then` when this node owns the session of a client and has loaded it, or why it does not."""
        self.ownership.claim(SESSION, client_id, then, clean_start)

    @property
    def pull_refusal(self) -> str:
        """Why nothing can be pulled at present: what this node has may not be current."""
        return "" if self.has_quorum else self.halted or NO_QUORUM

    def claim_consumer(self, name: str, then: Callable[[Fault | None], object]) -> None:
        """Call `then` when this node owns a consumer and has loaded it, or why it does not."""
        self.ownership.claim(CONSUMER, name, then)

    def handing_out(
        self, consumer: Consumer, deliver: Deliver, done: Callable[[int], object], is_full: IsFull
    ) -> tuple[Deliver, Callable[[int], object], IsFull]:
        """Hand out messages when the order has that they are handed out."""
        one = HandingOut(self, consumer.name, deliver, done, is_full)
        return one.found, one.ended, one.is_full

    # Groups

    def kick(self) -> None:
        """Append groups of what waits, and commit what was applied."""
        outbound = self.outbound
        if self.state.number_of_rows >= MAX_DELAYED_CHANGES:
            self._rows_are_due = True
        while outbound.may_append and not self.halted and (outbound.waiting or self._rows_are_due):
            self._append_group()
        self.groups.kick()
        self.applying.resume_if_room()

    def _append_group(self) -> None:
        outbound = self.outbound
        items = outbound.take()
        contents = Contents(self.ledger.sequence, self.ledger.hash)
        waiters: list[Callable[[], object]] = []
        if self._rows_are_due or any(
            isinstance(one, Message) and one.packet_ids is not None for one in items
        ):
            contents.rows, contents.epochs = self._take_rows()
        if not outbound.waiting:
            self._rows_are_due = False
            waiters, outbound.waiters = outbound.waiters, []
        if items or contents.rows or waiters:
            outbound.append(contents, items, waiters)

    def _take_rows(self) -> tuple[list[list[Any]], dict[str, int]]:
        """Return the changed rows that this node may change, and under which epochs."""
        rows: list[list[Any]] = []
        epochs: dict[str, int] = {}
        for change in self.state.take(self._unsent_ids()):
            if change[0] not in CODES:
                continue  # of a shared subscription that was made before the node joined
            key = owner_of(change)
            if key is not None:
                epoch = self.ownership.epoch(*key)
                if not epoch:
                    continue  # it has moved to another node
                epochs["/".join(key)] = epoch
            rows.append([CODES[change[0]], *change[1]])
        return rows, epochs

    def _unsent_ids(self) -> Mapping[str | None, set[int]]:
        """Return the ids of QoS 2 messages that go into a later group, by session."""
        unsent: dict[str | None, set[int]] = {}
        for item in self.outbound.waiting:
            if isinstance(item, Message) and item.packet_ids is not None:
                unsent.setdefault(item.batch.origin, set()).update(item.packet_ids)
        return unsent

    def made_room(self) -> None:
        """Let publishers go on that waited for room."""
        if self._is_full and self.outbound.size < MAX_WAITING_BYTES // 2:
            self._is_full = False
            self.broker.turns.journal_has_room()


def open_cluster_journal(
    data: Path, options: Sequence[StreamOptions], node: str, cluster: str, **parts: Any
) -> ClusterJournal:
    """Open a node's data folder, which is created if it does not exist."""
    warm_up()
    folder = DataFolder(data, parts.get("files"))
    try:
        return ClusterJournal(folder, options, node, cluster, **parts)
    except BaseException:
        folder.close()
        raise
