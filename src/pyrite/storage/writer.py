"""A stream on disk, for writing: the active segment, sealing it, starting the next. One thread uses it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pyrite.journal.gathering import Rows, encode
from pyrite.storage.columns import Entry
from pyrite.storage.files import Files
from pyrite.storage.options import StreamOptions
from pyrite.storage.segment import ROOM, Damage, Encoded, SegmentWriter, gone, recover
from pyrite.storage.stream import StreamReader
from pyrite.storage.tiering import tidy

MOST_PROBED = 64 * 1024 * 1024
"""Bytes for which it is tried whether there is room again."""


class Opened(NamedTuple):
    """What was found when a stream was opened."""

    segments: int
    first: int
    end: int
    size: int
    dropped: int
    damages: list[Damage]

    def __str__(self) -> str:
        # How many messages there are is not known without reading more: some offsets may never be given.
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
        """Is told of a segment that someone removed: its name, where it begins and where it ends."""
        self._folder = folder
        self.options = options
        files.make_folder(folder)
        files.sync_folder(folder.parent)
        self._segment: SegmentWriter | None = None
        self._unsynced_since = 0.0
        self._unsynced = 0
        """Messages that were written, and are not known to be safe."""
        self._lost = 0
        """Messages that may be lost, as they could not be synced."""
        self._refused = 0
        """Bytes that were to be written last when it failed."""
        self._end: int | None = None
        """Where the segment ended that was abandoned last, if there is none now."""
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
        if last.path.suffix == ".arrow":
            found = recover(self._files, self._folder.name, last.path)
            dropped = found.dropped
            damages += found.damages
            end = last.base
            if len(found.records):
                end = int(found.records["first"][-1] + found.records["count"][-1])
            if not found.sealed:
                self._segment = SegmentWriter(self._files, self._folder, last.base, found.records)
        else:
            end = last.end()
        size = sum(segment.path.stat().st_size for segment in segments)
        return Opened(len(segments), segments[0].base, end, size, dropped, damages)

    def append(self, pieces: Sequence[Encoded | Rows | list[Entry]], promised: bool) -> None:
        """Write what came together, at one stroke; if it is `promised` to someone, it is safe then."""
        batches = encode(pieces)
        policy = self.options.fsync
        sync = promised and policy == "always"
        self._refused = sum(one.frame.size for one in batches)
        if self._segment is not None and self._is_full():
            self.seal()
        self.begin(batches[0].first)
        assert self._segment is not None
        try:
            self._segment.append_frames(batches, sync)
        except OSError:
            self._abandon()
            raise
        if sync:
            self._is_safe()
        elif policy != "never":
            self._unsynced_since = self._unsynced_since or time.monotonic()
            self.sync_if_due()
            if self._unsynced_since:
                self._unsynced += sum(one.number for one in batches)

    def _is_full(self) -> bool:
        segment = self._segment
        assert segment is not None
        if not segment.started:
            return False
        # Retention drops whole segments, so they must not be larger or older than what it leaves.
        options = self.options
        most, oldest = options.segment_bytes, options.segment_age
        if options.retention_bytes:
            most = min(most, options.retention_bytes // 4)
        if options.retention_age:
            oldest = min(oldest, options.retention_age / 4)
        return segment.size >= most or self._wall() - segment.started / 1e6 >= oldest

    def _abandon(self) -> None:
        """Write no more to a file of which it is not known what is on the disk."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._end = segment.next_offset
        try:
            if not segment.is_there():
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
        """Return how many messages may have been lost since this was asked last, after they were written."""
        lost, self._lost = self._lost, 0
        return lost

    def probe(self) -> None:
        """Write as much as could not be written to a file that is removed again, and begin a segment.

        Raise if that fails, too.
        """
        path = self._folder / "probe.tmp"
        pieces = 1 + min(self._refused, MOST_PROBED) // len(ROOM)
        try:
            descriptor = self._files.open(path)
            try:
                self._files.write(descriptor, [ROOM] * pieces, 0)
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
        finally:
            self._files.remove(path)
        if self._end is not None:
            self.begin(self._end)

    def sync_if_due(self) -> None:
        """Sync what no one waits for, once it has waited for long enough."""
        since = self._unsynced_since
        if since and time.monotonic() - since >= self.options.fsync_interval and self._segment is not None:
            try:
                self._segment.sync()
            except OSError:
                self._abandon()
                raise
            self._is_safe()

    def see_that_it_is_there(self) -> None:
        """Raise OSError if someone has removed the active segment or its index, or moved one of them away."""
        segment = self._segment
        if segment is not None and not (segment.is_there() and segment.has_index()):
            self._abandon()
            raise gone(segment.path)

    def seal_if_due(self) -> None:
        """Seal a segment that is old enough, though nothing more comes."""
        segment = self._segment
        if segment is not None and self._is_full():
            self.seal()
            self.begin(segment.next_offset)

    def seal(self) -> None:
        """End the active segment; the next message begins another."""
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

    def begin(self, offset: int) -> None:
        """Begin a segment for what is to come, if there is none.

        Retention may drop all others. Then its name tells readers where the stream has come to. After an
        error it begins where the last one ended, though later offsets were refused: whatever the last one
        has beyond its end is hidden by that.
        """
        if self._segment is None:
            if self._end is not None:
                offset = min(offset, self._end)
            self._segment = SegmentWriter(self._files, self._folder, offset)
            self._end = None

    def close(self) -> None:
        """Make everything safe, and close."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close(sync=True)
