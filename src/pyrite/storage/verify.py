"""Checking every byte of streams, and telling exactly what is damaged.

A broker may write to a stream meanwhile: this only reads, and a write in progress is no damage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pyrite.storage import parquet
from pyrite.storage.arrow import ArrowSegment, is_sealed, unfinished
from pyrite.storage.frames import Damaged
from pyrite.storage.index import INDEX_HEADER, Records, end_of, index_of, proven, read_index
from pyrite.storage.parquet import Contents, ParquetSegment, footer_of
from pyrite.storage.query import FOREVER
from pyrite.storage.segment import DAMAGED, Damage
from pyrite.storage.stream import Segment, StreamReader

Progress = Callable[[int, int], None]
"""Called with how many bytes were checked, and how many there are."""

WRITE_TIME = 0.1
"""Seconds in which a write in progress is finished."""


def verify_streams(folders: Sequence[Path], progress: Progress) -> list[Damage]:
    """Return the damage in streams, given by their folders."""
    readers = [StreamReader(folder) for folder in folders]
    total = sum(size_of_file(segment.path) for reader in readers for segment in reader.segments())
    done = 0
    damages: list[Damage] = []
    for reader in readers:
        for damage, checked in _stream(reader):
            done += checked
            damages += damage
            progress(done, max(done, total))
    return damages


def size_of_file(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _stream(reader: StreamReader) -> Iterator[tuple[list[Damage], int]]:
    """Yield the damage in each segment, and the segment's size."""
    seen: set[Path] = set()
    while True:
        segments = reader.segments()
        limits = (*(segment.base for segment in segments[1:]), FOREVER)
        fresh = [pair for pair in zip(segments, limits, strict=False) if pair[0].path not in seen]
        if not fresh:
            break
        for segment, limit in fresh:
            seen.add(segment.path)
            try:
                yield list(check_segment(segment, limit)), size_of_file(segment.path)
            except FileNotFoundError:
                break  # it was converted or dropped: look again
    for path in sorted(reader.folder.glob(f"*.arrow{DAMAGED}")):
        kept = ArrowSegment(reader.name, path)
        yield kept.walk(read_index(kept.index)[0]).damages, 0


def check_segment(segment: Segment, limit: int) -> Iterator[Damage]:
    """Yield the damage in a segment; `limit` is where the next one begins, FOREVER if there is none."""
    if isinstance(segment, ParquetSegment):
        yield from _check_parquet(segment, limit)
    else:
        yield from _check_arrow(segment, limit)


# Arrow


def _check_arrow(segment: ArrowSegment, limit: int) -> Iterator[Damage]:
    known, _ = read_index(segment.index)
    walk = segment.walk(known)
    yield from walk.damages
    reached = end_of(walk.records, segment.base)
    # A batch has a record only if it was written whole.
    beyond = known[(known["first"] >= reached) & (known["first"] < limit)]
    for one in beyond:
        first, count = int(one["first"]), int(one["count"])
        yield Damage(segment.stream, segment.path.name, first, first + count - 1, "a record batch is damaged")
    if not len(beyond):
        yield from _check_end(segment, walk.end, reached, limit)
    complete = limit < FOREVER or is_sealed(segment.path) or _stays_short(segment, walk.records)
    for damage in segment.tail().damages():
        if damage.last < 0 or reached <= damage.last < limit:
            yield damage
    # What lies beyond the beginning of the next segment was refused, and is hidden by that segment.
    yield from _check_index(segment, walk.records[walk.records["first"] < limit], complete)


def _stays_short(segment: ArrowSegment, records: Records) -> bool:
    """Return whether the index of the active segment lacks records of whole batches."""
    if len(read_index(segment.index)[0]) >= len(records):
        return False
    time.sleep(WRITE_TIME)  # a batch is written before its record
    return len(read_index(segment.index)[0]) < len(records)


def _check_end(segment: ArrowSegment, end: int, reached: int, limit: int) -> Iterator[Damage]:
    """Check what follows the last frame."""
    rest = unfinished(segment.path, end)
    if not rest:
        return
    first, last = -1, -1
    if limit < FOREVER:
        reason = f"its last {rest} bytes are damaged"
        if reached < limit:
            first, last = reached, limit - 1
    else:
        time.sleep(WRITE_TIME)
        again = segment.walk(read_index(segment.index)[0])
        if again.end > end:
            return  # a write was in progress
        reason = f"its last {rest} bytes were never finished"
    yield Damage(segment.stream, segment.path.name, first, last, reason)


# Parquet


def _check_parquet(segment: ParquetSegment, limit: int) -> Iterator[Damage]:
    def damage(file: Path, reason: str, first: int = -1, last: int = -1) -> Damage:
        return Damage(segment.stream, file.name, first, last, reason)

    path = segment.path
    with path.open("rb") as file:
        contents = Contents(path, file)
        records = contents.records
        copy, own = parquet.read_copy(path), parquet.read_own(file)
        if copy is None:
            yield damage(footer_of(path), "it is damaged" if footer_of(path).exists() else "it is missing")
        elif copy != own:
            yield damage(path, "its footer is damaged, and the copy beside it is used")
        if contents.footer is None:
            pieces = segment.read(segment.base, limit)
            yield from (piece for piece in pieces if isinstance(piece, Damage))
            return
        if os.pread(file.fileno(), len(parquet.MAGIC), 0) != parquet.MAGIC:
            yield damage(path, "its head is damaged")
        for reason in _wrong_in_index(
            parquet.read_own_index(file, contents.footer, len(records)), records, True
        ):
            yield damage(path, f"in its index, {reason}")
        yield from _check_index(segment, records, True)
        for number, one in enumerate(records):
            first, count = int(one["first"]), int(one["count"])
            try:
                if one["synced"]:
                    parquet.check(file, one)
                else:
                    parquet.decode(file, contents, number)
            except Damaged as error:
                yield damage(path, str(error), first, first + count - 1)


# Both


def _check_index(segment: Segment, records: Records, complete: bool) -> Iterator[Damage]:
    """Check the index beside a segment."""
    path = index_of(segment.path)
    try:
        reasons = _wrong_in_index(path.read_bytes(), records, complete)
    except FileNotFoundError:
        reasons = ["it is missing"] if complete and segment.path.exists() else []
    for reason in reasons:
        yield Damage(segment.stream, path.name, -1, -1, reason)


def _wrong_in_index(raw: bytes, records: Records, complete: bool) -> list[str]:
    """Compare an index with what it should be; records may be missing unless it should be `complete`."""
    head = INDEX_HEADER if complete else INDEX_HEADER[: len(raw)]
    wrong = ["the head is damaged"] if raw[:64] != head else []
    good = {one.tobytes() for one in proven(raw)[0]}
    for number, start in enumerate(range(64, len(raw) - len(raw) % 64, 64)):
        if raw[start : start + 64] not in good:
            which = f"record {number}"
            if number < len(records):
                first, count = int(records["first"][number]), int(records["count"][number])
                which += f", of messages {first} to {first + count - 1},"
            wrong.append(f"{which} is damaged")
    missing = len(records) - (len(raw) - 64) // 64
    if complete and len(raw) % 64:
        wrong.append(f"the last {len(raw) % 64} bytes are damaged")
    elif complete and missing > 0:
        wrong.append(f"the last {missing} records are missing")
    return wrong
