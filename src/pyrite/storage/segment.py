"""A segment of a stream: one file of record batches with an index beside it.

While it is written it is NAME.arrow, in Arrow's stream format (frames.py), with NAME.arrow.index beside it.
When it is sealed, it is rewritten as NAME.parquet (tiering.py). NAME is the offset at which it begins.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyrite.storage import frames
from pyrite.storage.columns import Entry, build
from pyrite.storage.files import Files, write_whole
from pyrite.storage.frames import INDEX_HEADER, RECORD, Damaged
from pyrite.storage.wanted import Topics

TAIL = 8 * 1024 * 1024
"""Bytes at the end of the last segment whose checksums are looked at when a stream is opened."""

LITTLE = 16 * 1024
ROOM = bytes(256 * 1024)
"""Bytes up to which a write that is to be safe makes room for those to come, and that room."""

KEPT = 64 * 1024 * 1024
"""Bytes of decoded batches that a reader keeps in memory, beside the one it reads."""
LARGE = 4_096
"""Messages from which on a batch in Arrow's format is worth keeping decoded."""

Records = np.ndarray[Any, Any]
NO_RECORDS: Records = np.zeros(0, RECORD)


class Damage(NamedTuple):
    """What is damaged, as exactly as it can be told."""

    stream: str
    file: str
    first: int
    """The first offset that is lost; -1 if none is."""
    last: int
    reason: str

    def __str__(self) -> str:
        if not self.stream:
            return f"{self.file}: {self.reason}"
        lost = (
            f"messages {self.first} to {self.last} are lost" if self.first >= 0 else "nothing is lost by it"
        )
        return f"stream {self.stream}, {self.file}: {self.reason}; {lost}"


class Passed(NamedTuple):
    """Offsets that were passed over: no message there has a topic that is wanted."""

    first: int
    last: int


def name_of(base: int) -> str:
    """Return the name, without its end, of the segment that begins at an offset."""
    return f"{base:020d}"


def index_of(path: Path) -> Path:
    """Return the path of a segment's index."""
    return path.with_name(path.name + ".index")


class Encoded(NamedTuple):
    """A record batch as it is written, and what the index says of it."""

    frame: frames.Frame
    first: int
    number: int
    """How many messages there are."""
    earliest: int
    latest: int


