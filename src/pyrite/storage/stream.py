"""A stream on disk, for reading: its segments in order, whoever writes them, and whatever form they have."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pyrite.storage.parquet import ParquetSegment
from pyrite.storage.query import FOREVER
from pyrite.storage.roster import Roster
from pyrite.storage.segment import ArrowSegment, Damage, Decoded, Passed
from pyrite.storage.wanted import Topics

Segment = ArrowSegment | ParquetSegment
T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What a stream may be called."""
SEGMENT = re.compile(r"(\d{20})(?:-(\d{20}))?\.(arrow|parquet)")
"""A segment's file: the offset at which it begins; and, if several were merged, that at which it ends."""
_SETTLED = 50_000_000
"""Nanoseconds after which a second change of a folder has another time of change than the first."""


def chosen(names: Iterable[str]) -> list[str]:
    """Return the names of the segments that count, the oldest first.

    What is there as Parquet is complete; the Arrow file it was made of, or the files that were merged in it,
    may not be gone yet.
    """
    found = []
    for name in names:
        match = SEGMENT.fullmatch(name)
        if match is not None:
            found.append((int(match[1]), -int(match[2] or 0), match[3] == "arrow", name))
    counted = []
    after = 0
    for base, end, _, name in sorted(found):
        if base >= after:
            counted.append(name)
            after = max(base + 1, -end)
    return counted


class StreamReader:
    """Reads a stream's messages in the order of their offsets. Safe while the stream is written."""

    def __init__(self, folder: Path, roster: Roster | None = None) -> None:
        self.folder = folder
        self._roster = roster
        """Tells what is missing; readers of other processes have none."""
        self.name = folder.name
        self._segments: dict[str, Segment] = {}
        self._changed = -1
        self._decoded = Decoded()
        self.committed = 0
        """Offset before which all messages were committed, as far as the process that writes has told.

        Readers of other processes need not be told: what is acknowledged is in the index.
        """

    def segments(self) -> list[Segment]:
        """Return the segments there are now, the oldest first."""
        while True:
            changed = self.folder.stat().st_mtime_ns
            if changed == self._changed:
                return list(self._segments.values())
            names = os.listdir(self.folder)
            settled = time.time_ns() - changed > _SETTLED
            # A list made while one name took the place of another may lack both.
            if self.folder.stat().st_mtime_ns == changed and (settled or os.listdir(self.folder) == names):
                break
        known = self._segments
        self._segments = {name: known.get(name) or self._open(name) for name in chosen(names)}
        self._changed = changed if settled else -1
        if self._roster is not None:
            self._roster.look()
        segments = list(self._segments.values())
        for segment in segments[:-1]:
            if isinstance(segment, ArrowSegment):
                segment.over = True
        return segments

    def _open(self, name: str) -> Segment:
        path = self.folder / name
        if path.suffix == ".parquet":
            return ParquetSegment(self.name, path, self._decoded)
        return ArrowSegment(self.name, path, self._decoded)

    def forget_unused(self) -> None:
        """Let go of decoded batches, if none was used since the last time. From any thread."""
        self._decoded.forget_unused()

    def read(
        self, offset: int, stop: int = FOREVER, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch | Damage]:
        """Yield record batches with the messages from `offset` on and before `stop`; and what is damaged.

        If the log ends before what was committed, that is an OSError, and not the end. Never a message twice,
        and none is left out, whatever becomes of the segments meanwhile. `columns` are those that are wanted,
        of which the offset must be the first; all, if it is not given.
        """
        return self.select(offset, stop, columns)

    def select(
        self,
        offset: int,
        stop: int = FOREVER,
        columns: Sequence[str] | None = None,
        topics: Topics | None = None,
    ) -> Iterator[pa.RecordBatch | Damage | Passed]:
        """Do the same, but pass over record batches in which no message has one of the topics.

        Of the others all messages are there.
        """
        while offset < stop:
            segment, limit = self._at(offset)
            try:
                if limit == FOREVER:
                    self._see_that_it_reaches(min(stop, self.committed), offset, segment)
                yield from self._missing(offset, stop if segment is None else min(stop, segment.base))
                if segment is None:
                    return
                for piece in segment.select(offset, min(stop, limit), columns, topics):
                    yield piece
                    offset = piece.last + 1 if isinstance(piece, Damage | Passed) else _after(piece)
            except FileNotFoundError:
                continue  # it has become Parquet, or was dropped: look again
            if limit == FOREVER:
                return
            yield from self._missing(offset, min(stop, limit))
            offset = max(offset, limit)

    def _missing(self, offset: int, stop: int) -> Iterator[Damage]:
        """Yield the segments that are missing between two offsets."""
        if self._roster is not None and offset < stop:
            yield from (one for one in self._roster.missing if one.last >= offset and one.first < stop)

    def _see_that_it_reaches(self, promised: int, offset: int, last: Segment | None) -> None:
        """Raise OSError if the log ends before `promised`, of which messages from `offset` on are wanted."""
        if offset < promised:
            end = 0 if last is None else last.reach(promised)
            if end < promised:
                text = f"it ends at offset {end}, but messages up to {promised - 1} were committed"
                raise OSError(errno.EIO, text, str(self.folder))

    def _at(self, offset: int) -> tuple[Segment | None, int]:
        """Find the segment in which an offset is, or the next one; and where the one after it begins."""
        segments = self.segments()
        for number, segment in enumerate(segments):
            limit = segments[number + 1].base if number + 1 < len(segments) else FOREVER
            if offset < limit:
                return segment, limit
        return None, FOREVER

    @property
    def first(self) -> int:
        """The offset of the oldest message that is kept; of the next to come, if there is none."""
        segments = self.segments()
        return segments[0].base if segments else 0

    @property
    def end(self) -> int:
        """The offset after that of the newest message."""
        return self.look(self._end)

    def _end(self) -> int:
        segments = self.segments()
        return segments[-1].end() if segments else 0

    def offset_at(self, time: int) -> int:
        """Return the offset of the first message that came at `time` (microseconds) or later."""
        return self.look(lambda: self._offset_at(time))

    def look(self, call: Callable[[], T]) -> T:
        """Call, and again if a segment has become Parquet, or was dropped, meanwhile."""
        while True:
            try:
                return call()
            except FileNotFoundError:
                if not self.folder.is_dir():
                    raise

    def _offset_at(self, time: int) -> int:
        for segment in self.segments():
            records = segment.records()
            at = _first_at(records["latest"], time)
            if at < len(records):
                first, count = int(records["first"][at]), int(records["count"][at])
                for batch in segment.read(first, first + count):
                    if isinstance(batch, Damage):
                        return first
                    times = batch.column(1).view(pa.int64()).to_numpy()
                    return first + _first_at(times, time)
        return self.end


def _first_at(times: np.ndarray[Any, Any], time: int) -> int:
    """Return the number of the first time that is not before another; their number, if all are.

    Times may go back: a clock may be wrong until the machine has asked for the time.
    """
    return int(np.searchsorted(np.maximum.accumulate(times), time))


def _after(batch: pa.RecordBatch) -> int:
    last: int = batch.column(0)[-1].as_py()
    return last + 1
