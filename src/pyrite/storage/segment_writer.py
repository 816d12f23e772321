"""Writing the active segment: record batches, and rows that are folded into one. One thread uses it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pyrite.storage import frames
from pyrite.storage.files import Files, leads_to
from pyrite.storage.frames import Encoded
from pyrite.storage.index import INDEX_HEADER, RECORD, Records, end_of, index_of, pack_record
from pyrite.storage.query import FOREVER
from pyrite.storage.schema import stored
from pyrite.storage.segment import DAMAGED, Damage, name_of
from pyrite.storage.tail import Row, TailReader, TailWriter, batch_of, tail_of
from pyrite.storage.tail import pack_record as pack_rows

MAX_TAIL_ROWS = 2_048
"""Rows after which the tail is folded."""
MAX_TAIL_AGE = 10.0
"""Seconds after which it is folded, however few its rows: programs that open the Arrow file do not see them.
"""


class SegmentWriter:
    """The active segment.

    What is acknowledged has a record in the index, or in the tail: a batch whose record cannot be written is
    refused like a batch that cannot be written. After an error the caller must abandon the segment and begin
    another.
    """

    def __init__(self, files: Files, folder: Path, base: int, records: Records | None = None) -> None:
        """Begin a segment; or continue one that was recovered and has these `records`."""
        self._files = files
        self.base = base
        self.path = folder / f"{name_of(base)}.arrow"
        self._size = 0
        self.next_offset = base
        self.started = 0
        """Time of the first message of the segment, in microseconds; 0 if there is none yet."""
        self.damages: list[Damage] = []
        """Damage in a tail that was found."""
        self._indexed = 0
        """Bytes of the index that are in use."""
        self._is_dirty = False
        """Whether a record batch was written and not synced."""
        self._doubtful = False
        """True once a sync has failed: a later one that succeeds does not cover what was written before."""
        self._tail: TailWriter | None = None
        self._tail_since = 0.0
        """When the first row of the tail was written."""
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
            if records is not None:
                self._adopt_tail()
        except OSError:
            if records is None:
                self.abandon()
            else:
                self._close()
            raise

    @property
    def size(self) -> int:
        """Bytes of the segment and its tail."""
        return self._size if self._tail is None else self._size + self._tail.size

    def _begin(self) -> None:
        self._files.remove(tail_of(self.path))  # a failed attempt may have left something
        for descriptor in (self._segment, self._index):
            if os.fstat(descriptor).st_size:
                self._files.truncate(descriptor, 0)
        self._files.write(self._segment, [frames.HEADER], 0)
        self._size = len(frames.HEADER)
        self._files.write(self._index, [INDEX_HEADER], 0)
        self._indexed = len(INDEX_HEADER)

    def _resume(self, records: Records) -> None:
        size = os.fstat(self._segment).st_size
        if size:
            self._size = size
            self._indexed = len(INDEX_HEADER) + records.nbytes
            size = os.fstat(self._index).st_size
            if size < self._indexed:
                self._files.write(self._index, [INDEX_HEADER, records.tobytes()], 0)
            elif size > self._indexed:
                self._files.truncate(self._index, self._indexed)
            if len(records):
                self.next_offset = end_of(records, self.base)
                self.started = int(records["earliest"][0])
        else:  # a crash left only the name
            self._files.write(self._segment, [frames.HEADER], 0)
            self._size = len(frames.HEADER)
            self._files.write(self._index, [INDEX_HEADER], 0)
            self._indexed = len(INDEX_HEADER)

    def _adopt_tail(self) -> None:
        """Fold a tail that a crash left behind; a damaged one is kept under another name."""
        path = tail_of(self.path)
        tail = TailReader(self.path.parent.name, path, self.base).load(whole=True)
        if tail.end > self.next_offset:
            self.damages = [one for one in tail.damages() if one.last < 0 or one.last >= self.next_offset]
            pieces = list(tail.read(self.next_offset, FOREVER))
            batches = [one for one in pieces if isinstance(one, pa.RecordBatch)]
            if batches:
                self.append([_encoded(one) for one in batches], sync=True)
            self.next_offset = tail.end
        if self.damages:
            self._files.rename(path, path.with_name(path.name + DAMAGED))
        else:
            self._files.remove(path)

    # Record batches

    def append(self, batches: Sequence[Encoded], sync: bool) -> None:
        """Append record batches and their index records, after a fold of the tail; all or none.

        If `sync`, they are durable then.
        """
        tail = self._tail
        if tail is not None and tail.rows:
            batches = [_encoded(batch_of(tail.rows, tail.base)), *batches]
            sync = sync or tail.must_outlast
        position = self._size
        records: list[bytes | memoryview] = []
        for one in batches:
            records.append(pack_record(one, position, sync))
            position += one.frame.size
        try:
            pieces = [piece for one in batches for piece in one.frame.pieces]
            self._files.write(self._segment, pieces, self._size)
            self._is_dirty = True
            if sync:
                self._sync_segment()
            # Only now: a record states that its batch was written whole, and whether it was synced.
            self._files.write(self._index, records, self._indexed)
            if not os.fstat(self._segment).st_nlink:  # what is written to it is gone when it is closed
                raise removed(self.path)
        except OSError:
            self._take_back()
            raise
        self._indexed += len(records) * RECORD.itemsize
        self.next_offset = batches[-1].first + batches[-1].messages
        self._size = position
        self.started = self.started or batches[0].earliest
        if tail is not None and tail.rows:
            self._begin_tail_anew(tail)

    def _take_back(self) -> None:
        """Remove a failed append from the segment and its index."""
        try:
            self._files.truncate(self._segment, self._size)
        finally:
            self._files.truncate(self._index, self._indexed)

    # The tail

    def append_rows(self, rows: Sequence[Row], first: int, sync: bool) -> None:
        """Append rows to the tail, which is folded first if it is full. If `sync`, they are durable then."""
        record = pack_rows(rows, first)
        tail = self._tail
        if tail is not None and (
            len(tail.rows) >= MAX_TAIL_ROWS or not tail.has_room(len(record)) or tail.end != first
        ):
            self.fold()
            tail = self._tail
        if tail is None:
            tail = self._tail = TailWriter(self._files, tail_of(self.path), first, self._sync)
        elif tail.end != first:  # offsets were skipped
            tail.begin_anew(first)
        if not tail.rows:
            self._tail_since = time.monotonic()
        if sync and self._is_dirty:  # no row may be durable before the messages in front of it
            self._sync_segment()
        tail.append(rows, record, sync)
        if not os.fstat(self._segment).st_nlink:  # readers do not find a tail without its segment
            raise removed(self.path)
        self.next_offset = tail.end
        self.started = self.started or rows[0].timestamp
        if not tail.is_linked:
            self.fold()  # someone has removed it: its rows are here

    def fold(self) -> None:
        """Move the rows of the tail to a record batch."""
        if self._tail is not None and self._tail.rows:
            self.append([], sync=False)

    def fold_if_due(self) -> None:
        """Fold the tail if it is old, or if someone has removed its file."""
        tail = self._tail
        if tail is None or not tail.rows:
            return
        if time.monotonic() - self._tail_since >= MAX_TAIL_AGE or not tail.has_file():
            self.fold()

    def _begin_tail_anew(self, tail: TailWriter) -> None:
        try:
            if not tail.has_file():
                raise removed(tail.path)
            tail.begin_anew(self.next_offset)
        except OSError:  # readers ignore its rows, which are in the segment
            self._drop_tail()

    def _drop_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    # Safety, and the end

    def has_file(self) -> bool:
        """Return whether the segment's name still leads to its file."""
        return leads_to(self.path, self._segment)

    def has_index(self) -> bool:
        """Return whether the name of the index still leads to its file."""
        return leads_to(index_of(self.path), self._index)

    def sync(self) -> None:
        """Return when everything that was written is durable."""
        if self._is_dirty or self._doubtful:
            self._sync_segment()
        if self._tail is not None and not self._tail.is_synced:
            self._tail.sync()

    def _sync_segment(self) -> None:
        self._sync(self._segment)
        self._is_dirty = False

    def _sync(self, descriptor: int) -> None:
        if self._doubtful:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        try:
            self._files.sync(descriptor)
        except OSError:
            self._doubtful = True
            raise

    def seal(self) -> None:
        """Fold the tail, mark the end of the segment, sync it, and close it."""
        self.fold()
        self._files.write(self._segment, [frames.END], self._size)
        self._sync_segment()
        self._files.sync(self._index)
        self.close()

    def abandon(self) -> None:
        """Close the files as they are; remove them if they hold no message."""
        has_rows = self._tail is not None and bool(self._tail.rows)
        self._close()
        if self._size <= len(frames.HEADER) and not has_rows:
            self._files.remove(self.path)
            self._files.remove(index_of(self.path))
            self._files.remove(tail_of(self.path))

    def close(self, sync: bool = False) -> None:
        """Fold the tail and close the files; if `sync`, everything is durable then."""
        try:
            with suppress(OSError):  # then the rows stay in the tail
                self.fold()
            if sync:
                self.sync()
            if self._tail is not None and not self._tail.rows:
                with suppress(OSError):  # its rows are in the segment
                    self._files.remove(tail_of(self.path))
        finally:
            self._close()

    def _close(self) -> None:
        self._drop_tail()
        self._files.close(self._segment)
        self._files.close(self._index)


def _encoded(batch: pa.RecordBatch) -> Encoded:
    """Encode a record batch (SCHEMA) with consecutive offsets."""
    times = batch.column(1).view(pa.int64()).to_numpy()
    first: int = batch.column(0)[0].as_py()
    frame = frames.encode(stored(batch))
    return Encoded(frame, first, batch.num_rows, int(times.min()), int(times.max()))


def removed(path: Path) -> OSError:
    """Return the error that someone has removed the active segment, or its index."""
    return OSError(errno.ENOENT, "a file of the active segment was removed", str(path))
