"""The tail of a segment: its newest messages, as compact rows in a file beside it.

An Arrow record batch costs 1.4 KB and 150 us, however few messages it holds. So messages that arrive a few at
a time are written to the tail, and folded into one record batch when there are enough (segment_writer.py).

    BASE.arrow.tail    head (64 bytes) | record | record ... | unused

A record holds the rows of one append, with a checksum and the first offset. The head says at which offset the
tail begins, and up to where its records are complete, and synced. It is written after the records and not
synced itself. A fold begins the file anew, without truncating it: a sync that overwrites allocated bytes is
cheaper than one that extends a file.

So after the last record there may be records of an earlier round, which have lower offsets, or a record that
was never finished. In the synced part, anything but the next record is damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from pyrite.storage.files import Files, leads_to
from pyrite.storage.schema import PROPERTIES, SCHEMA, null_column
from pyrite.storage.segment import Damage, Passed, cut
from pyrite.storage.wanted import Topics

TAIL_BYTES = 128 * 1024
"""Size of the file; records that do not fit make the tail full."""
HEAD_BYTES = 64
MAX_SNAPSHOT_ATTEMPTS = 1_000
"""Attempts to read a tail that is being written before its head counts as damaged."""
_HEAD_MARK = b"PYRITE tail 1\n\0\0"
_HEAD = Struct("<16sqqqq")
_CHECKSUM = Struct("<Q")
_MARK = b"\xffROW"
_RECORD = Struct("<4sIQqI")
"""Mark, bytes of the record, checksum of what follows, first offset, number of rows; then the rows."""
_CHECKED_FROM = 16


class Row(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message."""

    timestamp: int
    """Microseconds since 1970."""
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    client_id: str | None
    packet_id: int | None = None
    properties: (
        tuple[
            int | None,
            int | None,
            str | None,
            str | None,
            bytes | None,
            tuple[tuple[str, str], ...],
        ]
        | None
    ) = None
    """The values of the columns PROPERTIES."""


_encode_rows = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode


class Record(NamedTuple):
    """The rows of one append."""

    first: int
    length: int
    """How many rows there are."""
    body: bytes

    @property
    def end(self) -> int:
        """The offset after the last row."""
        return self.first + self.length

    def rows(self) -> list[Row]:
        """Decode the rows."""
        return _decode_rows(self.body)


class Head(NamedTuple):
    """The head of a tail."""

    base: int
    """The offset at which the tail begins."""
    end: int
    """The offset after its last complete record."""
    complete: int
    """The byte after its last complete record."""
    synced_end: int
    """The offset before which all records were synced."""


def tail_of(path: Path) -> Path:
    """Return the path of a segment's tail."""
    return path.with_name(path.name + ".tail")


def tail_size(path: Path) -> int:
    """Return the bytes of a segment's tail that are in use."""
    try:
        with tail_of(path).open("rb") as file:
            head = _unpack_head(file.read(HEAD_BYTES))
    except FileNotFoundError:
        return 0
    return 0 if head is None else head.complete - HEAD_BYTES


def pack_record(rows: Sequence[Row], first: int) -> bytes:
    """Return the bytes of a record."""
    checked = first.to_bytes(8, "little") + len(rows).to_bytes(4, "little") + _encode_rows(rows)
    start = _MARK + (_CHECKED_FROM + len(checked)).to_bytes(4, "little")
    return start + _CHECKSUM.pack(xxh3_64_intdigest(checked)) + checked


def _pack_head(head: Head) -> bytes:
    packed = _HEAD.pack(_HEAD_MARK, *head)
    return (packed + _CHECKSUM.pack(xxh3_64_intdigest(packed))).ljust(HEAD_BYTES, b"\0")


def _unpack_head(data: bytes) -> Head | None:
    """Return a head; None if it is damaged, or was never written."""
    if len(data) < HEAD_BYTES:
        return None
    packed, checksum = data[: _HEAD.size], data[_HEAD.size : _HEAD.size + 8]
    if _CHECKSUM.pack(xxh3_64_intdigest(packed)) != checksum:
        return None
    mark, *numbers = _HEAD.unpack(packed)
    return Head(*numbers) if mark == _HEAD_MARK else None


def _record_at(data: bytes, at: int) -> tuple[Record, int] | None:
    """Return the undamaged record at a byte, and where it ends; None if there is none."""
    if len(data) - at < _RECORD.size:
        return None
    mark, size, checksum, first, count = _RECORD.unpack_from(data, at)
    if mark != _MARK or not _RECORD.size <= size <= len(data) - at:
        return None
    if xxh3_64_intdigest(memoryview(data)[at + _CHECKED_FROM : at + size]) != checksum:
        return None
    return Record(first, count, data[at + _RECORD.size : at + size]), at + size


