"""Sealed segments as Parquet: written once, checked on every read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pyrite.log.segment import Damage, Records


class ParquetSegment:
    """A segment that has become Parquet, for reading."""

    def __init__(self, stream: str, path: Path) -> None:
        self.stream = stream
        self.path = path
        self.base = int(path.stem)

    def records(self) -> Records:
        """Return the index: one record a row group."""
        raise NotImplementedError

    def read(self, offset: int, stop: int) -> Iterator[pa.RecordBatch | Damage]:
        """Yield the record batches with messages from `offset` on and before `stop`, and what is damaged."""
        raise NotImplementedError

    def end(self) -> int:
        """Return the offset after the last message."""
        raise NotImplementedError
