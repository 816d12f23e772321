"""Looks at every byte of a data folder, and says exactly what is damaged.

It may run while a broker writes to the folder: it reads only, and what is just being written is no damage.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from pyrite.journal.tables import HEADER, damaged_rows, fault, text
from pyrite.journal.wal import WriteAheadLog, log_of, read_database, read_log
from pyrite.storage import parquet
from pyrite.storage.folder import is_in_use
from pyrite.storage.frames import INDEX_HEADER, Damaged
from pyrite.storage.parquet import Contents, ParquetSegment, footer_of
from pyrite.storage.query import FOREVER
from pyrite.storage.segment import (
    ArrowSegment,
    Damage,
    Records,
    index_of,
    is_sealed,
    proven,
    read_index,
    unfinished,
)
from pyrite.storage.stream import NAME, Segment, StreamReader
from pyrite.storage.tiering import DAMAGED

Progress = Callable[[int, int], None]
"""Is told how many bytes have been looked at, and how many there are."""

_MOMENT = 0.1
"""Seconds in which a write that has begun is finished."""


def streams_in(data: Path) -> list[Path]:
    """Return the folders of the streams in a data folder, by name."""
    try:
        return sorted(path for path in (data / "streams").iterdir() if NAME.fullmatch(path.name))
    except FileNotFoundError:
        return []


def verify(
    data: Path, stream: str | None = None, progress: Progress = lambda _done, _total: None
) -> list[Damage]:
    """Return what is damaged in a data folder; in one of its streams only, if that is named."""
    folders = [data / "streams" / stream] if stream is not None else streams_in(data)
    readers = [StreamReader(folder) for folder in folders]
    total = sum(_size(segment.path) for reader in readers for segment in reader.segments())
    state = data / "state.sqlite"
    of_state = _size(state) + _size(log_of(state)) if stream is None else 0
    total += of_state
    done = 0
    damages: list[Damage] = []
    for reader in readers:
        for damage, looked_at in _stream(reader):
            done += looked_at
            damages += damage
            progress(done, max(done, total))
    if stream is None:
        damages += check_state(state)
    if of_state:
        done += of_state
        progress(done, max(done, total))
    return damages


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _stream(reader: StreamReader) -> Iterator[tuple[list[Damage], int]]:
    """Yield the damages of each segment, and its size."""
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
                yield list(check_segment(segment, limit)), _size(segment.path)
            except FileNotFoundError:
                break  # it has become Parquet, or was dropped: look again
    for path in sorted(reader.folder.glob(f"*.arrow{DAMAGED}")):
        kept = ArrowSegment(reader.name, path)
        yield kept.walk(read_index(kept.index)[0]).damages, 0


def check_segment(segment: Segment, limit: int) -> Iterator[Damage]:
    """Yield what is damaged in a segment; the next one begins at `limit`, or there is none: FOREVER."""
    if isinstance(segment, ParquetSegment):
        yield from _check_parquet(segment, limit)
    else:
        yield from _check_arrow(segment, limit)


# Arrow


def _check_arrow(segment: ArrowSegment, limit: int) -> Iterator[Damage]:
    known, _ = read_index(segment.index)
    walk = segment.walk(known)
    yield from walk.damages
    reached = (
        int(walk.records["first"][-1] + walk.records["count"][-1]) if len(walk.records) else segment.base
    )
    # The index has a record of a batch only when that was written whole.
    beyond = known[(known["first"] >= reached) & (known["first"] < limit)]
    for one in beyond:
        first, count = int(one["first"]), int(one["count"])
        yield Damage(segment.stream, segment.path.name, first, first + count - 1, "a record batch is damaged")
    if not len(beyond):
        yield from _check_end(segment, walk.end, reached, limit)
    complete = limit < FOREVER or is_sealed(segment.path) or _stays_short(segment, walk.records)
    # What lies beyond the beginning of the next segment was refused, and is hidden by that.
    yield from _check_index(segment, walk.records[walk.records["first"] < limit], complete)


def _stays_short(segment: ArrowSegment, records: Records) -> bool:
    """Tell whether the index of the segment that is being written lacks records of whole batches."""
    if len(read_index(segment.index)[0]) >= len(records):
        return False
    time.sleep(_MOMENT)  # a batch is written before its record
    return len(read_index(segment.index)[0]) < len(records)


def _check_end(segment: ArrowSegment, end: int, reached: int, limit: int) -> Iterator[Damage]:
    """Look at what follows the last batch."""
    rest = unfinished(segment.path, end)
    if not rest:
        return
    first, last = -1, -1
    if limit < FOREVER:
        reason = f"its last {rest} bytes are damaged"
        if reached < limit:
            first, last = reached, limit - 1
    else:
        time.sleep(_MOMENT)
        again = segment.walk(read_index(segment.index)[0])
        if again.end > end:
            return  # it was being written
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
            yield damage(path, "its footer is damaged, and the copy beside it is taken")
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
    """Look at the index beside a segment."""
    path = index_of(segment.path)
    try:
        reasons = _wrong_in_index(path.read_bytes(), records, complete)
    except FileNotFoundError:
        reasons = ["it is missing"] if complete and segment.path.exists() else []
    for reason in reasons:
        yield Damage(segment.stream, path.name, -1, -1, reason)


def _wrong_in_index(raw: bytes, records: Records, complete: bool) -> list[str]:
    """Compare an index with what it should be; only if it is to be `complete`, none may be missing."""
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


# The state


def check_state(path: Path) -> list[Damage]:
    """Check sessions, subscriptions, retained messages and all else that is no message; change nothing."""
    if not path.exists():
        return []
    while True:
        in_use = is_in_use(path.parent)
        found, log = _look_at_live_state(path) if in_use else _look_at_state(path)
        if is_in_use(path.parent) == in_use:  # else a broker has come or gone, and it may be of two minds
            break
    damages = [Damage("", path.name, -1, -1, reason) for reason in found]
    if log.damaged_at >= 0:
        reason = f"damaged at byte {log.damaged_at}; the last changes of sessions are lost"
        damages.append(Damage("", log_of(path).name, -1, -1, reason))
    return damages


def _look_at_state(path: Path) -> tuple[list[str], WriteAheadLog]:
    """Look at a state that no broker uses: in memory, for SQLite would make and change files beside it."""
    image, log = read_database(path)
    header = bytes(image[:HEADER])
    if header[18:20] == b"\2\2":
        image[18:20] = b"\1\1"  # there is no write-ahead log in memory
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.deserialize(image)
        except sqlite3.Error as error:
            return [str(error)], log
        return _faults(header, database), log


def _look_at_live_state(path: Path) -> tuple[list[str], WriteAheadLog]:
    """Look at a state through SQLite, which knows what is being written."""
    log = read_log(path)
    if log.damaged_at >= 0:
        time.sleep(_MOMENT)
        again = read_log(path)
        if again.damaged_at != log.damaged_at:
            log = again._replace(damaged_at=-1)  # it was being written
    with path.open("rb") as file:
        header = file.read(HEADER)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        return _faults(header, database), log


def _faults(header: bytes, database: sqlite3.Connection) -> list[str]:
    database.text_factory = text
    try:
        reason = fault(header, database)
        return list(damaged_rows(database)) if reason is None else [reason]
    except sqlite3.Error as error:
        return [str(error)]
