"""Writing a stream: its active segment, sealing it, beginning the next. One thread uses it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pyrite.storage.arrow import ArrowSegment, recover
from pyrite.storage.files import Files
from pyrite.storage.frames import Encoded
from pyrite.storage.options import StreamOptions
from pyrite.storage.segment import Damage
from pyrite.storage.segment_writer import SegmentWriter, removed
from pyrite.storage.stream import StreamReader
from pyrite.storage.tail import TAIL_BYTES, Row
from pyrite.storage.tiering import tidy

PROBE = bytes(TAIL_BYTES)
"""Written to see whether the disk has room again: once for a tail, and for what was refused."""
MAX_PROBE = 64 * 1024 * 1024
"""Bytes that are written for what was refused."""


class Opened(NamedTuple):
    """What was found when a stream was opened."""

    segments: int
    first: int
    end: int
    size: int
    dropped: int
    damages: list[Damage]

    def __str__(self) -> str:
        # The number of messages is unknown without reading more: some offsets may be unused.
        offsets = f"offsets {self.first:,} to {self.end - 1:,}" if self.end > self.first else "no messages"
        text = f"{offsets} in {self.segments} segments, {self.size / 1e6:,.1f} MB"
        if self.dropped:
            text += f"; dropped {self.dropped:,} bytes at the end that were never acknowledged"
        return text


class StreamWriter:
    """Writes one stream."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        options: StreamOptions,
        wall: Callable[[], float] = time.time,
        lost: Callable[[str, int, int], object] = lambda name, base, end: None,
    ) -> None:
        self._files = files
        self._wall = wall
        self._lost_segment = lost
        """Called with the name, the base and the end of a segment that someone removed."""
        self._folder = folder
        self.options = options
        files.make_folder(folder)
        files.sync_folder(folder.parent)
        self._segment: SegmentWriter | None = None
        self._unsynced_since = 0.0
        self._unsynced = 0
        """Messages that were written and not synced."""
        self._lost = 0
        """Messages that may be lost because they could not be synced."""
        self._refused = 0
        """Bytes of the last append."""
        self._end: int | None = None
        """Where the last abandoned segment ended; None if there is an active segment."""
        self.opened = self._open()

    def _open(self) -> Opened:
        damages: list[Damage] = []
        tidy(self._files, self._folder, damages.append)
        reader = StreamReader(self._folder)
        segments = reader.segments()
        if not segments:
            return Opened(0, 0, 0, 0, 0, damages)
        last = segments[-1]
        dropped, end = 0, -1
        if isinstance(last, ArrowSegment):
            found = recover(self._files, self._folder.name, last.path)
            dropped = found.dropped
            damages += found.damages
            if found.sealed:
                last.over = True
                end = last.end()
            else:
                segment = self._segment = SegmentWriter(self._files, self._folder, last.base, found.records)
                damages += segment.damages
                end = segment.next_offset
                if segment.damages:
                    self.seal()  # offsets of damaged messages must not be used again
                    self.begin(end)
        else:
            end = last.end()
        size = sum(segment.path.stat().st_size for segment in segments)
        return Opened(len(segments), segments[0].base, end, size, dropped, damages)

    def append(self, batches: Sequence[Encoded], promised: bool) -> None:
        """Append record batches, all or none; if they are `promised` to a client, they are durable then,
        unless fsync says otherwise.
        """
        size = sum(one.frame.size for one in batches)
        messages = sum(one.messages for one in batches)
        self._append(batches[0].first, size, messages, promised, lambda one, sync: one.append(batches, sync))

    def append_rows(self, rows: Sequence[Row], first: int, promised: bool) -> None:
        """Append a few messages as rows, all or none; durable as with `append`."""
        size = sum(len(row.payload) for row in rows)
        self._append(first, size, len(rows), promised, lambda one, sync: one.append_rows(rows, first, sync))

    def _append(
        self,
        first: int,
        size: int,
        messages: int,
        promised: bool,
        write: Callable[[SegmentWriter, bool], None],
    ) -> None:
        policy = self.options.fsync
        sync = promised and policy == "always"
        self._refused = size
        if self._segment is not None and self._is_full():
            self.seal()
        self.begin(first)
        assert self._segment is not None
        try:
            write(self._segment, sync)
        except OSError:
            self._abandon()
            raise
        if sync:
            self._is_safe()
        elif policy != "never":
            self._unsynced_since = self._unsynced_since or time.monotonic()
            self.sync_if_due()
            if self._unsynced_since:
                self._unsynced += messages

    def _is_full(self) -> bool:
        segment = self._segment
        assert segment is not None
        if not segment.started:
            return False
        # Retention drops whole segments, so a segment must be smaller than what it keeps.
        options = self.options
        most = options.segment_bytes
        if options.retention_bytes:
            most = min(most, options.retention_bytes // 4)
        return segment.size >= most or self._wall() - segment.started / 1e6 >= options.seal_after

    def _abandon(self) -> None:
        """Stop writing to a file whose contents on disk are unknown."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._end = segment.next_offset
        try:
            if not segment.has_file():
                self._lost_segment(segment.path.name, segment.base, segment.next_offset)
                self._lost += self._unsynced
            elif self._unsynced:
                segment.sync()
        except OSError:
            self._lost += self._unsynced
        self._is_safe()  # or it is lost
        segment.abandon()

    def _is_safe(self) -> None:
        self._unsynced, self._unsynced_since = 0, 0.0

    def take_lost(self) -> int:
        """Return how many written messages may have been lost since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def probe(self) -> None:
        """Write as much as was refused to a temporary file, and begin a segment; raise OSError on failure."""
        path = self._folder / "probe.tmp"
        pieces = 1 + min(self._refused, MAX_PROBE) // len(PROBE)
        try:
            descriptor = self._files.open(path)
            try:
                self._files.write(descriptor, [PROBE] * pieces, 0)
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
        finally:
            self._files.remove(path)
        if self._end is not None:
            self.begin(self._end)

    def sync_if_due(self) -> None:
        """Sync messages that nobody waits for, once they have waited for `fsync_interval`."""
        since = self._unsynced_since
        if since and time.monotonic() - since >= self.options.fsync_interval and self._segment is not None:
            try:
                self._segment.sync()
            except OSError:
                self._abandon()
                raise
            self._is_safe()

    def fold_if_due(self) -> None:
        """Fold the tail of the active segment, if it is old."""
        if self._segment is not None:
            try:
                self._segment.fold_if_due()
            except OSError:
                self._abandon()
                raise

    def check_files(self) -> None:
        """Raise OSError if someone has removed or moved the active segment or its index."""
        segment = self._segment
        if segment is not None and not (segment.has_file() and segment.has_index()):
            self._abandon()
            raise removed(segment.path)

    def seal_if_due(self) -> None:
        """Seal the active segment if it is old enough, even if no message comes."""
        segment = self._segment
        if segment is not None and self._is_full():
            self.seal()
            self.begin(segment.next_offset)

    def seal(self) -> None:
        """Seal the active segment; the next message begins another."""
        segment = self._segment
        if segment is None:
            return
        if not segment.started:
            self._abandon()  # it holds nothing
            self._end = None
            return
        try:
            segment.seal()
        except OSError:
            self._abandon()
            raise
        self._segment = None
        self._is_safe()

    def seal_now(self) -> int:
        """Seal the active segment, begin the next, and return the offset at which that begins."""
        if self._segment is None:
            return self._end or 0
        end = self._segment.next_offset
        self.seal()
        self.begin(end)
        return end

    def begin(self, offset: int) -> None:
        """Begin a segment at `offset`, unless there is one.

        Its name tells readers how far the stream has come, even when retention has dropped all other
        segments. After an error it begins where the last segment ended, though later offsets were refused: it
        hides whatever that segment has beyond its end.
        """
        if self._segment is None:
            if self._end is not None:
                offset = min(offset, self._end)
            self._segment = SegmentWriter(self._files, self._folder, offset)
            self._end = None

    def close(self) -> None:
        """Sync and close the active segment."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close(sync=True)
