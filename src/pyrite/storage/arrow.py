"""Arrow segments: reading one, also while it is written, and recovering the last one at the start."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyrite.storage import frames
from pyrite.storage.files import Files
from pyrite.storage.frames import Damaged
from pyrite.storage.index import (
    NO_RECORDS,
    RECORD,
    Records,
    count_contiguous,
    end_of,
    index_of,
    prove,
    read_index,
    record_of,
    write_index,
)
from pyrite.storage.segment import BatchCache, Damage, Passed, cut
from pyrite.storage.tail import Tail, TailReader, tail_of, tail_size
from pyrite.storage.wanted import Topics

CHECKED_TAIL = 8 * 1024 * 1024
"""Bytes at the end of the last segment whose checksums are verified when a stream is opened."""
MIN_CACHED_ROWS = 4_096
"""Messages from which on a decoded batch of an Arrow segment is cached."""


class Walk(NamedTuple):
    """What a walk through a segment, frame by frame, has found."""

    records: Records
    """An index of the segment. Damaged frames have records too, so that their offsets are known."""
    end: int
    """Where the last whole frame ends."""
    damages: list[Damage]


class ArrowSegment:
    """Reads an Arrow segment, in any process, while it is written or after."""

    def __init__(self, stream: str, path: Path, cache: BatchCache | None = None) -> None:
        self._cache = cache or BatchCache()
        self.stream = stream
        self.path = path
        self.base = int(path.name[:20])
        self.over = False
        """True once a later segment exists: nothing more is written to this one."""
        self._tail = TailReader(stream, tail_of(path), self.base)
        self._known = (-1, False)
        self._indexed = NO_RECORDS

    @property
    def index(self) -> Path:
        """The index file."""
        return index_of(self.path)

    def tail(self) -> Tail:
        """Return the newest messages, which are not in a record batch yet."""
        return self._tail.load(whole=self.over)

    def _look(self) -> tuple[Records, Tail]:
        """Return the index and the tail, which begins at or before the end of the index."""
        tail = self.tail()  # first: a fold moves messages from the tail to the segment
        return self.indexed(), tail

    def records(self) -> Records:
        """Return the index, with a record for the tail."""
        indexed, tail = self._look()
        end = end_of(indexed, self.base)
        if tail.end <= end:
            return indexed
        one = np.zeros(1, RECORD)
        earliest, latest = tail.times(end)
        first = max(end, tail.base)
        one[0] = (first, tail.end - first, earliest, latest, -1, tail.size, 0, 0, 0)
        return np.concatenate([indexed, one])

    def indexed(self) -> Records:
        """Return the index; made from the segment if the index file is damaged, missing or too short."""
        try:
            size = self.index.stat().st_size
        except FileNotFoundError:
            size = 0
        known = size, self.over
        if known != self._known or not size:
            records, bad = read_index(self.index)
            if bad or not size or count_contiguous(records) < len(records) or self._has_more(records):
                records = self._walked(records)
            self._indexed, self._known = records, known
        return self._indexed

    def reach(self, offset: int) -> int:
        """Return the offset after the last message, when messages before `offset` are known to be committed.

        If the index ends before `offset`, it is made from the segment.
        """
        if self.end() < offset:
            records = self._walked(self._indexed)
            self._indexed = records[records["first"] < offset]  # later ones may be being written
        return self.end()

    def _walked(self, known: Records) -> Records:
        """Return an index made from the segment itself."""
        if self.over:
            return self.walk(known).records
        # A copy, as the writer may truncate the file: reading a mapping of it would then kill the process.
        data = memoryview(self.path.read_bytes())
        return self.walk(known, count_contiguous(known), data).records

    def _has_more(self, records: Records) -> bool:
        """Return whether the index is too short; while the segment is written that is normal."""
        end = int(records["position"][-1] + records["length"][-1]) if len(records) else len(frames.HEADER)
        more = self.path.stat().st_size > end + len(frames.END)
        return more and (self.over or is_sealed(self.path))

    def walk(self, known: Records, start: int = 0, data: memoryview | None = None) -> Walk:
        """Check every frame of the segment, from record `start` of the `known` index on.

        `data` are the segment's bytes, if the caller has read them.
        """
        data = self._map() if data is None else data
        by_position = {int(one["position"]): one for one in known}
        found: list[Records] = [known[:start]]
        damages: list[Damage] = []
        at, next_offset = len(frames.HEADER), self.base
        sealed = data[-len(frames.END) :] == frames.END
        if start:
            at = int(known["position"][start - 1] + known["length"][start - 1])
            next_offset = int(known["first"][start - 1] + known["count"][start - 1])
        elif data[:at] != frames.HEADER and len(data) >= at:
            damages.append(Damage(self.stream, self.path.name, -1, -1, "its head is damaged"))
        while at < len(data) and data[at:] != frames.END:
            one = by_position.get(at)
            length = frames.length_at(data, at)
            try:
                if not length or at + length > len(data):
                    raise Damaged("the head of a record batch is damaged")
                checksum = frames.check(data[at : at + length])
            except Damaged as error:
                end = at + (0 if one is None else int(one["length"]))
                if one is not None and (
                    one["synced"] or (sealed and end < len(data)) or frames.is_frame(data, end)
                ):
                    after = end
                else:
                    after = frames.next_frame(data, at + 8)
                    if after == len(data):
                        break  # it was never finished
                if one is None or at + one["length"] != after:
                    one = self._record_of_damaged(data, at, after, next_offset)
                next_offset = int(one["first"] + one["count"])
                last = next_offset - 1
                damages.append(Damage(self.stream, self.path.name, int(one["first"]), last, str(error)))
            else:
                if one is None or one["checksum"] != checksum:
                    batch = frames.decode(data[at : at + length])
                    one = record_of(batch, at, length, checksum, False)[0]
                next_offset = int(one["first"] + one["count"])
                after = at + length
            found.append(np.array([one]))
            at = after
        end = min(at, len(data)) if len(data) >= len(frames.HEADER) else 0
        return Walk(np.concatenate(found), end, damages)

    def _record_of_damaged(self, data: memoryview, at: int, after: int, next_offset: int) -> Any:
        """Make a record for a damaged frame without one: its offsets end where the next frame's begin."""
        following = frames.decode(data[after : after + frames.length_at(data, after)])
        first: int = following.column(0)[0].as_py()
        time: int = following.column(1)[0].value
        one = np.zeros(1, RECORD)
        one[0] = (next_offset, first - next_offset, time, time, at, after - at, 0, 0, 0)
        prove(one)
        return one[0]

    def _map(self) -> memoryview:
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))

    def read(
        self, offset: int, stop: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch | Damage]:
        """Yield the record batches with messages from `offset` on and before `stop`, and what is damaged."""
        return self.select(offset, stop, columns)

    def select(
        self, offset: int, stop: int, columns: Sequence[str] | None = None, topics: Topics | None = None
    ) -> Iterator[pa.RecordBatch | Damage | Passed]:
        """Do the same, but skip record batches in which no message has one of the topics."""
        records, tail = self._look()
        at = max(0, int(np.searchsorted(records["first"], offset, "right")) - 1)
        with self.path.open("rb") as file:
            for one in records[at:]:
                first, count = int(one["first"]), int(one["count"])
                if first >= stop:
                    return
                if first + count <= offset:
                    continue
                batch = self._cache.get(self.path.name, first) if count >= MIN_CACHED_ROWS else None
                if batch is None:
                    try:
                        frame = memoryview(os.pread(file.fileno(), int(one["length"]), int(one["position"])))
                        batch = frames.decode(frame) if topics is None else frames.select(frame, topics)
                    except (Damaged, OSError) as error:
                        yield Damage(self.stream, self.path.name, first, first + count - 1, str(error))
                        continue
                    if batch is None:
                        yield Passed(first, first + count - 1)
                        continue
                    if count >= MIN_CACHED_ROWS and columns is None:
                        self._cache.put(self.path.name, first, batch)
                if columns is not None:
                    batch = batch.select(columns)
                yield cut(batch, first, offset, stop)
        yield from tail.read(max(offset, end_of(records, self.base)), stop, columns, topics)

    def end(self) -> int:
        """Return the offset after the last message of the index and the tail."""
        indexed, tail = self._look()
        return max(end_of(indexed, self.base), tail.end)


