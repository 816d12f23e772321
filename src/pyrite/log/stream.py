"""A stream on disk, for reading: its segments in order, whoever writes them, and whatever form they have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyrite.log.segment import ArrowSegment, Damage
from pyrite.log.tiering import ParquetSegment

Segment = ArrowSegment | ParquetSegment

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What a stream may be called."""
_SEGMENT = re.compile(r"(\d{20})\.(arrow|parquet)")
FOREVER = 2**63 - 1


class StreamReader:
    """Reads a stream's messages in the order of their offsets. Safe while the stream is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name
        self._segments: dict[Path, Segment] = {}

    def segments(self) -> list[Segment]:
        """Return the segments there are now, the oldest first."""
        found: dict[int, Path] = {}
        for path in self.folder.iterdir():
            match = _SEGMENT.fullmatch(path.name)
            # What is there as Parquet is complete; the Arrow file that it was made of may not be gone yet.
            if match is not None and (match[2] == "parquet" or int(match[1]) not in found):
                found[int(match[1])] = path
        paths = [found[base] for base in sorted(found)]
        known = self._segments
        self._segments = {path: known.get(path) or self._open(path) for path in paths}
        return list(self._segments.values())

    def _open(self, path: Path) -> Segment:
        if path.suffix == ".parquet":
            return ParquetSegment(self.name, path)
        return ArrowSegment(self.name, path)

    def read(self, offset: int, stop: int = FOREVER) -> Iterator[pa.RecordBatch | Damage]:
        """Yield record batches with the messages from `offset` on and before `stop`; and what is damaged.

        Never a message twice, and none is left out, whatever becomes of the segments meanwhile.
        """
        while offset < stop:
            segment, limit = self._at(offset)
            if segment is None:
                return
            try:
                for piece in segment.read(offset, min(stop, limit)):
                    yield piece
                    offset = piece.last + 1 if isinstance(piece, Damage) else _after(piece)
            except FileNotFoundError:
                continue  # it has become Parquet, or was dropped: look again
            if limit == FOREVER:
                return
            offset = max(offset, limit)

    def _at(self, offset: int) -> tuple[Segment | None, int]:
        """Find the segment in which an offset is, or the next one; and where the one after it begins."""
        segments = self.segments()
        for number, segment in enumerate(segments):
            limit = segments[number + 1].base if number + 1 < len(segments) else FOREVER
            if offset < limit:
                return segment, limit
        return None, FOREVER

    @property
    def first(self) -> int:
        """The offset of the oldest message that is kept; of the next to come, if there is none."""
        segments = self.segments()
        return segments[0].base if segments else 0

    @property
    def end(self) -> int:
        """The offset after that of the newest message."""
        segments = self.segments()
        return segments[-1].end() if segments else 0

    def offset_at(self, time: int) -> int:
        """Return the offset of the first message that came at `time` (microseconds) or later."""
        for segment in self.segments():
            records = segment.records()
            at = int(np.searchsorted(records["latest"], time))
            if at < len(records):
                first, count = int(records["first"][at]), int(records["count"][at])
                for batch in segment.read(first, first + count):
                    if isinstance(batch, Damage):
                        return first
                    times = batch.column(1).view(pa.int64()).to_numpy()
                    return first + int(np.searchsorted(times, time))
        return self.end


def _after(batch: pa.RecordBatch) -> int:
    last: int = batch.column(0)[-1].as_py()
    return last + 1
