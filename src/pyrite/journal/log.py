"""The log on disk: the writer, readers, roster and upkeep of each stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from pyrite.broker.journal import Fault, Stream
from pyrite.journal.faults import Missing, Subject, fault_of, missing_fault
from pyrite.journal.gathering import encode
from pyrite.journal.group import Group
from pyrite.journal.state import State
from pyrite.process.memory import release_memory
from pyrite.storage.files import Files
from pyrite.storage.folder import DataFolder
from pyrite.storage.options import STREAM_NAME, StreamOptions
from pyrite.storage.roster import Roster
from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader, chosen
from pyrite.storage.stream_writer import StreamWriter
from pyrite.storage.upkeep import Upkeep

logger = logging.getLogger(__name__)

SKIPPED_AFTER_POWER_LOSS = 1 << 24
"""Offsets skipped when the power failed: as many messages may have been read that are lost."""


class Log:
    """The streams of a data folder. Opened by the thread that starts the broker."""

    def __init__(
        self,
        folder: DataFolder,
        options: Sequence[StreamOptions],
        files: Files,
        state: State,
        wall: Callable[[], float],
        lost_are_written_again: bool = False,
    ) -> None:
        self.damages: list[str] = []
        """Damage that was found when the streams were opened."""
        self.damages_found = 0
        self._reported: set[Damage] = set()
        self.writers: dict[Stream, StreamWriter] = {}
        self.readers: dict[Stream, StreamReader] = {}
        """Used by the reading thread."""
        self.readers_here: dict[Stream, StreamReader] = {}
        """Used by the event loop's thread."""
        self.applied: dict[Stream, int] = {}
        """The offset up to which the state includes the effects of messages; negative if it is unknown."""
        self._rosters: dict[Stream, Roster] = {}
        self._upkeep: list[Upkeep] = []
        options = [*options, *_unconfigured(folder, options)]
        numbers = state.streams([one.name for one in options])
        rebooted = folder.note_boot() and not lost_are_written_again
        for one in options:
            number, applied = numbers[one.name]
            path = folder.streams / one.name
            roster = Roster(path, chosen)
            writer = StreamWriter(files, path, one, wall, roster.lost)
            end = _begin(writer, applied, rebooted)
            stream = Stream(number, one.name, [text.encode() for text in one.topics], end)
            self.writers[stream] = writer
            self.readers[stream] = StreamReader(path, roster)
            self.readers_here[stream] = StreamReader(path, roster)
            self.set_committed(stream, writer.opened.end)
            self._rosters[stream] = roster
            self._upkeep.append(Upkeep(files, path, one, self.report, roster))
            self.applied[stream] = applied
            self.damages.extend(map(str, writer.opened.damages))
        self.streams = tuple(self.writers)

    def report(self, damage: Damage) -> None:
        """Report damage, once."""
        if damage not in self._reported:
            self._reported.add(damage)
            self.damages_found += 1
            logger.error("damaged: %s", damage)

    def set_committed(self, stream: Stream, end: int) -> None:
        """Tell readers the offset up to which they must find messages."""
        self.readers[stream].committed = self.readers_here[stream].committed = end

    # In the writing thread

    def write(self, group: Group) -> None:
        """Write the messages of a group, and sync those that a publisher waits for."""
        for stream, gathering in group.gathered.items():
            try:
                writer = self.writers[stream]
                rows = gathering.rows()
                if rows is None:
                    writer.append(encode(gathering.pieces), gathering.promised)
                else:
                    writer.append_rows(rows, gathering.end - len(rows), gathering.promised)
            except Exception as error:  # of any kind: its waiters must be told
                group.faults[stream] = fault_of(error, stream)

    def maintain(self, faulty: Sequence[Stream]) -> tuple[dict[Subject, Fault | None], int]:
        """Sync and seal what is due, and try to write to streams that are faulty.

        Return the outcomes, and how many messages may have been lost.
        """
        outcomes: dict[Subject, Fault | None] = {}
        lost = 0
        for stream, writer in self.writers.items():
            try:
                writer.check_files()
                writer.fold_if_due()
                writer.sync_if_due()
                writer.seal_if_due()
                if stream in faulty:
                    writer.probe()
                    outcomes[stream] = None
            except Exception as error:
                outcomes[stream] = fault_of(error, stream)
            lost += writer.take_lost()
        return outcomes, lost

    def close(self) -> dict[Subject, Fault | None]:
        """Sync and close all streams; return the faults."""
        faults: dict[Subject, Fault | None] = {}
        for stream, writer in self.writers.items():
            try:
                writer.close()
            except OSError as error:
                faults[stream] = fault_of(error, stream)
        return faults

    # In the upkeep thread

    def keep_up(self, wall: float, uptime: float, busy: bool) -> None:
        """Convert, merge and drop sealed segments; when busy, only what cannot wait."""
        for upkeep in self._upkeep:
            upkeep.work(wall, uptime, busy)
        for reader in (*self.readers.values(), *self.readers_here.values()):
            reader.forget_unused()
        if not busy:
            release_memory()

    # In the event loop's thread

    def find_missing(self) -> dict[Subject, Fault | None]:
        """Return a fault for each stream of which sealed segments were removed."""
        outcomes: dict[Subject, Fault | None] = {}
        for stream, roster in self._rosters.items():
            missing = roster.missing
            for damage in missing:
                self.report(damage)
            outcomes[Missing(stream)] = missing_fault(stream, missing)
        return outcomes


def _begin(writer: StreamWriter, applied: int, rebooted: bool) -> int:
    """Begin a segment where the stream continues, and return that offset: offsets are never reused."""
    end = max(writer.opened.end, applied)
    if rebooted and end:
        writer.seal()
        end += SKIPPED_AFTER_POWER_LOSS
    if end:
        writer.begin(end)
    return end


def _unconfigured(folder: DataFolder, options: Sequence[StreamOptions]) -> Iterator[StreamOptions]:
    """Yield the streams that are in the folder but not in the configuration.

    They capture nothing, and their messages are kept for readers that have not reached their end.
    """
    configured = {one.name for one in options}
    for path in sorted(folder.streams.iterdir()):
        if path.name in configured or not path.is_dir() or not STREAM_NAME.fullmatch(path.name):
            continue
        logger.warning(
            "stream %s is not configured: it captures nothing, and nothing of it is dropped; "
            "configure it again, or remove its folder %s while no broker runs",
            path.name,
            path,
        )
        yield StreamOptions(path.name, [])