def _next_record(data: bytes, at: int, expected: int) -> tuple[Record, int] | None:
    """Return the next undamaged record of this round after a damaged one."""
    while (at := data.find(_MARK, at)) >= 0:
        found = _record_at(data, at)
        if found is not None and found[0].first >= expected:
            return found
        at += 1
    return None


class Tail:
    """The records of a tail, as of one moment."""

    def __init__(self, stream: str, file: str, base: int) -> None:
        self._stream = stream
        self._file = file
        self.base = base
        self.end = base
        self._pieces: list[Record | Damage] = []

    def extend(self, data: bytes, required: int) -> None:
        """Add the records in `data`; before offset `required`, anything else is damage."""
        at = 0
        while True:
            found = _record_at(data, at)
            if found is None or found[0].first != self.end:
                if self.end >= required:
                    return
                found = _next_record(data, at, self.end)
                beyond = required if found is None else found[0].first
                reason = "a record of the tail is damaged"
                self._pieces.append(Damage(self._stream, self._file, self.end, beyond - 1, reason))
                self.end = beyond
                if found is None:
                    return
            record, at = found
            self._pieces.append(record)
            self.end = record.end

    def add_damage(self, reason: str) -> None:
        """Add damage that costs no message."""
        self._pieces.append(Damage(self._stream, self._file, -1, -1, reason))

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return sum(len(one.body) for one in self._pieces if isinstance(one, Record))

    def damages(self) -> list[Damage]:
        """Return the damage."""
        return [one for one in self._pieces if isinstance(one, Damage)]

    def read(
        self, offset: int, stop: int, columns: Sequence[str] | None = None, topics: Topics | None = None
    ) -> Iterator[pa.RecordBatch | Damage | Passed]:
        """Yield the messages from `offset` up to `stop`, as few record batches, and what is damaged."""
        rows: list[Row] = []
        first = 0
        for piece in self._pieces:
            if isinstance(piece, Damage):
                if rows:
                    yield _selected(rows, first, offset, stop, columns, topics)
                    rows = []
                if piece.last >= offset and piece.first < stop:
                    yield piece
                continue
            if piece.end <= offset or piece.first >= stop:
                continue
            if not rows:
                first = piece.first
            rows += piece.rows()
        if rows:
            yield _selected(rows, first, offset, stop, columns, topics)

    def times(self, offset: int) -> tuple[int, int]:
        """Return the earliest and the latest time of the messages from `offset` on."""
        times = [
            row.timestamp
            for piece in self._pieces
            if isinstance(piece, Record) and piece.end > offset
            for row in piece.rows()
        ]
        return min(times, default=0), max(times, default=0)


def _selected(
    rows: list[Row],
    first: int,
    offset: int,
    stop: int,
    columns: Sequence[str] | None,
    topics: Topics | None,
) -> pa.RecordBatch | Passed:
    batch = batch_of(rows, first)
    if topics is not None and not topics.any_of(batch.column("topic")):
        return Passed(max(first, offset), min(first + len(rows), stop) - 1)
    return cut(batch if columns is None else batch.select(columns), first, offset, stop)


