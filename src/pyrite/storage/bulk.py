"""Reading much of a stream at once, as columns: for Spark, for Arrow Flight, and whoever has the folder.

Positions become offsets first; then a range may be split, and its parts read each on its own, wherever the
folder is. A segment's index says which record batches can hold what is wanted, and only those are read. If
topics are asked for, these are decoded first, and the rest only of record batches that have one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyrite.broker.positions import Ago, Earliest, Latest, Offset, Position, parse_position
from pyrite.storage.columns import SCHEMA
from pyrite.storage.frames import RECORD, Records
from pyrite.storage.query import FOREVER, MAX_PARTS, Bounds, DataLoss, Query, QueryError, check_number
from pyrite.storage.segment import Damage, Passed
from pyrite.storage.stream import StreamReader
from pyrite.storage.verify import streams_in
from pyrite.storage.wanted import wanted_by

ROWS = 32 * 1024
BYTES = 4 * 1024 * 1024
"""Small record batches are put together until they have so many rows, or bytes of payload."""


def resolve(position: Position | None, reader: StreamReader) -> int:
    """Return the offset that a position stands for; the end of all offsets for none."""
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
    """The streams in a data folder, for reading; whether a broker is writing them or not."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def streams(self) -> list[str]:
        """Return the names of the streams."""
        return [folder.name for folder in streams_in(self.data)]

    def _reader(self, stream: str) -> StreamReader:
        names = self.streams()
        if stream not in names:
            there = f"there are: {', '.join(names)}" if names else "there is none"
            raise QueryError(f"there is no stream {stream!r}; {there}")
        return StreamReader(self.data / "streams" / stream)

    def bounds(self, stream: str) -> Bounds:
        """Return which offsets a stream has now."""
        reader = self._reader(stream)
        return Bounds(reader.first, reader.end)

    def offset(self, stream: str, position: str) -> int:
        """Return the offset that a position (see broker/positions.py) stands for now."""
        reader = self._reader(stream)
        try:
            parsed = parse_position(position)
        except ValueError as wrong:
            raise QueryError(str(wrong)) from None
        return max(resolve(parsed, reader), reader.first if parsed == Earliest() else 0)

    def advance(self, stream: str, start: int, messages: int | None, size: int | None) -> int:
        """Return where a part ends that begins at `start` and has at most so many messages and bytes.

        Bytes are those on disk. A part has a record batch at least, however large that is.
        """
        records = _records(self._reader(stream), start, FOREVER)
        if not len(records):
            return start
        ends = records["first"] + records["count"]
        stop = int(ends[-1])
        if messages is not None:
            # What is counted are messages, not offsets: some offsets may be missing.
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
        """Cut a range into at most so many parts with about as many messages each, between record batches."""
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
        """Do the same, and tell with each batch from which offset on the rest of the query is."""
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
    """See whether what lies before the offset that was found has been dropped; some may never have been."""
    if position < found:
        kept = min(found, reader.first)
        if position < kept:
            gone = f"offsets {position} to {kept - 1} are not kept any longer"
            _lost(query, f"stream {query.stream}: {gone}", report)


def _records(reader: StreamReader, start: int, stop: int) -> Records:
    """Return the index of a range: a record for every record batch with a message in it."""
    return reader.look(lambda: _look_up(reader, start, stop))


def _look_up(reader: StreamReader, start: int, stop: int) -> Records:
    found = [np.zeros(0, RECORD)]
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
    """Return the ranges of offsets that can hold what a query asks for, as far as the times tell."""
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
    """Put small record batches together, with the columns that are wanted."""
    waiting: list[pa.RecordBatch] = []
    rows = size = after = 0
    for batch, after in batches:
        if batch is None or not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS or size >= BYTES:
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
