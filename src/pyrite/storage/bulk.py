"""Reading much of a stream at once, as columns: for Spark, Arrow Flight, and any program with access to the
folder.

Positions are resolved to offsets first. A range of offsets can then be split, and its parts read
independently, wherever the folder is. The index tells which record batches can hold what is wanted, and only
those are read. If a query names topics, these are decoded first, and the other columns only of record batches
that have one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyrite.storage.index import NO_RECORDS, Records
from pyrite.storage.positions import Ago, Earliest, Latest, Offset, Position, parse_position
from pyrite.storage.query import FOREVER, MAX_PARTS, Bounds, DataLoss, Query, QueryError, check_number
from pyrite.storage.schema import SCHEMA
from pyrite.storage.segment import Damage, Passed
from pyrite.storage.stream import StreamReader, streams_in
from pyrite.storage.wanted import wanted_by

MIN_ROWS = 32 * 1024
MIN_BYTES = 4 * 1024 * 1024
"""Small record batches are joined until they have so many rows, or so many bytes."""


def resolve(position: Position | None, reader: StreamReader) -> int:
    """Return the offset of a position; FOREVER for none."""
    if position is None:
        return FOREVER
    if isinstance(position, Earliest):
        return 0
    if isinstance(position, Latest):
        return reader.end
    if isinstance(position, Offset):
        return position.offset
    if isinstance(position, Ago):
        return reader.offset_at(time.time_ns() // 1000 - position.microseconds)
    return reader.offset_at(position.microseconds)


def matching(batch: pa.RecordBatch, filters: Sequence[bytes]) -> pa.RecordBatch:
    """Return the messages whose topics match one of the filters."""
    topics = wanted_by(filters)
    return batch if topics is None else topics.among(batch)


class LogFolder:
    """The streams in a data folder, for reading, whether or not a broker writes to them."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def streams(self) -> list[str]:
        """Return the names of the streams."""
        return [folder.name for folder in streams_in(self.data)]

    def _reader(self, stream: str) -> StreamReader:
        names = self.streams()
        if stream not in names:
            known = f"there are: {', '.join(names)}" if names else "there are no streams"
            raise QueryError(f"there is no stream {stream!r}; {known}")
        return StreamReader(self.data / "streams" / stream)

    def check(self, query: Query) -> None:
        """Do nothing: whoever can open the folder may read all of it."""

    def progress(self, reader: str, query: Query, offset: int) -> None:
        """Do nothing: there may be no broker."""

    def bounds(self, stream: str) -> Bounds:
        """Return the offsets that a stream has now."""
        reader = self._reader(stream)
        return Bounds(reader.first, reader.end)

    def offset(self, stream: str, position: str) -> int:
        """Return the offset of a position (positions.py) as of now."""
        reader = self._reader(stream)
        try:
            parsed = parse_position(position)
        except ValueError as wrong:
            raise QueryError(str(wrong)) from None
        return max(resolve(parsed, reader), reader.first if parsed == Earliest() else 0)

    def advance(self, stream: str, start: int, messages: int | None, size: int | None) -> int:
        """Return where a part of at most so many messages and bytes (on disk) ends that begins at `start`.

        A part has at least one record batch, however large that is.
        """
        records = _records(self._reader(stream), start, FOREVER)
        if not len(records):
            return start
        ends = records["first"] + records["count"]
        stop = int(ends[-1])
        if messages is not None:
            # Counts messages, not offsets: some offsets may be unused.
            before = max(0, start - int(records["first"][0]))
            counted = np.cumsum(records["count"]) - before
            at = int(np.searchsorted(counted, messages))
            if at < len(records):
                stop = int(ends[at] - (counted[at] - messages))
        if size is not None:
            at = max(1, int(np.searchsorted(np.cumsum(records["length"]), size, "right")))
            stop = min(stop, int(ends[at - 1]))
        return stop

    def split(self, stream: str, start: int, stop: int, parts: int) -> list[tuple[int, int]]:
        """Split a range into at most `parts` parts of about as many messages each, between record batches."""
        check_number("parts", parts, 1, MAX_PARTS)
        records = _records(self._reader(stream), start, stop)
        if start >= stop or not len(records):
            return []
        totals = np.cumsum(records["count"])
        goals = totals[-1] * np.arange(1, parts) / parts
        cuts = np.unique(np.searchsorted(totals, goals))
        ends = (records["first"] + records["count"])[cuts].tolist()
        edges = [start, *(end for end in ends if start < end < stop), stop]
        return list(pairwise(edges))

    def read(
        self, query: Query, report: Callable[[str], object] = lambda _: None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages that a query asks for, in order; `report` is told what was skipped."""
        for batch, _ in self.pieces(query, report):
            yield batch

    def pieces(
        self, query: Query, report: Callable[[str], object] = lambda _: None
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Do the same, and yield with each batch the offset at which the rest of the query begins."""
        reader = self._reader(query.stream)
        stop = min(query.stop, reader.end)
        kept = min(reader.first, stop)
        _check_kept(reader, query, query.start, kept, report)
        query = query.part(max(query.start, kept), stop)
        yield from _gathered(self._found(reader, query, report), query)

    def _found(
        self, reader: StreamReader, query: Query, report: Callable[[str], object]
    ) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        topics = wanted_by([one.encode() for one in query.topics])
        needed = {"offset", *query.columns}
        if topics is not None:
            needed.add("topic")
        if query.since is not None or query.until is not None:
            needed.add("timestamp")
        wanted = [name for name in SCHEMA.names if name in needed]
        for begin, end in _ranges(reader, query):
            position = begin
            for piece in reader.select(begin, end, wanted, topics):
                if isinstance(piece, Damage):
                    _lost(query, str(piece), report)
                    position = piece.last + 1
                    continue
                if isinstance(piece, Passed):
                    _check_kept(reader, query, position, piece.first, report)
                    position = min(piece.last + 1, end)
                    yield None, position
                    continue
                _check_kept(reader, query, position, piece.column(0)[0].as_py(), report)
                position = piece.column(0)[-1].as_py() + 1
                yield _in_time(piece if topics is None else topics.among(piece), query), position
            _check_kept(reader, query, position, end, report)


def _check_kept(
    reader: StreamReader, query: Query, position: int, found: int, report: Callable[[str], object]
) -> None:
    """Report the messages between `position` and `found` that retention has dropped; other offsets were never
    used.
    """
    if position < found:
        kept = min(found, reader.first)
        if position < kept:
            _lost(
                query,
                f"stream {query.stream}: offsets {position} to {kept - 1} are not kept any longer",
                report,
            )


def _records(reader: StreamReader, start: int, stop: int) -> Records:
    """Return the index of a range: the records of all record batches with a message in it."""
    return reader.look(lambda: _look_up(reader, start, stop))


def _look_up(reader: StreamReader, start: int, stop: int) -> Records:
    found = [NO_RECORDS]
    segments = reader.segments()
    for number, segment in enumerate(segments):
        if segment.base >= stop:
            break
        if number + 1 < len(segments) and segments[number + 1].base <= start:
            continue  # all of it lies before
        records = segment.records()
        inside = (records["first"] < stop) & (records["first"] + records["count"] > start)
        found.append(records[inside])
    return np.concatenate(found)


def _ranges(reader: StreamReader, query: Query) -> list[tuple[int, int]]:
    """Return the ranges of offsets that can hold what a query asks for, judged by the times in the index."""
    if query.since is None and query.until is None:
        return [(query.start, query.stop)]
    records = _records(reader, query.start, query.stop)
    wanted = np.ones(len(records), np.bool_)
    if query.since is not None:
        wanted &= records["latest"] >= query.since
    if query.until is not None:
        wanted &= records["earliest"] < query.until
    ranges: list[tuple[int, int]] = []
    for one in records[wanted]:
        begin = max(query.start, int(one["first"]))
        end = min(query.stop, int(one["first"] + one["count"]))
        if ranges and ranges[-1][1] == begin:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((begin, end))
    return ranges


def _in_time(batch: pa.RecordBatch, query: Query) -> pa.RecordBatch:
    if query.since is None and query.until is None:
        return batch
    times = batch.column("timestamp").view(pa.int64()).to_numpy()
    keep = np.ones(len(times), np.bool_)
    if query.since is not None:
        keep &= times >= query.since
    if query.until is not None:
        keep &= times < query.until
    return batch if keep.all() else batch.filter(pa.array(keep))


def _gathered(
    batches: Iterator[tuple[pa.RecordBatch | None, int]], query: Query
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Join small record batches, and keep the columns that are wanted."""
    waiting: list[pa.RecordBatch] = []
    rows = size = after = 0
    for batch, after in batches:
        if batch is None or not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= MIN_ROWS or size >= MIN_BYTES:
            yield _joined(waiting, query), after
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting, query), after


def _joined(batches: list[pa.RecordBatch], query: Query) -> pa.RecordBatch:
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return pa.RecordBatch.from_arrays([batch.column(name) for name in query.columns], schema=query.schema)


def _lost(query: Query, what: str, report: Callable[[str], object]) -> None:
    if query.lost == "fail":
        raise DataLoss(what)
    report(what)