def batch_of(rows: Sequence[Row], first: int) -> pa.RecordBatch:
    """Return rows with consecutive offsets as a record batch (SCHEMA)."""
    count = len(rows)
    columns = [
        pa.array(np.arange(first, first + count)),
        pa.array([row.timestamp for row in rows], SCHEMA.field("timestamp").type),
        pa.array([row.topic for row in rows], pa.binary()).view(pa.string()),  # checked to be UTF-8
        pa.array([row.payload for row in rows], pa.binary()),
        pa.array([row.qos for row in rows], pa.int8()),
        pa.array([row.retain for row in rows], pa.bool_()),
        pa.array([row.client_id for row in rows], pa.string()),
        pa.array([row.packet_id for row in rows], pa.int32()),
    ]
    values = [row.properties for row in rows]
    for number, name in enumerate(PROPERTIES):
        if not any(values):
            columns.append(null_column(8 + number, count))
            continue
        column: list[Any] = [None if one is None else one[number] for one in values]
        if name == "user_properties":
            column = [[{"key": key, "value": value} for key, value in one] if one else None for one in column]
        columns.append(pa.array(column, SCHEMA.field(name).type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class TailReader:
    """Reads the tail of a segment, in any process, also while it is written."""

    def __init__(self, stream: str, path: Path, base: int) -> None:
        self._stream = stream
        self._path = path
        self._base = base
        self._tail = self._none()
        self._known: tuple[int, int, int] = (-1, 0, 0)
        """Inode, base and last complete byte of the tail that was read last."""

    def _none(self) -> Tail:
        return Tail(self._stream, self._path.name, self._base)

    def load(self, whole: bool = False) -> Tail:
        """Return the tail as of now.

        If it is not written any more, read the `whole` file: the last head may be lost, and records after it
        not.
        """
        try:
            file = self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return self._none()
        with file:
            descriptor = file.fileno()
            for _ in range(MAX_SNAPSHOT_ATTEMPTS):
                head = _unpack_head(os.pread(descriptor, HEAD_BYTES, 0))
                if head is not None and self._read(descriptor, head):
                    break
                if whole:
                    break
            else:
                head = None
            return self._whole(descriptor, head) if whole or head is None else self._tail

    def _read(self, descriptor: int, head: Head) -> bool:
        """Read the complete records; return whether the tail was not begun anew meanwhile."""
        inode, base, known = self._known
        now = os.fstat(descriptor).st_ino
        grown = (now, head.base) == (inode, base) and head.complete >= known
        start = known if grown else HEAD_BYTES
        data = os.pread(descriptor, head.complete - start, start)
        again = _unpack_head(os.pread(descriptor, HEAD_BYTES, 0))
        if again is None or again.base != head.base:
            return False
        if not grown:
            self._tail = Tail(self._stream, self._path.name, head.base)
        self._tail.extend(data, head.end)
        self._known = now, head.base, head.complete
        return True

    def _whole(self, descriptor: int, head: Head | None) -> Tail:
        """Read all records of the last round, also those that the head does not cover."""
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        if head is not None:
            tail = Tail(self._stream, self._path.name, head.base)
            tail.extend(data[HEAD_BYTES:], head.synced_end)
            return tail
        found = _next_record(data, HEAD_BYTES, 0)
        if found is None:
            return self._none()
        tail = Tail(self._stream, self._path.name, found[0].first)
        tail.add_damage("the head of the tail is damaged")
        tail.extend(data[HEAD_BYTES:], tail.base)
        return tail


class TailWriter:
    """Writes the tail of the active segment."""

    def __init__(self, files: Files, path: Path, base: int, sync: Callable[[int], object]) -> None:
        self._files = files
        self._sync_file = sync
        self.path = path
        self.rows: list[Row] = []
        """Everything that the tail holds, for the next fold."""
        self.base = self.end = base
        self._synced_end = base
        self._position = HEAD_BYTES
        self._descriptor = files.open(path)
        try:
            head = _pack_head(self._head())
            files.write(self._descriptor, [head, bytes(TAIL_BYTES - len(head))], 0)
            files.sync_folder(path.parent)
        except OSError:
            files.close(self._descriptor)
            raise

    def _head(self) -> Head:
        return Head(self.base, self.end, self._position, self._synced_end)

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self._position

    @property
    def is_synced(self) -> bool:
        """Whether every row was synced."""
        return self._synced_end == self.end

    @property
    def must_outlast(self) -> bool:
        """Whether a row was synced, so that a fold must be synced before the row is overwritten."""
        return self._synced_end > self.base

    def has_room(self, size: int) -> bool:
        """Return whether a record of so many bytes fits."""
        return self._position + size <= TAIL_BYTES

    def append(self, rows: Sequence[Row], record: bytes, sync: bool) -> None:
        """Append a record. After an error, the tail must not be written again."""
        before = self._position, self.end, self._synced_end
        try:
            self._files.write(self._descriptor, [record], self._position)
            self._position += len(record)
            self.end += len(rows)
            if sync:
                self._sync_rows()
            self._write_head()  # else readers do not find the rows
        except OSError:
            self._position, self.end, self._synced_end = before
            self._take_back()
            raise
        self.rows += rows

    def _take_back(self) -> None:
        """Destroy the record that was written last, which is refused."""
        self._files.write(self._descriptor, [bytes(_CHECKED_FROM)], self._position)
        self._write_head()

    def sync(self) -> None:
        """Return when every row is durable."""
        self._sync_rows()
        with suppress(OSError):  # rows are recovered without it
            self._write_head()

    def _sync_rows(self) -> None:
        self._sync_file(self._descriptor)
        self._synced_end = self.end

    def _write_head(self) -> None:
        self._files.write(self._descriptor, [_pack_head(self._head())], 0)

    def begin_anew(self, base: int) -> None:
        """Discard all rows, which were folded; the next one has offset `base`."""
        self.rows = []
        self.base = self.end = self._synced_end = base
        self._position = HEAD_BYTES
        self._write_head()

    @property
    def is_linked(self) -> bool:
        """Whether the file still has a name."""
        return os.fstat(self._descriptor).st_nlink > 0

    def has_file(self) -> bool:
        """Return whether the tail's name still leads to its file."""
        return leads_to(self.path, self._descriptor)

    def close(self) -> None:
        self._files.close(self._descriptor)