class SegmentWriter:
    """The segment that is written now; used by one thread.

    What is acknowledged has its record in the index: a batch whose record cannot be written is refused like
    one that cannot be written itself. After an error the caller abandons the segment and begins another.
    """

    def __init__(self, files: Files, folder: Path, base: int, records: Records | None = None) -> None:
        """Begin a segment anew; or go on with one that was recovered, and has these `records`."""
        self._files = files
        self.base = base
        self.path = folder / f"{name_of(base)}.arrow"
        self.size = 0
        self.next_offset = base
        self.started = 0
        """When the first message of the segment came, in microseconds; 0 if there is none yet."""
        self._room = 0
        """Up to where there are zeros, if that is more than the size."""
        self._indexed = 0
        """Bytes of the index that are in use."""
        self._doubtful = False
        """Whether a sync has failed: one that succeeds after it says nothing of what was written before."""
        self._segment = files.open(self.path)
        try:
            self._index = files.open(index_of(self.path))
        except OSError:
            files.close(self._segment)
            raise
        try:
            if records is None:
                self._begin()
            else:
                self._resume(records)
            files.sync_folder(folder)
        except OSError:
            self.abandon()
            raise

    def _begin(self) -> None:
        for descriptor in (self._segment, self._index):  # an attempt that failed may have left something
            if os.fstat(descriptor).st_size:
                self._files.truncate(descriptor, 0)
        self._files.write(self._segment, [frames.HEADER], 0)
        self.size = len(frames.HEADER)
        self._files.write(self._index, [INDEX_HEADER], 0)
        self._indexed = len(INDEX_HEADER)

    def _resume(self, records: Records) -> None:
        """Go on after what the segment holds already."""
        size = os.fstat(self._segment).st_size
        if not size:  # a crash left no more of it than its name
            self._begin()
            return
        self.size = size
        self._indexed = len(INDEX_HEADER) + records.nbytes
        size = os.fstat(self._index).st_size
        if size < self._indexed:
            self._files.write(self._index, [INDEX_HEADER, records.tobytes()], 0)
        elif size > self._indexed:
            self._files.truncate(self._index, self._indexed)
        if len(records):
            self.next_offset = int(records["first"][-1] + records["count"][-1])
            self.started = int(records["earliest"][0])

    def append(self, entries: Sequence[Entry], sync: bool) -> pa.RecordBatch:
        """Write messages that came together, with the next offsets, and return how they are stored."""
        first = self.next_offset
        rows = build(entries, first)
        times = entries[0].timestamp, entries[-1].latest
        self.append_frames([Encoded(frames.encode(rows), first, rows.num_rows, *times)], sync)
        return rows

    def append_frames(self, batches: Sequence[Encoded], sync: bool) -> None:
        """Write record batches that are encoded already, and their index records, all or none of them."""
        position = self.size
        records: list[bytes | memoryview] = []
        for frame, first, count, earliest, latest in batches:
            records.append(frames.pack_record(first, count, earliest, latest, position, frame, sync))
            position += frame.size
        try:
            self._write([piece for one in batches for piece in one.frame.pieces], sync)
            if sync:
                self.sync()
            # Only now: a record says that its batch was written whole, and whether it is safe.
            self._files.write(self._index, records, self._indexed)
            if not os.fstat(self._segment).st_nlink:  # what is written to it is gone when it is closed
                raise gone(self.path)
        except OSError:
            self._take_back()
            raise
        self._indexed += len(records) * RECORD.itemsize
        self.next_offset = batches[-1].first + batches[-1].number
        self.size = position
        self.started = self.started or batches[0].earliest

    def is_there(self) -> bool:
        """Tell whether the segment's name still leads to its file."""
        return _leads_to(self.path, self._segment)

    def has_index(self) -> bool:
        """Tell whether the same is true of its index."""
        return _leads_to(index_of(self.path), self._index)

    def _write(self, pieces: list[bytes | memoryview], sync: bool) -> None:
        """Write after what is there. Where little is to be made safe at a time, room is made for more of it.

        A write to where the file has bytes already, be they zeros, is safe sooner than one that makes it
        longer: the file system has nothing to note.
        """
        end = self.size + sum(map(len, pieces))
        if sync and end > self._room and end - self.size <= LITTLE:
            try:
                self._files.write(self._segment, [*pieces, ROOM], self.size)
            except OSError:
                self._cut()  # there may be room for the pieces alone
            else:
                self._room = end + len(ROOM)
                return
        self._files.write(self._segment, pieces, self.size)

    def _cut(self) -> None:
        """Have nothing after what was written whole."""
        self._room = 0
        self._files.truncate(self._segment, self.size)

    def _take_back(self) -> None:
        """Leave nothing of a group that failed, neither in the segment nor in its index."""
        try:
            self._cut()
        finally:
            self._files.truncate(self._index, self._indexed)

    def sync(self) -> None:
        """Return when everything that was written is safe."""
        if self._doubtful:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        try:
            self._files.sync(self._segment)
        except OSError:
            self._doubtful = True
            raise

    def seal(self) -> None:
        """End the segment: nothing more will be written to it."""
        if self._room:
            self._cut()
        self._files.write(self._segment, [frames.END], self.size)
        self.sync()
        self._files.sync(self._index)
        self.close()

    def abandon(self) -> None:
        """Write no more to the files, and leave none behind that hold nothing."""
        self._close()
        if self.size <= len(frames.HEADER):
            self._files.remove(self.path)
            self._files.remove(index_of(self.path))

    def close(self, sync: bool = False) -> None:
        """Close the files, with no room in them for more; if `sync`, everything is safe then."""
        try:
            if self._room:
                self._cut()
            if sync:
                self.sync()
        finally:
            self._close()

    def _close(self) -> None:
        self._files.close(self._segment)
        self._files.close(self._index)


def gone(path: Path) -> OSError:
    """Return the error that someone has removed the active segment, or its index."""
    return OSError(errno.ENOENT, "a file of the active segment was removed", str(path))


def _leads_to(path: Path, descriptor: int) -> bool:
    """Tell whether a name is that of an open file."""
    try:
        found, own = path.stat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


def read_index(path: Path) -> tuple[Records, int]:
    """Read an index: the records that prove themselves, and how many places of it are damaged."""
    try:
        return proven(path.read_bytes())
    except FileNotFoundError:
        return NO_RECORDS, 0