class Recovered(NamedTuple):
    """What was found in the segment that was written last."""

    records: Records
    dropped: int
    """Bytes at its end that were never acknowledged."""
    damages: list[Damage]
    sealed: bool
    """True if nothing more may be written to it."""


def recover(files: Files, stream: str, path: Path) -> Recovered:
    """Check the end of the last segment, and truncate what was never acknowledged."""
    segment = ArrowSegment(stream, path)
    size = path.stat().st_size
    records, bad = read_index(segment.index)
    kept = count_contiguous(records)
    ends = records["position"] + records["length"]
    lost = records[(ends > size) & (records["synced"] != 0)]
    if len(lost):
        # The disk lost what it had reported as synced. The index is kept, so that no offset is used twice.
        first, last = int(lost["first"][0]), int(lost["first"][-1] + lost["count"][-1]) - 1
        damages = [Damage(stream, path.name, first, last, "its end is missing")]
        return Recovered(records, 0, damages, True)
    kept = min(kept, int(np.searchsorted(ends, size, "right")))
    tail = int(np.searchsorted(ends[:kept], size - CHECKED_TAIL))
    walk = segment.walk(records, tail)
    sealed = size - walk.end == len(frames.END) and is_sealed(path)
    dropped = unfinished(path, walk.end)
    if size > walk.end and not sealed:
        descriptor = files.open(path)
        try:
            files.truncate(descriptor, walk.end if walk.end >= len(frames.HEADER) else 0)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
    if bad or kept < len(records) or len(walk.records) != len(records):
        write_index(files, segment.index, walk.records)
    return Recovered(walk.records, dropped, walk.damages, sealed)


def unfinished(path: Path, end: int) -> int:
    """Return how many bytes follow `end`, besides preallocated zeros or the mark of a sealed segment."""
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    return 0 if rest == frames.END else len(rest.rstrip(b"\0"))


def size_of(path: Path) -> int:
    """Return the bytes of a segment, including the part of its tail that is in use."""
    return path.stat().st_size + (tail_size(path) if path.suffix == ".arrow" else 0)


def is_sealed(path: Path) -> bool:
    """Return whether an Arrow segment was sealed."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(frames.END)))
        return file.read() == frames.END
