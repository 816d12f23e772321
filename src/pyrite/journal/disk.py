"""The journal on disk: group commit of messages and state, and what the broker reads of both.

Everything that arrives while the last group is being written is the next group: for each stream one record
batch, one write, one fdatasync. This happens in a thread of its own. Then, in the event loop's thread, the
group is settled: messages with QoS 1 and 2 are routed and acknowledged.

With a group go the changes of the state, if it is time for them: one transaction, in another thread, when the
messages of the group are written, so that the state knows of none that the log does not have. Whoever waits
for the state goes on when that is done; who waits for messages alone does not wait for it.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from pyrite.broker.consumers import Consumer
from pyrite.broker.core import TURN
from pyrite.broker.fanout import lowest_offsets
from pyrite.broker.journal import Done, Fault, Journal, Piece, Stream, Wanted
from pyrite.broker.message import Batch
from pyrite.broker.record import snapshot
from pyrite.broker.session import Session
from pyrite.broker.subscriptions import SharedGroup, Subscription
from pyrite.broker.timers import NO_SLOT
from pyrite.journal import state as database
from pyrite.journal.changes import Changes
from pyrite.journal.faults import STATE, Faults, Missing, Subject, fault_of, missing_fault
from pyrite.journal.gathering import Gathering, encode, warm_up
from pyrite.journal.reading import RawPiece, fetch, read_piece
from pyrite.journal.restoring import OWNER, STORED, dump_bits, dump_block, dump_properties, restore
from pyrite.journal.sink_state import SinkState
from pyrite.journal.state import Change, State
from pyrite.journal.tables import STATE_FILE
from pyrite.journal.workers import Worker
from pyrite.process.fair import NO_ONE, Asker
from pyrite.process.memory import give_back_memory
from pyrite.storage.files import Files
from pyrite.storage.folder import DataFolder, FolderError
from pyrite.storage.options import STREAM_NAME, StreamOptions
from pyrite.storage.roster import Roster
from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader, chosen
from pyrite.storage.stream_writer import StreamWriter
from pyrite.storage.upkeep import Upkeep, boot_time
from pyrite.topics.filters import matches

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker

logger = logging.getLogger(__name__)
T = TypeVar("T")

LINGER = 0.05
"""Seconds that messages no one waits for gather before they are written."""
GATHER = 8 * 1024 * 1024
"""Bytes of them that are written without waiting longer."""
MAX_PENDING = 64 * 1024 * 1024
"""Bytes that may wait to be written before no more is read from clients."""
MANY_CHANGES = 512
"""Changes of the state that are written without waiting longer."""
MAX_CHANGES = 4_096
"""Changes that may wait to be written before no more is read from a client that makes another."""
TOO_MANY_CHANGES = 4 * MAX_CHANGES
"""Changes that may wait before no more is read from anyone: messages that are settled make some, too."""
LEAP = 1 << 24
"""Offsets that are left out after the power failed: so many messages may have been read that are lost."""
LAZY = 1.0
"""Seconds in which state that no one waits for is written."""
UPKEEP = 2.0
"""Seconds between two looks at what is to be done to sealed segments."""
BUSY = 32 * 1024 * 1024
"""Bytes that come between two looks from which on what can wait does."""
SWEEP = 60.0
"""Seconds between two notes of how far sessions have come that are connected and were sent nothing."""
AGAIN = 0.1
"""Seconds after which a part of the log that could not be read is read again."""
TRIES = 50
"""How often that is tried for single messages, before they count as lost."""
MAX_ROWS = 32
"""Rows of a session's steps after which they are written anew, as one."""


class Waiter(NamedTuple):
    """Who waits for a group to be safe: a batch to be routed, with whom to tell; or a call."""

    batch: Batch | None
    done: Done | None
    call: Callable[[], object] | None = None


class Group:
    """What is written together."""

    def __init__(self) -> None:
        self.gathered: dict[Stream, Gathering] = {}
        self.unsafe: list[tuple[Stream, Batch, Sequence[int]]] = []
        """QoS 2 messages of sessions that last, with their ids."""
        self.waiters: list[Waiter] = []
        self.size = 0
        """Bytes of its messages."""
        self.since = 0.0
        self.waits = False
        """Whether someone waits for it."""
        self.faults: dict[Stream, Fault] = {}
        self.commit: Commit | None = None
        """What is written of the state after it, if anything."""

    def __bool__(self) -> bool:
        return bool(self.gathered or self.waiters)


class Commit:
    """Changes of the state that are written together, and who waits for them."""

    def __init__(self, changes: Changes, number: int, waiters: list[Callable[[], object]]) -> None:
        self.changes = changes
        self.number = number
        """How many of the changes that may wait they are."""
        self.waiters = waiters
        self.may_begin = threading.Event()
        """Set when the group that it goes with is written, or could not be."""
        self.fault: Fault | None = None


NO_GROUP = Group()
"""Stands for that of a call that waits for the state."""