def proven(raw: bytes) -> tuple[Records, int]:
    """Take an index apart: the records that prove themselves, and how many places of it are damaged."""
    records = np.frombuffer(raw[64 : len(raw) - len(raw) % 64], RECORD)
    bad = int(raw[:64] != INDEX_HEADER)
    if not len(records):
        return records, bad
    good = np.array(frames.proofs(records)) == records["proof"]
    if good.all():
        return records, bad
    return records[good], bad + int((~good).sum())


def write_index(files: Files, path: Path, records: Records) -> None:
    """Write an index anew, at one stroke."""
    write_whole(files, path, [INDEX_HEADER, records.tobytes()])


def follow_one_another(records: Records) -> int:
    """Return how many records, from the first, are of batches that lie one after the other."""
    if not len(records):
        return 0
    starts = np.concatenate([[len(frames.HEADER)], (records["position"] + records["length"])[:-1]])
    wrong = np.flatnonzero(records["position"] != starts)
    return int(wrong[0]) if len(wrong) else len(records)


class Walk(NamedTuple):
    """What was found by going through a segment, batch by batch."""

    records: Records
    """An index of it. Damaged batches are in it too, so that their offsets are known."""
    end: int
    """Where what was finished ends."""
    damages: list[Damage]


class Decoded:
    """The batches decoded last: whoever reads a little at a time gets most of it from here."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, int], pa.RecordBatch] = {}
        self._used = False

    def get(self, name: str, number: int) -> pa.RecordBatch | None:
        """Return a batch, if it is here."""
        self._used = True
        batch = self._batches.pop((name, number), None)
        if batch is not None:
            self._batches[name, number] = batch
        return batch

    def put(self, name: str, number: int, batch: pa.RecordBatch) -> None:
        """Keep a batch, and as many others as there is room for."""
        self._used = True
        room = KEPT - batch.nbytes
        kept = {(name, number): batch}
        for key, each in reversed(list(self._batches.items())):
            room -= each.nbytes
            if room < 0:
                break
            kept[key] = each
        self._batches = dict(reversed(kept.items()))

    def forget_unused(self) -> None:
        """Keep nothing more, if nothing was asked for or kept since the last time."""
        if not self._used:
            self._batches = {}
        self._used = False


class ArrowSegment:
    """A segment in Arrow's stream format, for reading; by any process, while it is written or after."""

    def __init__(self, stream: str, path: Path, decoded: Decoded | None = None) -> None:
        self._decoded = decoded or Decoded()
        self.stream = stream
        self.path = path
        self.base = int(path.name[:20])
        self.over = False
        """Whether another segment has begun since, so that nothing more is written to this one."""
        self._known = (-1, False)
        self._records = NO_RECORDS

    @property
    def index(self) -> Path:
        """The file with the index."""
        return index_of(self.path)

    def records(self) -> Records:
        """Return the index, as it is by now; made from the segment if it is damaged."""
        try:
            size = self.index.stat().st_size
        except FileNotFoundError:
            size = 0
        known = size, self.over
        if known != self._known or not size:
            records, bad = read_index(self.index)
            if bad or not size or follow_one_another(records) < len(records) or self._has_more(records):
                records = self._walked(records)
            self._records, self._known = records, known
        return self._records

    def reach(self, offset: int) -> int:
        """Return the offset after the last message, when messages before `offset` are known to be there.

        If the index ends before that, it is made from the segment.
        """
        if self.end() < offset:
            records = self._walked(self._records)
            self._records = records[records["first"] < offset]  # what follows may be being written
        return self.end()

    def _walked(self, known: Records) -> Records:
        """Return the index as the segment itself has it."""
        if self.over:
            return self.walk(known).records
        # Its writer may cut it meanwhile, which a mapping of it would not survive.
        data = memoryview(self.path.read_bytes())
        return self.walk(known, follow_one_another(known), data).records

    def _has_more(self, records: Records) -> bool:
        """Tell whether the index is too short; while the segment is written that is normal."""
        end = int(records["position"][-1] + records["length"][-1]) if len(records) else len(frames.HEADER)
        more = self.path.stat().st_size > end + len(frames.END)
        return more and (self.over or is_sealed(self.path))

    def walk(self, known: Records, start: int = 0, data: memoryview | None = None) -> Walk:
        """Go through the segment, from record `start` of those `known` on, and check every batch.

        `data` are its bytes, if they are at hand.
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
                    one = self._missing(data, at, after, next_offset)
                next_offset = int(one["first"] + one["count"])
                last = next_offset - 1
                damages.append(Damage(self.stream, self.path.name, int(one["first"]), last, str(error)))
            else:
                if one is None or one["checksum"] != checksum:
                    batch = frames.decode(data[at : at + length])
                    one = frames.record(batch, at, frames.Frame([], length, checksum), False)[0]
                next_offset = int(one["first"] + one["count"])
                after = at + length
            found.append(np.array([one]))
            at = after
        end = min(at, len(data)) if len(data) >= len(frames.HEADER) else 0
        return Walk(np.concatenate(found), end, damages)

    def _missing(self, data: memoryview, at: int, after: int, next_offset: int) -> Any:
        """Make the record of a damaged batch that the index does not know: it ends where the next begins."""
        following = frames.decode(data[after : after + frames.length_at(data, after)])
        first: int = following.column(0)[0].as_py()
        time: int = following.column(1)[0].value
        one = np.zeros(1, RECORD)
        one[0] = (next_offset, first - next_offset, time, time, at, after - at, 0, 0, 0)
        frames.prove(one)
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
        """Do the same, but pass over record batches in which no message has one of the topics."""
        records = self.records()
        at = max(0, int(np.searchsorted(records["first"], offset, "right")) - 1)
        with self.path.open("rb") as file:
            for one in records[at:]:
                first, count = int(one["first"]), int(one["count"])
                if first >= stop:
                    return
                if first + count <= offset:
                    continue
                batch = self._decoded.get(self.path.name, first) if count >= LARGE else None
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
                    if count >= LARGE and columns is None:
                        self._decoded.put(self.path.name, first, batch)
                if columns is not None:
                    batch = batch.select(columns)
                yield cut(batch, first, offset, stop)

    def end(self) -> int:
        """Return the offset after the last message, as far as the index tells."""
        records = self.records()
        return int(records["first"][-1] + records["count"][-1]) if len(records) else self.base


def cut(batch: pa.RecordBatch, first: int, offset: int, stop: int) -> pa.RecordBatch:
    """Cut a batch that begins at `first` to the offsets that are wanted."""
    skip = max(0, offset - first)
    keep = min(batch.num_rows, stop - first) - skip
    return batch if not skip and keep == batch.num_rows else batch.slice(skip, keep)


class Recovered(NamedTuple):
    """What was found in the segment that was written last."""

    records: Records
    dropped: int
    """Bytes at its end that were never acknowledged."""
    damages: list[Damage]
    sealed: bool
    """Whether nothing more may be written to it."""


def recover(files: Files, stream: str, path: Path) -> Recovered:
    """Make the last segment ready to be written to: check its end, and drop what was never acknowledged."""
    segment = ArrowSegment(stream, path)
    size = path.stat().st_size
    records, bad = read_index(segment.index)
    kept = follow_one_another(records)
    ends = records["position"] + records["length"]
    lost = records[(ends > size) & (records["synced"] != 0)]
    if len(lost):
        # The disk has forgotten what it said was safe. The index stays, so that no offset is given twice.
        first, last = int(lost["first"][0]), int(lost["first"][-1] + lost["count"][-1]) - 1
        damages = [Damage(stream, path.name, first, last, "its end is missing")]
        return Recovered(records, 0, damages, True)
    kept = min(kept, int(np.searchsorted(ends, size, "right")))
    tail = int(np.searchsorted(ends[:kept], size - TAIL))
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
    """Return how many bytes follow the last batch, but for room for more, or the mark of the end."""
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    return 0 if rest == frames.END else len(rest.rstrip(b"\0"))


def size_of(path: Path) -> int:
    """Return the bytes of a segment, without the room for more that there may be in it."""
    size = path.stat().st_size
    if path.suffix != ".arrow":
        return size
    try:
        with index_of(path).open("rb") as index:
            index.seek(max(len(INDEX_HEADER), os.fstat(index.fileno()).st_size // 64 * 64 - 64))
            last, _ = proven(INDEX_HEADER + index.read(64))
    except FileNotFoundError:
        return size
    return min(size, int(last["position"][0] + last["length"][0])) if len(last) else size


def is_sealed(path: Path) -> bool:
    """Tell whether a segment was sealed."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(frames.END)))
        return file.read() == frames.END
