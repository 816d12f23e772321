"""`pyrite log compact`: convert the segments of streams to Parquet, and merge small ones."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from rich.filesize import decimal

from pyrite.cli.log import running
from pyrite.storage import tiering
from pyrite.storage.arrow import ArrowSegment, recover
from pyrite.storage.files import Files
from pyrite.storage.folder import DataFolder
from pyrite.storage.segment import Damage
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.stream import StreamReader


def run(args: argparse.Namespace) -> int:
    """Compact the streams; return 1 if any data is damaged."""
    found = running.folders(args)
    damaged = False
    with closing(DataFolder(args.data)):
        for folder in found:
            stream = _Stream(folder, args.compression, args.segment_bytes)
            try:
                stream.compact()
            except OSError as error:  # a failed write does not name the file
                raise OSError(error.errno, error.strerror, error.filename or str(folder)) from None
            damaged |= stream.damaged
    return 1 if damaged else 0


class _Stream:
    def __init__(self, folder: Path, compression: str, segment_bytes: int) -> None:
        self._files = Files()
        self._folder = folder
        self._reader = StreamReader(folder)
        self._compression = compression
        self._segment_bytes = segment_bytes
        self.damaged = False

    def compact(self) -> None:
        before = self._size()
        tiering.tidy(self._files, self._folder, self._report)
        self._seal()
        waiting = [
            one for one in self._reader.segments() if isinstance(one, ArrowSegment) and len(one.records())
        ]
        with running.progress(f"{self._folder.name}: converting") as show:
            for number, segment in enumerate(waiting, 1):
                tiering.to_parquet(self._files, segment.stream, segment.path, self._compression, self._report)
                show(number, len(waiting))
        runs = tiering.mergeable(self._reader.segments(), self._segment_bytes, eager=True)
        merged = 0
        with running.progress(f"{self._folder.name}: merging") as show:
            for number, each in enumerate(runs, 1):
                if tiering.merge(self._files, each, self._compression, self._report):
                    merged += len(each)
                show(number, len(runs))
        print(
            f"{self._folder.name}: {len(waiting)} converted to Parquet, {merged} merged; "
            f"{decimal(before)} before, {decimal(self._size())} now"
        )

    def _seal(self) -> None:
        """Seal the last segment, as the broker would have, unless it is empty."""
        segments = self._reader.segments()
        if not segments or not isinstance(segments[-1], ArrowSegment):
            return
        last = segments[-1]
        recovered = recover(self._files, last.stream, last.path)
        if not recovered.sealed and last.end() > last.base:
            writer = SegmentWriter(self._files, self._folder, last.base, recovered.records)
            for damage in writer.damages:
                self._report(damage)
            writer.seal()

    def _report(self, damage: Damage) -> None:
        self.damaged = True
        running.report(damage)

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._folder.iterdir())
