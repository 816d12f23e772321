"""What Arrow and Parquet segments have in common: names, damage, and a cache of decoded batches.

A segment is one file of record batches with an index beside it. It is written as BASE.arrow
(segment_writer.py, arrow.py). Once sealed, it is rewritten as BASE.parquet (parquet.py, tiering.py). BASE is
the offset at which the segment begins.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

MAX_CACHE_BYTES = 64 * 1024 * 1024
"""Bytes of decoded batches that a reader keeps, besides the one that it reads."""


DAMAGED = ".damaged"
"""Suffix of a file that is kept because a part of it could not be read."""


class Damage(NamedTuple):
    """A damaged place, as exactly as it can be told."""

    stream: str
    file: str
    first: int
    """The first offset that is lost; -1 if none is."""
    last: int
    reason: str

    def __str__(self) -> str:
        if not self.stream:
            return f"{self.file}: {self.reason}"
        lost = f"messages {self.first} to {self.last} are lost" if self.first >= 0 else "no message is lost"
        return f"stream {self.stream}, {self.file}: {self.reason}; {lost}"


class Passed(NamedTuple):
    """Offsets that a reader skipped: no message there has a topic that it asked for."""

    first: int
    last: int


def name_of(base: int) -> str:
    """Return the name, without its suffix, of the segment that begins at an offset."""
    return f"{base:020d}"


def cut(batch: pa.RecordBatch, first: int, offset: int, stop: int) -> pa.RecordBatch:
    """Slice a batch whose first offset is `first` to the offsets from `offset` on and before `stop`."""
    skip = max(0, offset - first)
    keep = min(batch.num_rows, stop - first) - skip
    return batch if not skip and keep == batch.num_rows else batch.slice(skip, keep)


class BatchCache:
    """The batches decoded last: a reader that reads little at a time finds most of them here."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, int], pa.RecordBatch] = {}
        self._used = False

    def get(self, name: str, number: int) -> pa.RecordBatch | None:
        """Return batch `number` of the segment `name`, if it is cached."""
        self._used = True
        batch = self._batches.pop((name, number), None)
        if batch is not None:
            self._batches[name, number] = batch
        return batch

    def put(self, name: str, number: int, batch: pa.RecordBatch) -> None:
        """Cache a batch, and drop the least recently used ones that exceed the bound."""
        self._used = True
        room = MAX_CACHE_BYTES - batch.nbytes
        kept = {(name, number): batch}
        for key, each in reversed(list(self._batches.items())):
            room -= each.nbytes
            if room < 0:
                break
            kept[key] = each
        self._batches = dict(reversed(kept.items()))

    def forget_unused(self) -> None:
        """Empty the cache if it was not used since the last call."""
        if not self._used:
            self._batches = {}
        self._used = False
