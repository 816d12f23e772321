"""Writing the active segment: one thread appends to it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from pyrite.storage import frames
from pyrite.storage.files import Files
from pyrite.storage.frames import Encoded
from pyrite.storage.index import INDEX_HEADER, RECORD, Records, end_of, index_of, pack_record
from pyrite.storage.segment import name_of

MAX_PREALLOCATED_WRITE = 16 * 1024
"""Bytes of a synced write up to which zeros are written after it, for later writes to overwrite."""
PREALLOCATION = bytes(256 * 1024)


class SegmentWriter:
    """The active segment.

    What is acknowledged has a record in the index: a batch whose record cannot be written is refused like a
    batch that cannot be written. After an error the caller must abandon the segment and begin another.
    """

    def __init__(self, files: Files, folder: Path, base: int, records: Records | None = None) -> None:
        """Begin a segment; or continue one that was recovered and has these `records`."""
        self._files = files
        self.base = base
        self.path = folder / f"{name_of(base)}.arrow"
        self.size = 0
        self.next_offset = base
        self.started = 0
        """Time of the first message of the segment, in microseconds; 0 if there is none yet."""
        self._preallocated = 0
        """Where the zeros after the last frame end; 0 if there are none."""
        self._indexed = 0
        """Bytes of the index that are in use."""
        self._doubtful = False
        """True once a sync has failed: a later one that succeeds does not cover what was written before."""
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
        for descriptor in (self._segment, self._index):  # a failed attempt may have left something
            if os.fstat(descriptor).st_size:
                self._files.truncate(descriptor, 0)
        self._files.write(self._segment, [frames.HEADER], 0)
        self.size = len(frames.HEADER)
        self._files.write(self._index, [INDEX_HEADER], 0)
        self._indexed = len(INDEX_HEADER)

    def _resume(self, records: Records) -> None:
        size = os.fstat(self._segment).st_size
        if not size:  # a crash left only the name
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
            self.next_offset = end_of(records, self.base)
            self.started = int(records["earliest"][0])

    def append(self, batches: Sequence[Encoded], sync: bool) -> None:
        """Append record batches and their index records, all or none; if `sync`, they are safe then."""
        position = self.size
        records: list[bytes | memoryview] = []
        for one in batches:
            records.append(pack_record(one, position, sync))
            position += one.frame.size
        try:
            self._write([piece for one in batches for piece in one.frame.pieces], sync)
            if sync:
                self.sync()
            # Only now: a record states that its batch was written whole, and whether it was synced.
            self._files.write(self._index, records, self._indexed)
            if not os.fstat(self._segment).st_nlink:  # what is written to it is gone when it is closed
                raise removed(self.path)
        except OSError:
            self._take_back()
            raise
        self._indexed += len(records) * RECORD.itemsize
        self.next_offset = batches[-1].first + batches[-1].messages
        self.size = position
        self.started = self.started or batches[0].earliest

    def has_file(self) -> bool:
        """Return whether the segment's name still leads to its file."""
        return _leads_to(self.path, self._segment)

    def has_index(self) -> bool:
        """Return whether the name of the index still leads to its file."""
        return _leads_to(index_of(self.path), self._index)

    def _write(self, pieces: list[bytes | memoryview], sync: bool) -> None:
        """Write after the last frame. After a small synced write, zeros are written too.

        A later write that overwrites zeros is synced sooner than one that extends the file: the file system
        has no metadata to write.
        """
        end = self.size + sum(map(len, pieces))
        if sync and end > self._preallocated and end - self.size <= MAX_PREALLOCATED_WRITE:
            try:
                self._files.write(self._segment, [*pieces, PREALLOCATION], self.size)
            except OSError:
                self._cut()  # there may be room for the frames alone
            else:
                self._preallocated = end + len(PREALLOCATION)
                return
        self._files.write(self._segment, pieces, self.size)

    def _cut(self) -> None:
        """Truncate the segment after its last whole frame."""
        self._preallocated = 0
        self._files.truncate(self._segment, self.size)

    def _take_back(self) -> None:
        """Remove a failed append from the segment and its index."""
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
        """Mark the end of the segment, sync it, and close it."""
        if self._preallocated:
            self._cut()
        self._files.write(self._segment, [frames.END], self.size)
        self.sync()
        self._files.sync(self._index)
        self.close()

    def abandon(self) -> None:
        """Close the files as they are; remove them if they hold no message."""
        self._close()
        if self.size <= len(frames.HEADER):
            self._files.remove(self.path)
            self._files.remove(index_of(self.path))

    def close(self, sync: bool = False) -> None:
        """Truncate and close the files; if `sync`, everything is safe then."""
        try:
            if self._preallocated:
                self._cut()
            if sync:
                self.sync()
        finally:
            self._close()

    def _close(self) -> None:
        self._files.close(self._segment)
        self._files.close(self._index)


def removed(path: Path) -> OSError:
    """Return the error that someone has removed the active segment, or its index."""
    return OSError(errno.ENOENT, "a file of the active segment was removed", str(path))


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        found, own = path.stat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