class DiskJournal(Journal):
    """Keeps everything in a data folder."""

    lasting = True

    def __init__(
        self,
        folder: DataFolder,
        options: Sequence[StreamOptions],
        files: Files | None = None,
        writing: Worker | None = None,
        committing: Worker | None = None,
        reading: Worker | None = None,
        staging: Worker | None = None,
        upkeep: Worker | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        uptime: Callable[[], float] = boot_time,
        later: Callable[[float, Callable[[], object]], object] | None = None,
    ) -> None:
        self.folder = folder
        self.slot = NO_SLOT
        self.files = files or Files()
        self._writing = writing or Worker()
        self._committing = committing or self._writing
        self.reading = reading or Worker()
        self._staging = staging or Worker()
        """For sinks: what they read of their parts may take long."""
        self._keeping = upkeep or Worker()
        self._wall = wall
        self._clock = clock
        self._uptime = uptime
        """Tells how long the machine runs: no one sets that clock."""
        self._later = later
        """Has something called after some seconds; without it, messages do not linger."""
        self._armed = False
        self.damages: list[str] = []
        """What was found damaged at the start, in words."""
        self._state = State(folder.path / STATE_FILE, self.files)
        options = [*options, *self._left_behind(options)]
        numbers = self._state.streams([one.name for one in options])
        self.writers: dict[Stream, StreamWriter] = {}
        self._rosters: dict[Stream, Roster] = {}
        self._readers: dict[Stream, StreamReader] = {}
        self._readers_here: dict[Stream, StreamReader] = {}
        self._upkeep: list[Upkeep] = []
        self._upkept = 0.0
        self._came = 0
        """Bytes that came since the last look at what is to be done to sealed segments."""
        self._keeps_up = False
        self._applied: dict[Stream, int] = {}
        self._changes = Changes()
        rebooted = folder.note_boot()
        for one in options:
            where = folder.streams / one.name
            roster = Roster(where, chosen)
            writer = StreamWriter(self.files, where, one, wall, roster.lost)
            number, applied = numbers[one.name]
            end = max(writer.opened.end, applied)  # offsets are never given twice
            if rebooted and end:
                writer.seal()
                end += LEAP
            if end:
                writer.begin(end)
            stream = Stream(number, one.name, [text.encode() for text in one.topics], end)
            self.writers[stream] = writer
            self._rosters[stream] = roster
            self._readers[stream] = StreamReader(where, roster)
            self._readers_here[stream] = StreamReader(where, roster)
            self._is_committed(stream, writer.opened.end)
            self._upkeep.append(Upkeep(self.files, where, one, self._damaged, roster))
            self._applied[stream] = applied
            if applied < 0:  # its row is damaged: what messages did to the state since then is not known
                self._applied[stream] = end
                self._changes.add((database.SAVE_STREAM, (number, one.name, end)))
            self.damages.extend(map(str, writer.opened.damages))
        self.streams = tuple(self.writers)
        self._by_number = {stream.number: stream for stream in self.streams}
        self._last_time = 0
        self._group = Group()
        self._unsettled: deque[Group] = deque()
        """Groups that are being written, or settled."""
        self._busy = False
        self._pending = 0
        """Bytes of messages that wait to be written."""
        self._settling: deque[tuple[Group, Waiter]] = deque()
        self._turn_comes = False
        self._commit: Commit | None = None
        """What of the state is being written, until everyone who waits for that was told."""
        self._state_is_due = False
        """Whether the state is to be written with the next group."""
        self._state_waiters: list[Callable[[], object]] = []
        """Who waits for what was noted since the last commit, or could not be written."""
        self._noted = 0
        """Changes noted since the last commit."""
        self._faults = Faults()
        self._syncing = False
        self._incoming: dict[Session, None] = {}
        self._deliveries: dict[Session, None] = {}
        self._groups: dict[SharedGroup, None] = {}
        self._accounts: dict[str, Account] = {}
        """Those whose stored bytes have changed, by key."""
        self._rows: dict[Session, int] = {}
        self._stale: deque[Session] = deque()
        self._swept = 0.0
        self._reported: set[Damage] = set()
        self._when_grown: list[Callable[[], object]] = []
        self.sinks: dict[str, SinkState] = {}
        self._broker: Broker | None = None

    def _left_behind(self, options: Sequence[StreamOptions]) -> Iterator[StreamOptions]:
        """Yield the streams that are in the folder and no longer in the configuration.

        They capture nothing more. Their messages are kept, and read by who has not come to their end.
        """
        configured = {one.name for one in options}
        for path in sorted(self.folder.streams.iterdir()):
            if path.name in configured or not path.is_dir() or not STREAM_NAME.fullmatch(path.name):
                continue
            logger.warning(
                "stream %s is not configured: it captures nothing, and nothing of it is dropped; "
                "configure it again, or remove its folder %s while no broker runs",
                path.name,
                path,
            )
            yield StreamOptions(path.name, [])

    @property
    def broker(self) -> Broker:
        """The broker that this is the journal of."""
        assert self._broker is not None
        return self._broker

    # Messages

    def stream_for(self, topic: bytes) -> Stream | None:
        """Return the first stream that captures a topic."""
        for stream in self.streams:
            if any(matches(one, topic) for one in stream.filters):
                return stream
        return None

    def append(
        self, stream: Stream, batch: Batch, done: Done | None, packet_ids: Sequence[int] | None
    ) -> None:
        """Put a batch into a stream. HOT."""
        batch.stream = stream
        batch.offset = stream.next_offset
        stream.next_offset += batch.count
        now = int(self._wall() * 1e6)
        if now <= self._last_time:
            now = self._last_time + 1
        self._last_time = now
        group = self._group
        gathering = group.gathered.get(stream)
        if gathering is None:
            gathering = group.gathered[stream] = Gathering()
            self.broker.wake()
        began = self._clock()
        waited = batch.qos > 0 or done is not None
        gathering.add(batch, now, packet_ids, waited)
        self._blocked(began)
        size = len(batch.data)
        group.size += size
        self._pending += size
        self._came += size
        if waited:
            group.waiters.append(Waiter(batch, done))
            group.waits = True
            if packet_ids is not None:
                group.unsafe.append((stream, batch, packet_ids))
        if self._pending > MAX_PENDING:
            self.full = True

    def tidy(self) -> None:
        """Compress what came. HOT."""
        for gathering in self._group.gathered.values():
            if gathering.fresh:
                began = self._clock()
                gathering.pack()
                self._blocked(began)

    def _blocked(self, began: float) -> None:
        """Note for how long the event loop was held up."""
        took = self._clock() - began
        if took > self.broker.figures.longest_log_block:
            self.broker.figures.longest_log_block = took

    def choked(self) -> None:
        """Let others go on, if it was one client's changes of the state that were too many."""
        self.full = self._is_full()

    def _is_full(self) -> bool:
        """Tell whether so much waits that everyone has to."""
        return self._pending > MAX_PENDING or self._waiting_changes() > TOO_MANY_CHANGES

    def _waiting_changes(self) -> int:
        return self._noted + (0 if self._commit is None else self._commit.number)

    def _make_room(self) -> None:
        """Have those go on who had to wait, if enough was written."""
        if self._pending < MAX_PENDING // 2 and self._waiting_changes() < MAX_CHANGES // 2:
            self.full = False
            self.broker.unchoke()

    def unrouted(self, stream: Stream) -> list[Batch]:
        """Return the QoS 0 batches of a stream that are not in the log as far as the broker knows."""
        return [
            self.place(stream, *found)
            for group in (*self._unsettled, self._group)
            if stream in group.gathered
            for found in group.gathered[stream].unrouted()
        ]

    def in_turn(self, call: Callable[[], object]) -> None:
        """Call when everyone who waited before has been told."""
        if self._group.waits or any(group.waits for group in self._unsettled):
            self._group.waiters.append(Waiter(None, None, call))
            self._group.waits = True
            self.broker.wake()
        else:
            call()

    def after(self, call: Callable[[], object]) -> None:
        """Call when everything that was noted so far is safe."""
        if not self._has_changes() and self._commit is None and not self._state_waiters:
            self.in_turn(call)
            return
        self._state_waiters.append(call)
        if STATE not in self._faults:  # else it is tried again in a while
            self._state_is_due = True
            self.broker.wake()

    def _has_changes(self) -> bool:
        return bool(self._changes or self._incoming or self._deliveries or self._groups or self._accounts)

    def _ask_for_a_turn(self) -> None:
        if not self._turn_comes:
            self._turn_comes = True
            self.broker.interrupted(self)

    def go_on(self) -> None:
        """Settle more of what was written."""
        self._turn_comes = False
        self._settle_some()

    # The group commit

    def kick(self) -> None:
        """Write what has gathered, unless something is being written, or no one waits for it yet."""
        group = self._group
        if len(self._changes) >= MANY_CHANGES and STATE not in self._faults:
            self._state_is_due = True
        with_state = self._state_is_due and self._commit is None
        if self._busy or not (group or with_state):
            return
        if not group.waits and self._later is not None and group.size < GATHER and not with_state:
            if not group.since:
                group.since = self._clock()
            if self._clock() - group.since < LINGER:
                if not self._armed:
                    self._armed = True
                    self._later(LINGER, self._lingered)
                return
        self._cut(with_state)
        self._busy = True
        self._unsettled.append(group)
        self._writing.run(partial(self._write, group), self._written, partial(_unwritten, group))
        if group.commit is not None:
            self._committing.run(partial(self._write_state, group.commit), self._committed)

    def _cut(self, with_state: bool) -> None:
        """End the group, and take with it what is to be written of the state, if it is time for that."""
        group, self._group = self._group, Group()
        for gathering in group.gathered.values():
            gathering.cut()
        if with_state:
            group.commit = self._commit = self._take_changes(group)

    def _lingered(self) -> None:
        self._armed = False
        self.kick()

    def _write(self, group: Group) -> Group:
        """Write a group, and make it safe as far as someone waits for it. In the writing thread."""
        try:
            for stream, gathering in group.gathered.items():
                try:
                    self.writers[stream].append(encode(gathering.pieces), gathering.promised)
                except Exception as error:  # whatever it is, who waits is to be told
                    group.faults[stream] = fault_of(error, stream)
        finally:
            if group.commit is not None:
                group.commit.may_begin.set()
        return group

    def _write_state(self, commit: Commit) -> Commit:
        """Write changes of the state, after the messages that they may know of. In the committing thread."""
        commit.may_begin.wait()
        try:
            self._state.commit(list(commit.changes))
        except Exception as error:  # whatever it is, it is tried again, and who waits for it waits on
            commit.fault = fault_of(error, STATE)
            with suppress(sqlite3.Error):  # then all of them are kept
                commit.changes.forget_needless(self._state.finds)
        return commit

    def _write_last(self, before: Commit | None, last: Commit) -> Commit:
        """Write the last changes, with those before them if these could not be written."""
        if before is not None and before.fault is not None:
            before.changes.update(last.changes)
            last.changes = before.changes
        return self._write_state(last)

    def _written(self, group: Group) -> None:
        """Settle a group that was written, or could not be. In the event loop's thread."""
        self._busy = False
        for stream, gathering in group.gathered.items():
            if stream in group.faults:
                self.broker.figures.log_lost += gathering.unpromised
            else:
                self._is_committed(stream, gathering.end)
            group.waiters.append(Waiter(None, None, partial(_set_routed, stream, gathering.end)))
        waiters, group.waiters = group.waiters, []  # no cycle with the group: its bytes are to go
        waiters.append(Waiter(None, None, partial(self._is_settled, group)))
        self._settling.extend((group, waiter) for waiter in waiters)
        self._judge({stream: group.faults.get(stream) for stream in group.gathered})
        self._settle_some()

    def _is_committed(self, stream: Stream, end: int) -> None:
        """Tell those who read a stream up to where they must find messages."""
        self._readers[stream].committed = self._readers_here[stream].committed = end

    def _is_settled(self, group: Group) -> None:
        self._unsettled.remove(group)
        for gathering in group.gathered.values():
            gathering.release()
        self._pending -= group.size
        self._make_room()
        self.kick()

    def _committed(self, commit: Commit) -> None:
        """Have those go on who waited for the state. In the event loop's thread.

        Those who waited for messages that came before have their turn already, or had it.
        """
        if commit.fault is None:
            waiters = [Waiter(None, None, call) for call in commit.waiters]
            waiters.append(Waiter(None, None, self._state_is_settled))
            self._settling.extend((NO_GROUP, waiter) for waiter in waiters)
        else:  # what could not be written is kept for the next try
            commit.changes.update(self._changes)
            self._changes = commit.changes
            self._state_waiters[:0] = commit.waiters
            self._state_is_due = False
            self._state_is_settled()
        self._judge({STATE: commit.fault})
        self._settle_some()

    def _state_is_settled(self) -> None:
        self._commit = None
        self._make_room()
        self.kick()

    def _settle_some(self) -> None:
        """Route and acknowledge what is safe, for a turn."""
        settling, broker = self._settling, self.broker
        until = broker.clock() + TURN
        count = 0
        has_grown = False
        while settling:
            group, waiter = settling.popleft()
            has_grown = has_grown or waiter.batch is not None
            try:
                self._settle(group, waiter)
            except Exception:  # a mistake with one must not keep the others waiting for ever
                logger.exception("internal error while settling what was written")
            count += 1
            if (count % 8 == 0 or broker.fan_outs.queue) and broker.clock() > until:
                self._ask_for_a_turn()
                break
        else:  # what takes long is delivered when all have been told
            broker.fan_outs.work(until)
        self.full = self._is_full()  # what was settled may have made changes of the state: no one is to blame
        if has_grown and self._when_grown:
            calls, self._when_grown = self._when_grown, []
            for call in calls:
                call()

    def when_grown(self, call: Callable[[], object]) -> None:
        """Call once, soon after the next message can be read from a stream."""
        self._when_grown.append(call)

    def _settle(self, group: Group, waiter: Waiter) -> None:
        batch, done = waiter.batch, waiter.done
        if batch is None:
            assert waiter.call is not None
            waiter.call()
            return
        stream = batch.stream
        assert stream is not None
        fault = group.faults.get(stream)
        matched = False
        if fault is None:
            stream.routed = batch.offset
            try:
                matched = self.broker.distribute(batch)
            except Exception:  # it is safe all the same: were it sent again, it would be in the log twice
                self.broker.mistake(batch)
                matched = True
        stream.routed = batch.offset + batch.count
        if done is not None:
            done(matched, fault)

    def _judge(self, outcomes: Mapping[Subject, Fault | None]) -> None:
        """See whether the disk takes what it is given, and say so when that changes."""
        news = [writer for writer, fault in outcomes.items() if self._faults.note(writer, fault)]
        if news:
            self.fault = self._faults.all()
            self.broker.alert()

    def due(self) -> None:
        """Every second: write state that no one waits for, sync what no one waits for, note positions."""
        broker = self.broker
        broker.timers.set(self, broker.now + LAZY)
        self._sweep()
        moved = any(stream.routed > self._applied[stream] for stream in self.streams)
        if self._has_changes() or moved or STATE in self._faults:
            self._state_is_due = True
            self.kick()
        if not self._syncing and (self._faults or not self._busy):
            self._syncing = True
            faulty = [stream for stream in self.streams if stream in self._faults]
            self._writing.run(partial(self._sync, faulty), self._synced, lambda error: ({}, 0))
        if not self._keeps_up and broker.now - self._upkept >= UPKEEP:
            self._keeps_up = True
            busy, self._came = self._came > BUSY, 0
            self._keeping.run(partial(self._keep_up, busy), self._kept_up, lambda error: None)

    def _keep_up(self, busy: bool) -> None:
        for upkeep in self._upkeep:
            upkeep.work(self._wall(), self._uptime(), busy)
        for reader in (*self._readers.values(), *self._readers_here.values()):
            reader.forget_unused()
        if not busy:
            give_back_memory()

    def _kept_up(self, _: None) -> None:
        self._keeps_up = False
        self._upkept = self.broker.now
        self._see_what_is_missing()

    def _see_what_is_missing(self) -> None:
        """Say which segments someone has removed, as long as they are not back."""
        outcomes: dict[Subject, Fault | None] = {}
        for stream, roster in self._rosters.items():
            missing = roster.missing
            for damage in missing:
                self._damaged(damage)
            outcomes[Missing(stream)] = missing_fault(stream, missing)
        self._judge(outcomes)

    def _sync(self, faulty: Sequence[Stream]) -> tuple[dict[Subject, Fault | None], int]:
        """Sync what has waited for long enough, and see whether what fails still does. In the writing thread.

        Return what came of it, and how many messages may be lost by it.
        """
        outcomes: dict[Subject, Fault | None] = {}
        lost = 0
        for stream, writer in self.writers.items():
            try:
                writer.check_files()
                writer.sync_if_due()
                writer.seal_if_due()
                if stream in faulty:
                    writer.probe()
                    outcomes[stream] = None
            except Exception as error:
                outcomes[stream] = fault_of(error, stream)
            lost += writer.take_lost()
        return outcomes, lost

    def _synced(self, result: tuple[dict[Subject, Fault | None], int]) -> None:
        self._syncing = False
        outcomes, lost = result
        self.broker.figures.log_lost += lost
        self._judge(outcomes)

    def _sweep(self) -> None:
        """Note how far sessions have come that were sent nothing, so that they need not read it all again."""
        broker = self.broker
        if not self._stale and broker.now - self._swept >= SWEEP:
            self._swept = broker.now
            self._stale.extend(
                one for one in broker.sessions.values() if one.lasting and one.link is not None
            )
        for _ in range(min(1_000, len(self._stale))):
            session = self._stale.popleft()
            if session.record is not None and session.link is not None:
                self._rows[session] = MAX_ROWS
                self._deliveries[session] = None

    # State

    def wall(self) -> float:
        """Return the time in seconds since 1970."""
        return self._wall()

    def _take_changes(self, group: Group) -> Commit:
        """Return everything that is to be written of the state with a group, as it is now."""
        changes, self._changes = self._changes, Changes()
        commit = Commit(changes, self._noted, self._state_waiters)
        self._state_is_due, self._noted, self._state_waiters = False, 0, []
        for session in self._deliveries:
            if session.record is None:
                continue
            rows = self._rows.get(session, 0) + 1
            if rows > MAX_ROWS:
                changes.add((database.DROP_STEPS, (session.client_id,)))
                changes.add((database.ADD_STEPS, (session.client_id, snapshot(session))))
                rows = 1
            elif session.record.steps:
                changes.add((database.ADD_STEPS, (session.client_id, bytes(session.record.steps))))
            session.record.steps.clear()
            self._rows[session] = rows
        unsafe: dict[str | None, set[int]] = {}
        for pending in (*self._unsettled, group):
            for stream, batch, packet_ids in pending.unsafe:
                if batch.offset >= stream.routed:
                    unsafe.setdefault(batch.origin, set()).update(packet_ids)
        again: dict[Session, None] = {}
        for session in self._incoming:
            if session.record is not None:
                # Those that are not safe yet are found in the log if they get there; until `applied` is past
                # them, when they must be here.
                incoming, wait = session.incoming or set(), unsafe.get(session.client_id, set())
                ids = array("H", sorted(incoming - wait)).tobytes()
                changes.add((database.SAVE_INCOMING, (session.client_id, ids)))
                if not wait.isdisjoint(incoming):
                    again[session] = None
        for shared in self._groups:
            if shared.members:
                state = self._group_state(shared)
                changes.add((database.SAVE_GROUP, (shared.name, shared.topic_filter, state)))
        for account in self._accounts.values():
            self._note_stored(changes, account)
        self._accounts.clear()
        self._deliveries.clear()
        self._incoming = again
        self._groups.clear()
        for stream in self.streams:
            if stream.routed != self._applied[stream]:
                self._applied[stream] = stream.routed
                changes.add((database.SAVE_STREAM, (stream.number, stream.name, stream.routed)))
        return commit

    def _numbers(self, positions: dict[Stream, int]) -> dict[int, int]:
        return {stream.number: position for stream, position in positions.items()}

    def _group_state(self, group: SharedGroup) -> str:
        positions = {stream: stream.routed for stream in self.streams}
        positions.update(lowest_offsets(one for one in self.broker.fan_outs.owed_to_group(group) if one.qos))
        positions.update(group.positions)
        if group.reader is not None:
            positions.update(group.reader.reached_positions())
        returned = [
            [batch.stream.number, batch.offset, batch.count]
            for batch in group.returned
            if batch.stream is not None
        ]
        return json.dumps({"positions": self._numbers(positions), "returned": returned})

    def _note(self, change: Change) -> None:
        """Note a change of the state; a client that makes many of them has to wait until they are written."""
        if self._changes.add(change):
            self._noted += 1
            if self._waiting_changes() > MAX_CHANGES:
                self.full = True

    def save_session(self, session: Session) -> None:
        """Note that there is a session, and when it expires."""
        expires_at = None
        if session.expires_at is not None:
            expires_at = self._wall() + session.expires_at - self.broker.now
        self._note((database.SAVE_SESSION, (session.client_id, session.expiry, expires_at)))

    def drop_session(self, session: Session) -> None:
        """Note that a session is over, with all that belongs to it."""
        for dirty in (self._deliveries, self._incoming, self._rows):
            dirty.pop(session, None)
        self.drop_remains(session.client_id)

    def drop_remains(self, client_id: str) -> None:
        """Note that there is nothing of a session any more."""
        for statement in (
            database.DROP_SESSION,
            database.DROP_SUBSCRIPTIONS,
            database.DROP_STEPS,
            database.DROP_INCOMING,
        ):
            self._note((statement, (client_id,)))

    def save_owner(self, session: Session) -> None:
        """Note which account a session counts for."""
        if session.account is None:
            self.drop_owner(session)
        else:
            self._note((database.SAVE_ACCOUNT, (OWNER, session.client_id, session.account.key)))

    def drop_owner(self, session: Session) -> None:
        """Note that a session counts for none any more."""
        self.drop_owner_of(session.client_id)

    def drop_owner_of(self, client_id: str) -> None:
        """Note that no session of this id counts for any account."""
        self._note((database.DROP_ACCOUNT, (OWNER, client_id)))

    def save_stored(self, account: Account) -> None:
        """Note that what an account has stored in the log has changed."""
        self._accounts[account.key] = account

    def _note_stored(self, changes: Changes, account: Account) -> None:
        """Write an account's ledger, and up to which offset of each stream it is complete."""
        if not account.stored:
            changes.add((database.DROP_ACCOUNT, (STORED, account.key)))
            return
        spans = {
            stream.number: [[one.end, one.size] for one in spans] for stream, spans in account.stored.items()
        }
        complete = {stream.number: stream.next_offset for stream in self.streams}
        value = json.dumps({"spans": spans, "complete": complete})
        changes.add((database.SAVE_ACCOUNT, (STORED, account.key, value)))

    def save_subscription(self, session: Session, key: bytes, subscription: Subscription) -> None:
        """Note a subscription."""
        options: dict[str, Any] = {
            "qos": subscription.qos,
            "no_local": subscription.no_local,
            "retain_as_published": subscription.retain_as_published,
            "retain_handling": subscription.retain_handling,
            "identifiers": subscription.identifiers,
            "lossless": subscription.lossless,
            "latest": subscription.latest,
            "since": None if subscription.since is None else self._numbers(subscription.since),
        }
        if subscription.replay is not None:
            options["replay"] = self._numbers(subscription.replay.reached)
        self._note((database.SAVE_SUBSCRIPTION, (session.client_id, key, json.dumps(options))))

    def drop_subscription(self, session: Session, key: bytes) -> None:
        """Note that a subscription is over."""
        self._note((database.DROP_SUBSCRIPTION, (session.client_id, key)))

    def save_incoming(self, session: Session) -> None:
        """Note that the ids of a session's unfinished QoS 2 messages have changed."""
        self._incoming[session] = None

    def save_deliveries(self, session: Session) -> None:
        """Note that what was sent to a client, or acknowledged by it, has changed."""
        self._deliveries[session] = None

    def save_group(self, group: SharedGroup) -> None:
        """Note how far a shared subscription has come."""
        self._groups[group] = None

    def drop_group(self, group: SharedGroup) -> None:
        """Note that a shared subscription has no members left."""
        self._groups.pop(group, None)
        self._note((database.DROP_GROUP, (group.name, group.topic_filter)))

    def save_retained(self, batch: Batch) -> None:
        """Note a retained message."""
        message: dict[str, Any] = {"qos": batch.qos, "origin": batch.origin}
        if batch.owner is not None:
            message["owner"] = batch.owner.key
        if batch.stream is not None:
            message["stream"], message["offset"] = batch.stream.number, batch.offset
        if batch.expires_at is not None:
            message["expires_at"] = self._wall() + batch.expires_at - self.broker.now
        if batch.properties is not None:
            message["properties"] = dump_properties(batch.properties)
        self._note((database.SAVE_RETAINED, (batch.topic, json.dumps(message), batch.payload())))

    def drop_retained(self, topic: bytes) -> None:
        """Note that nothing is retained on a topic."""
        self._note((database.DROP_RETAINED, (topic,)))

    def save_consumer(self, consumer: Consumer) -> None:
        """Note a consumer, how far it has come, and what has changed of what is pending."""
        state = {
            "filter": consumer.topic_filter.decode(),
            "positions": self._numbers(consumer.positions),
            "within": consumer.within,
        }
        if consumer.owner is not None:
            state["owner"] = consumer.owner.key
        self._note((database.SAVE_CONSUMER, (consumer.name, json.dumps(state))))
        for (stream, number), bits in consumer.pending.take_changed():
            block = dump_block(stream.number, number)
            if bits:
                self._note((database.SAVE_PENDING, (consumer.name, block, dump_bits(bits))))
            else:
                self.drop_pending(consumer.name, block)

    def drop_consumer(self, name: str) -> None:
        """Note that a consumer is over."""
        self._note((database.DROP_CONSUMER, (name,)))
        self._note((database.DROP_ALL_PENDING, (name,)))

    def drop_pending(self, name: str, block: bytes) -> None:
        """Note that nothing of a block is pending."""
        self._note((database.DROP_PENDING, (name, block)))

    def save_topic(self, topic: bytes) -> None:
        """Note that a topic was created."""
        self._note((database.SAVE_TOPIC, (topic,)))

    def drop_topic(self, topic: bytes) -> None:
        """Note that a topic was deleted."""
        self._note((database.DROP_TOPIC, (topic,)))

    def save_sink(self, sink: SinkState) -> None:
        """Note what is known of a sink."""
        self._note((database.SAVE_SINK, (sink.name, json.dumps(sink.dump()))))

    def drop_sink(self, name: str) -> None:
        """Note that a sink is forgotten."""
        self._note((database.DROP_SINK, (name,)))

    # Reading

    def aside(self, job: Callable[[], T], then: Callable[[T], object]) -> None:
        """Do what may take long, and does not raise, in a thread of its own; `then` is told the result."""
        self._staging.run(job, then)

    def read(
        self,
        stream: Stream,
        offset: int,
        stop: int,
        wanted: Wanted,
        answer: Callable[[Piece], object],
        asker: Asker = NO_ONE,
        at_once: bool = False,
    ) -> None:
        """Read some of a stream's messages from `offset` on and before `stop`."""
        reader = self._readers[stream]

        def done(piece: RawPiece | None) -> None:
            if piece is None:
                self.try_again(lambda: answer(Piece([], offset)))
            else:
                answer(Piece(self._placed(stream, piece), piece.next_offset))

        def job() -> RawPiece | None:
            try:
                return read_piece(reader, offset, stop, wanted, self._damaged)
            except OSError as error:
                logger.error("stream %s: cannot be read at offset %d: %s", reader.name, offset, error)
                return None

        def unreadable(_: Exception) -> None:
            return None

        if at_once:
            try:
                piece = read_piece(self._readers_here[stream], offset, stop, wanted, self._damaged)
            except OSError:
                pass  # the reading thread tries again until it can be read
            else:
                done(piece)
                return
        self.reading.run(job, done, unreadable, asker)

    def try_again(self, call: Callable[[], object]) -> None:
        """Call after a while what could not be read: no other reader waits for it."""
        if self._later is None:
            time.sleep(AGAIN)
            call()
        else:
            self._later(AGAIN, call)

    def _placed(self, stream: Stream, piece: RawPiece) -> list[Batch]:
        return [
            batch
            for batch in (self.place(stream, *found) for found in piece.found)
            if batch.expires_at is None or batch.expires_at > self.broker.now
        ]

    def place(self, stream: Stream, batch: Batch, offset: int, when: int) -> Batch:
        """Tell a batch from the log its place and time, and when it expires on the broker's clock."""
        batch.lies_in(stream, offset)
        batch.timestamp = when
        properties = batch.properties
        if properties is not None and properties.message_expiry is not None:
            left = when / 1e6 + properties.message_expiry - self._wall()
            batch.expires_at = self.broker.now + left
        return batch

    def fetch(
        self,
        stream: Stream,
        offsets: Sequence[int],
        answer: Callable[[dict[int, Batch]], object],
        asker: Asker = NO_ONE,
    ) -> None:
        """Read single messages of a stream, by offset. What is not answered is not in the log any longer."""
        _Fetch(self, stream, offsets, answer, asker).read()

    def fetch_now(self, stream: Stream, offsets: list[int]) -> tuple[dict[int, tuple[Batch, int]], list[int]]:
        """Read as many of these messages as fit into a turn; return them and the offsets left."""
        return fetch(self._readers[stream], offsets, self._damaged)

    def offset_at(self, stream: Stream, when: float, answer: Callable[[int], object]) -> None:
        """Find the first message that came at `when` (seconds since 1970) or later."""
        reader, routed = self._readers[stream], stream.routed

        def job() -> int:
            try:
                return min(reader.offset_at(int(when * 1e6)), routed)
            except OSError as error:
                logger.error("stream %s: cannot be read: %s", stream.name, error)
                return 0

        # Where it cannot be found out, rather too much is sent than too little.
        self.reading.run(job, answer, lambda error: 0)

    def earliest(self, stream: Stream) -> int:
        """Return the offset of the oldest message that is kept."""
        try:
            return min(self._readers_here[stream].first, stream.routed)
        except OSError as error:
            logger.error("stream %s: cannot be read: %s", stream.name, error)
            return 0  # what is not there any more is passed over

    def _damaged(self, damage: Damage) -> None:
        """Report damage, once."""
        if damage not in self._reported:
            self._reported.add(damage)
            self.damages_found += 1
            logger.error("damaged: %s", damage)

    # Start and end

    def restore(self, broker: Broker) -> None:
        """Give a new broker the state that was kept."""
        self._broker = broker
        self.damages.extend(restore(self, broker, self._state))
        self.damages_found += len(self.damages)
        broker.timers.set(self, broker.now + LAZY)

    @property
    def applied(self) -> dict[Stream, int]:
        """Up to where the state includes what messages did to it."""
        return self._applied

    def read_all(self, stream: Stream, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield everything from an offset on, in this thread: for the start, when no one waits yet."""
        for piece in self._readers_here[stream].read(offset, stream.routed):
            if isinstance(piece, Damage):
                self._damaged(piece)
            else:
                yield piece

    def close(self) -> None:
        """Write everything that is left, and let go of the folder.

        Raise FolderError, when all is closed, if some of it could not be written.
        """
        group, before = self._group, self._commit
        if self._broker is not None:
            self._cut(with_state=True)
            assert group.commit is not None
            self._writing.run(partial(self._write, group), _ignore, partial(_unwritten, group))
            self._committing.run(partial(self._write_last, before, group.commit), _ignore)
        self._writing.stop()
        self._committing.stop()
        self.reading.stop()
        self._staging.stop()  # a commit that is cut short goes on at the next start
        self._keeping.stop()
        faults: dict[Subject, Fault | None] = dict(group.faults.items())
        if group.commit is not None:
            faults[STATE] = group.commit.fault
        for stream, writer in self.writers.items():
            try:
                writer.close()
            except OSError as error:
                faults.setdefault(stream, fault_of(error, stream))
        try:
            self._state.close()
        except sqlite3.Error as error:
            faults[STATE] = faults.get(STATE) or fault_of(error, STATE)
        lost = [fault.text for fault in faults.values() if fault is not None]
        if not lost:
            self.folder.forget_boot()
        self.folder.close()
        if lost:
            raise FolderError(f"{self.folder.path}: what came last may be lost: {'; '.join(lost)}")


def _set_routed(stream: Stream, offset: int) -> None:
    stream.routed = offset


def _ignore(_: object) -> None:
    """Stand for whoever might have been told."""


def _unwritten(group: Group, error: Exception) -> Group:
    """Have no one take a group for safe of which it is not known what was written."""
    group.faults = {stream: fault_of(error, stream) for stream in group.gathered}
    return group


def open_journal(data: Path, options: Sequence[StreamOptions], **parts: Any) -> DiskJournal:
    """Open a data folder, made if it is not there."""
    warm_up()
    folder = DataFolder(data, parts.get("files"))
    try:
        return DiskJournal(folder, options, **parts)
    except BaseException:
        folder.close()
        raise


class _Fetch:
    """Single messages of a stream that are read in turns.

    An object, not closures that call each other: such a cycle would keep the session that asked, with all
    that is in flight to it, until the garbage collector runs.
    """

    __slots__ = ("_answer", "_asker", "_batches", "_journal", "_left", "_stream", "_tries")

    def __init__(
        self,
        journal: DiskJournal,
        stream: Stream,
        offsets: Sequence[int],
        answer: Callable[[dict[int, Batch]], object],
        asker: Asker,
    ) -> None:
        self._journal = journal
        self._stream = stream
        self._answer = answer
        self._asker = asker
        self._left = sorted(set(offsets))
        self._batches: dict[int, Batch] = {}
        self._tries = 0

    def read(self) -> None:
        """Read some more of them."""
        self._journal.reading.run(self._job, self._done, lambda error: ({}, []), self._asker)

    def _job(self) -> tuple[dict[int, tuple[Batch, int]], list[int]] | None:
        self._tries += 1
        try:
            return self._journal.fetch_now(self._stream, self._left)
        except OSError as error:
            logger.error("stream %s: cannot be read: %s", self._stream.name, error)
            return ({}, []) if self._tries == TRIES else None

    def _done(self, result: tuple[dict[int, tuple[Batch, int]], list[int]] | None) -> None:
        if result is None:  # the messages may be there all the same
            self._journal.try_again(self.read)
            return
        found, self._left = result
        for offset, (batch, when) in found.items():
            self._batches[offset] = self._journal.place(self._stream, batch, offset, when)
        if self._left:
            self._tries = 0
            self.read()
        else:
            self._answer(self._batches)
