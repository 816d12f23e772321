"""Streams for the tests to read, convert and damage."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyrite.broker.message import Batch, Properties
from pyrite.journal.encoding import Entry, build
from pyrite.storage import tiering
from pyrite.storage.files import Files
from pyrite.storage.frames import Encoded, encode
from pyrite.storage.schema import plain
from pyrite.storage.segment import Damage
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.stream import StreamReader

Rows = list[dict[str, Any]]
START = 1_800_000_000_000_000


class Unsynced(Files):
    """A disk that waits for nothing: what the tests do to files does not depend on it."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


FILES = Unsynced()


def entry(random_: random.Random, time: int) -> Entry:
    """Make a few messages that came together."""
    count, size = random_.choice([(1, 0), (1, 9), (2, 1), (3, 7), (4, 40)])
    properties = None
    if random_.random() < 0.2:
        properties = Properties(
            payload_format=1,
            message_expiry=random_.choice([None, 60]),
            content_type="text/plain",
            correlation_data=random_.randbytes(5),
            user_properties=(("run", "7"), ("run", "8")),
        )
    batch = Batch(
        random_.choice([b"a", b"a/b", "grün/ß".encode()]),
        random_.randbytes(count * size),
        random_.randint(0, 2),
        random_.random() < 0.1,
        properties,
        None,
        random_.choice([None, "ann", "bob"]),
        count,
        size,
    )
    return Entry(batch, time, None)


def append_entries(writer: SegmentWriter, entries: Sequence[Entry], sync: bool) -> pa.RecordBatch:
    """Write messages that came together to a segment, and return how they are stored."""
    first = writer.next_offset
    rows = build(entries, first)
    batch = Encoded(encode(rows), first, rows.num_rows, entries[0].timestamp, entries[-1].timestamp)
    writer.append([batch], sync)
    return rows


def append(writer: SegmentWriter, sync: bool, seed: int | None = None) -> pa.RecordBatch:
    """Write a few messages to a segment, and return them as they are to be read."""
    first = writer.next_offset
    random_ = random.Random(first if seed is None else seed)
    entries = [entry(random_, START + first) for _ in range(random_.randint(1, 4))]
    return plain(append_entries(writer, entries, sync))


def write_segment(
    folder: Path, base: int, batches: int, sealed: bool = True, synced: bool = True
) -> list[pa.RecordBatch]:
    """Write a segment in Arrow's format, and return its rows."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = SegmentWriter(FILES, folder, base)
    written = [append(writer, synced) for _ in range(batches)]
    if sealed:
        writer.seal()
    else:
        writer.close()
    return written


def write_segments(folder: Path, counts: Sequence[int], last_sealed: bool = True) -> list[pa.RecordBatch]:
    """Write segments one after the other, with so many batches each."""
    written: list[pa.RecordBatch] = []
    base = 0
    for number, count in enumerate(counts):
        written += write_segment(folder, base, count, last_sealed or number < len(counts) - 1)
        base = written[-1].column(0)[-1].as_py() + 1
    return written


def convert(folder: Path, *names: str) -> list[Path]:
    """Turn segments to Parquet: those that are named, or all that are in Arrow's format."""
    paths = [folder / name for name in names] or sorted(folder.glob("*.arrow"))
    return [tiering.to_parquet(FILES, folder.name, path, "zstd", no_damage) for path in paths]


def no_damage(damage: Damage) -> None:
    """Fail: there should be none."""
    raise AssertionError(damage)


def rows_of(batches: Sequence[pa.RecordBatch]) -> Rows:
    """Return messages as rows."""
    return [row for batch in batches for row in batch.to_pylist()]


def read(folder: Path) -> tuple[Rows, list[Damage]]:
    """Read a stream from its beginning: messages and damage."""
    pieces = list(StreamReader(folder).read(0))
    good = [piece for piece in pieces if not isinstance(piece, Damage)]
    return rows_of(good), [piece for piece in pieces if isinstance(piece, Damage)]


def without(rows: Rows, damages: Sequence[Damage]) -> Rows:
    """Return the rows that the damages leave."""
    return [row for row in rows if not any(each.first <= row["offset"] <= each.last for each in damages)]


class Crash(Exception):
    """The process has ended."""


class CrashingFiles(Unsynced):
    """A disk in whose n-th operation the process ends, after which nothing is done any more."""

    def __init__(self, survives: int) -> None:
        self.left = survives
        self.open_files: set[int] = set()
        for name in ("write", "sync", "truncate", "sync_folder", "rename", "remove"):
            setattr(self, name, self._counted(getattr(Unsynced, name)))

    def _counted(self, operation: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            self._count()
            operation(self, *arguments)

        return run

    def _count(self) -> None:
        if self.left <= 0:
            raise Crash
        self.left -= 1

    def open(self, path: Path) -> int:
        self._count()
        descriptor = super().open(path)
        self.open_files.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self.open_files.discard(descriptor)
        super().close(descriptor)


def crashes() -> Iterator[CrashingFiles]:
    """Yield disks that survive 0, 1, 2, ... operations, until one survives all of them."""
    survives = 0
    while True:
        files = CrashingFiles(survives)
        yield files
        if files.left > 0:
            return
        survives += 1
