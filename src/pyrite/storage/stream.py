"""Reading a stream: its segments in order, in either format, whichever process writes them."""

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

from pyrite.storage.arrow import ArrowSegment
from pyrite.storage.parquet import ParquetSegment
from pyrite.storage.query import FOREVER
from pyrite.storage.roster import Roster
from pyrite.storage.segment import BatchCache, Damage, Passed
from pyrite.storage.wanted import Topics

Segment = ArrowSegment | ParquetSegment
T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A stream's name."""
SEGMENT = re.compile(r"(\d{20})(?:-(\d{20}))?\.(arrow|parquet)")
"""A segment's file name: the offset at which it begins, and where it ends if it was merged from several."""
_SETTLED = 50_000_000
"""Nanoseconds within which two changes of a folder may have the same modification time."""


def chosen(names: Iterable[str]) -> list[str]:
    """Return the names of the segments that count, the oldest first.

    A Parquet segment is complete once it exists. The Arrow segment that it was made of, or the segments that
    were merged into it, may still be there.
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


def streams_in(data: Path) -> list[Path]:
    """Return the folders of the streams in a data folder, by name."""
    try:
        return sorted(path for path in (data / "streams").iterdir() if NAME.fullmatch(path.name))
    except FileNotFoundError:
        return []


class StreamReader:
    """Reads the messages of a stream in the order of their offsets, also while the stream is written."""

    def __init__(self, folder: Path, roster: Roster | None = None) -> None:
        self.folder = folder
        self._roster = roster
        """Knows which segments are missing; readers in other processes have none."""
        self.name = folder.name
        self._segments: dict[str, Segment] = {}
        self._changed = -1
        self._cache = BatchCache()
        self.committed = 0
        """Offset before which all messages are committed, as far as the writing process has told.

        Readers in other processes need not be told: what is acknowledged is in the index.
        """

    def segments(self) -> list[Segment]:
        """Return the segments that exist now, the oldest first."""
        while True:
            changed = self.folder.stat().st_mtime_ns
            if changed == self._changed:
                return list(self._segments.values())
            names = os.listdir(self.folder)
            settled = time.time_ns() - changed > _SETTLED
            # A listing made while one name replaces another may lack both.
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
            return ParquetSegment(self.name, path, self._cache)
        return ArrowSegment(self.name, path, self._cache)

    def forget_unused(self) -> None:
        """Empty the cache of decoded batches if it was not used since the last call. Safe to call from any
        thread.
        """
        self._cache.forget_unused()

    def read(
        self, offset: int, stop: int = FOREVER, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch | Damage]:
        """Yield the messages from `offset` on and before `stop` as record batches, and what is damaged.

        No message is yielded twice, and none is left out, even if segments are converted or merged meanwhile.
        Raise OSError if the log ends before what was committed. `columns` must begin with the offset; None is
        all columns.
        """
        return self.select(offset, stop, columns)

    def select(
        self,
        offset: int,
        stop: int = FOREVER,
        columns: Sequence[str] | None = None,
        topics: Topics | None = None,
    ) -> Iterator[pa.RecordBatch | Damage | Passed]:
        """Do the same, but skip record batches in which no message has one of the topics; of the others yield
        all rows.
        """
        while offset < stop:
            segment, limit = self._at(offset)
            try:
                if limit == FOREVER:
                    self._check_end(min(stop, self.committed), offset, segment)
                yield from self._missing(offset, stop if segment is None else min(stop, segment.base))
                if segment is None:
                    return
                for piece in segment.select(offset, min(stop, limit), columns, topics):
                    yield piece
                    offset = piece.last + 1 if isinstance(piece, Damage | Passed) else _after(piece)
            except FileNotFoundError:
                continue  # it was converted or dropped: look again
            if limit == FOREVER:
                return
            yield from self._missing(offset, min(stop, limit))
            offset = max(offset, limit)

    def _missing(self, offset: int, stop: int) -> Iterator[Damage]:
        """Yield the missing segments between two offsets."""
        if self._roster is not None and offset < stop:
            yield from (one for one in self._roster.missing if one.last >= offset and one.first < stop)

    def _check_end(self, promised: int, offset: int, last: Segment | None) -> None:
        """Raise OSError if the log ends before `promised`, and messages from `offset` on were asked for."""
        if offset < promised:
            end = 0 if last is None else last.reach(promised)
            if end < promised:
                text = f"the log ends at offset {end}, but messages up to {promised - 1} were committed"
                raise OSError(errno.EIO, text, str(self.folder))

    def _at(self, offset: int) -> tuple[Segment | None, int]:
        """Return the segment that holds an offset, or the next one, and the base of the segment after it."""
        segments = self.segments()
        for number, segment in enumerate(segments):
            limit = segments[number + 1].base if number + 1 < len(segments) else FOREVER
            if offset < limit:
                return segment, limit
        return None, FOREVER

    @property
    def first(self) -> int:
        """The offset of the oldest message that is kept; of the next message, if none is."""
        segments = self.segments()
        return segments[0].base if segments else 0

    @property
    def end(self) -> int:
        """The offset after the newest message."""
        return self.look(self._end)

    def _end(self) -> int:
        segments = self.segments()
        return segments[-1].end() if segments else 0

    def offset_at(self, time: int) -> int:
        """Return the offset of the first message that came at `time` (microseconds) or later."""
        return self.look(lambda: self._offset_at(time))

    def look(self, call: Callable[[], T]) -> T:
        """Call, and again if a segment was converted or dropped meanwhile."""
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
    """Return the index of the first time that is not before `time`; the number of times if all are before it.

    Times may decrease: a clock may be wrong until the machine has asked for the time.
    """
    return int(np.searchsorted(np.maximum.accumulate(times), time))


def _after(batch: pa.RecordBatch) -> int:
    last: int = batch.column(0)[-1].as_py()
    return last + 1
