"""The settings of a stream."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

DEFAULT = "default"
"""The stream that captures what no other stream does."""
STREAM_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MIB = 1024 * 1024
FSYNC = ("always", "interval", "never")
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")


@dataclass(slots=True)
class StreamOptions:
    """A [[stream]] table of pyrite.toml. A message belongs to the first stream that captures its topic."""

    name: str = DEFAULT
    """The name of the stream and of its folder: letters, digits, - and _."""
    topics: list[str] = field(default_factory=lambda: ["#"])
    """The topic filters that it captures."""
    retention_age: float = 0.0
    """Seconds after which messages are dropped, a segment at a time; 0 for never."""
    retention_bytes: int = 0
    """Bytes on disk above which the oldest segments are dropped; 0 for no bound."""
    segment_bytes: int = 64 * MIB
    """Bytes after which a segment is sealed and the next one begins."""
    segment_age: float = 3_600.0
    """Seconds after which a segment is sealed."""
    fsync: str = "always"
    """When data is forced to disk: always (before every acknowledgement), interval (every fsync_interval
    seconds) or never (when the system does)."""
    fsync_interval: float = 1.0
    """Seconds between two syncs: with fsync = "interval", and of QoS 0 messages, which nobody waits for."""
    compression: str = "zstd"
    """Compression of sealed segments, which are Parquet: zstd, snappy, gzip, lz4 or none."""
    table: bool = False
    """Whether the stream is an Iceberg table, too (docs/tables.md)."""
    table_delay: float = 10.0
    """Seconds after which a segment is sealed if the stream is a table: how far the table may lag."""
    snapshots_keep: float = 3_600.0
    """Seconds for which a replaced snapshot of the table, and the files it refers to, are kept."""

    @property
    def seal_after(self) -> float:
        """Seconds after which a segment is sealed. Retention drops whole segments, so it asks for less."""
        ages = [self.segment_age]
        if self.retention_age:
            ages.append(self.retention_age / 4)
        if self.table:
            ages.append(self.table_delay)
        return min(ages)
