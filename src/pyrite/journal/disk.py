"""The journal on disk: messages in the streams of a data folder, state in a database beside them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pyrite.broker.core import Broker
from pyrite.broker.journal import Done, Fault, Journal, Piece, Stream, Wanted
from pyrite.broker.message import Batch
from pyrite.broker.timers import NO_SLOT
from pyrite.journal import state as sql
from pyrite.journal.disk_writer import DiskWriter
from pyrite.journal.faults import STATE, Subject, fault_of
from pyrite.journal.gathering import warm_up
from pyrite.journal.group_commit import GroupCommit
from pyrite.journal.log import Log
from pyrite.journal.log_reader import LogReader
from pyrite.journal.restoring import restore
from pyrite.journal.sink_state import SinkState
from pyrite.journal.state import State
from pyrite.journal.state_changes import RecordedChanges
from pyrite.journal.tables import STATE_FILE
from pyrite.journal.workers import Worker
from pyrite.process.fair import NO_ONE, Asker
from pyrite.storage.files import Files
from pyrite.storage.folder import DataFolder, FolderError
from pyrite.storage.options import StreamOptions
from pyrite.storage.upkeep import boot_time
from pyrite.topics.filters import matches

T = TypeVar("T")

MAINTENANCE_INTERVAL = 1.0
"""Seconds after which state changes and QoS 0 messages that nothing waits for are made durable."""
UPKEEP_INTERVAL = 2.0
"""Seconds between two runs of the upkeep of sealed segments."""
MAX_QUIET_BYTES = 32 * 1024 * 1024
"""Bytes that arrive between two of these runs, beyond which upkeep that can wait does."""


class DiskJournal(Journal):
    """Keeps everything in a data folder."""

    lasting = True
    lost_are_written_again = False
    """Whether messages that a power failure takes from the log come again, with the same offsets."""

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
        self._staging = staging or Worker()
        self.keeping = upkeep or Worker()
        self._wall = wall
        self._uptime = uptime
        """Returns the seconds since the machine was started, which nobody can set."""
        self.database = State(folder.path / STATE_FILE, self.files)
        self.log = Log(folder, options, self.files, self.database, wall, self.lost_are_written_again)
        self.streams = self.log.streams
        self.damages = self.log.damages
        """Damage found at the start, in words."""
        writing = writing or Worker()
        self.writer = self.new_writer(writing, committing or writing)
        self.reader = LogReader(self.log, reading or Worker(), wall, later)
        self.rows = self.new_rows(wall)
        """State changes that are committed with the next group."""
        self.state: RecordedChanges = self.rows
        self.groups = GroupCommit(self.writer, self.rows, wall, clock, later, self.log.set_committed)
        self._applied = self.log.applied
        for stream, applied in self._applied.items():
            if applied < 0:  # its row is damaged: the effects of messages since then are unknown
                self._applied[stream] = stream.next_offset
                self.rows.note((sql.SAVE_STREAM, (stream.number, stream.name, stream.next_offset)))
        self._is_maintaining = False
        self._is_keeping_up = False
        self._kept_up_at = 0.0
        self.sinks: dict[str, SinkState] = {}
        self._broker: Broker | None = None

    # What a journal that replicates replaces

    def new_writer(self, writing: Worker, committing: Worker) -> DiskWriter:
        """Return what makes groups durable."""
        return DiskWriter(self.log, self.database, writing, committing)

    def new_rows(self, wall: Callable[[], float]) -> RecordedChanges:
        """Return the record of state changes."""
        return RecordedChanges(wall, self.groups_changed)

    def load_state(self, broker: Broker) -> None:
        """Load the stored state into a new broker."""
        self.damages.extend(restore(self, broker, self.database))

    def sync_state(self) -> None:
        """Make state changes durable that nothing waits for."""
        groups, progress = self.groups, self.state.progress
        progress.sweep()
        if self.state.has_changes or progress.streams_moved or STATE in groups.faults:
            groups.state_is_due = True
            groups.kick()

    @property
    def broker(self) -> Broker:
        """The broker that this journal serves."""
        assert self._broker is not None
        return self._broker

    @property
    def full(self) -> bool:
        """Whether so much waits to be written that no more should be read from clients."""
        return self.groups.full

    @property
    def fault(self) -> Fault | None:
        """Why something cannot be written or read at present."""
        return self.groups.faults.all()

    @property
    def damages_found(self) -> int:
        """How many damaged places were found."""
        return self.log.damages_found + len(self.damages)

    def groups_changed(self) -> None:
        """Count a changed row for back-pressure."""
        self.groups.count_change()

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
        """Append a batch to a stream. HOT."""
        self.groups.append(stream, batch, done, packet_ids)

    def unrouted(self, stream: Stream) -> list[Batch]:
        """Return the QoS 0 batches of a stream that were delivered, but cannot be read from the log yet."""
        groups = self.groups
        return [
            self.reader.place(stream, *found)
            for group in (*groups.unsettled, groups.group)
            if stream in group.gathered
            for found in group.gathered[stream].unrouted()
        ]

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
        """Read some of a stream's messages from `offset` up to `stop`; `at_once`: in this thread."""
        self.reader.read(stream, offset, stop, wanted, answer, asker, at_once)

    def when_grown(self, call: Callable[[], object]) -> None:
        """Call once, soon after the next message can be read from any stream."""
        self.groups.settling.when_grown(call)

    def fetch(
        self,
        stream: Stream,
        offsets: Sequence[int],
        answer: Callable[[dict[int, Batch]], object],
        asker: Asker = NO_ONE,
    ) -> None:
        """Read single messages of a stream by offset; the answer omits messages that no longer exist."""
        self.reader.fetch(stream, offsets, answer, asker)

    def offset_at(self, stream: Stream, when: float, answer: Callable[[int], object]) -> None:
        """Find the first message that arrived at `when` (seconds since 1970) or later."""
        self.reader.offset_at(stream, when, answer)

    def earliest(self, stream: Stream) -> int:
        """Return the offset of the oldest stored message."""
        return self.reader.earliest(stream)

    def read_all(self, stream: Stream, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield everything from an offset on, in this thread. For the start."""
        return self.reader.read_all(stream, offset)

    def place(self, stream: Stream, batch: Batch, offset: int, when: int) -> Batch:
        """Set where a batch from the log lies, its time, and its expiry on the broker's clock."""
        return self.reader.place(stream, batch, offset, when)

    # Groups

    def after(self, call: Callable[[], object]) -> None:
        """Call when all messages and state changes so far are durable."""
        self.groups.after(call)

    def in_turn(self, call: Callable[[], object]) -> None:
        """Call when all earlier messages have been acknowledged or refused."""
        self.groups.in_turn(call)

    def kick(self) -> None:
        """Commit the current group, unless the previous one is being committed."""
        self.groups.kick()

    def choked(self) -> None:
        """Record that a publisher was paused because the journal is full."""
        self.groups.publisher_paused()

    def wall(self) -> float:
        """Return the time in seconds since 1970."""
        return self._wall()

    def offload(self, job: Callable[[], T], then: Callable[[T], object]) -> None:
        """Run a slow job of a sink, which must not raise, in a thread of its own."""
        self._staging.run(job, then)

    # Start, maintenance and end

    def restore(self, broker: Broker) -> None:
        """Restore the stored state into a new broker."""
        self._broker = broker
        self.groups.begin(broker)
        self.reader.begin(broker)
        self.rows.begin(broker, self._applied)
        self.load_state(broker)
        broker.timers.set(self, broker.now + MAINTENANCE_INTERVAL)

    @property
    def applied(self) -> dict[Stream, int]:
        """The offset of each stream up to which the state includes the effects of messages."""
        return self._applied

    def due(self) -> None:
        """Make durable what nothing waits for, retry what failed, and start the upkeep of sealed segments."""
        broker, groups = self.broker, self.groups
        broker.timers.set(self, broker.now + MAINTENANCE_INTERVAL)
        self.sync_state()
        if not self._is_maintaining and (groups.faults or not groups.is_writing):
            self._is_maintaining = True
            faulty = [stream for stream in self.streams if stream in groups.faults]
            self.writer.writing.run(
                lambda: self.log.maintain(faulty), self._maintained, lambda error: ({}, 0)
            )
        if not self._is_keeping_up and broker.now - self._kept_up_at >= UPKEEP_INTERVAL:
            self._is_keeping_up = True
            busy = groups.take_arrived() > MAX_QUIET_BYTES
            wall, uptime = self._wall, self._uptime
            self.keeping.run(
                lambda: self.log.keep_up(wall(), uptime(), busy), self._kept_up, lambda error: None
            )

    def _maintained(self, result: tuple[dict[Subject, Fault | None], int]) -> None:
        self._is_maintaining = False
        outcomes, lost = result
        self.broker.figures.log_lost += lost
        self.groups.judge(outcomes)

    def _kept_up(self, _: None) -> None:
        self._is_keeping_up = False
        self._kept_up_at = self.broker.now
        self.groups.judge(self.log.find_missing())

    def close(self) -> None:
        """Write everything that is left, and release the folder.

        Raise FolderError, when everything is closed, if some of it could not be written.
        """
        faults: dict[Subject, Fault | None] = {}
        group = None
        if self._broker is not None:
            before = self.groups.state_commit
            group = self.groups.cut(with_state=True)
            self.writer.write_last(group, before)
        self.writer.stop()
        self.reader.worker.stop()
        self._staging.stop()  # a sink's commit that is interrupted continues at the next start
        self.keeping.stop()
        if group is not None and group.state is not None:
            faults |= group.faults | {STATE: group.state.fault}
        for subject, fault in self.log.close().items():
            faults.setdefault(subject, fault)
        try:
            self.database.close()
        except sqlite3.Error as error:
            faults[STATE] = faults.get(STATE) or fault_of(error, STATE)
        lost = [fault.text for fault in faults.values() if fault is not None]
        if not lost:
            self.folder.forget_boot()
        self.folder.close()
        if lost:
            raise FolderError(f"{self.folder.path}: what came last may be lost: {'; '.join(lost)}")


def open_journal(data: Path, options: Sequence[StreamOptions], **parts: Any) -> DiskJournal:
    """Open a data folder, which is created if it does not exist."""
    warm_up()
    folder = DataFolder(data, parts.get("files"))
    try:
        return DiskJournal(folder, options, **parts)
    except BaseException:
        folder.close()
        raise
