"""Snapshot of a stream as Parquet files that stay while another program reads them: Spark, DuckDB.

They list files first and open them later; in between, the broker merges and drops segments. So sealed
segments get a hard link in a folder of this process, under `snapshots` in the data folder. Messages that are
not Parquet yet are copied there as Parquet if they are few: on two cores, reading them once through Python
takes longer. The folder is removed when the process ends. Each process holds a lock on its folder; the next
snapshot removes folders of processes that were killed.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow.parquet as pq

from pyrite.storage.bulk import LogFolder
from pyrite.storage.files import OWNER_ONLY, OWNER_ONLY_FOLDER
from pyrite.storage.parquet import ParquetSegment
from pyrite.storage.query import Query
from pyrite.storage.stream import StreamReader

COPY = "rest.parquet"
"""Copy of the messages that are not Parquet yet."""
MAX_COPIED_MESSAGES = 2_000_000
MAX_COPIED_BYTES = 128 * 1024 * 1024
"""Limits of that copy, which takes time and disk space."""
_REPEATED = ["topic", "client_id", "content_type", "response_topic"]
_FILTERED = ["offset", "timestamp", "topic"]
"""Columns with statistics, which let readers skip row groups."""

_logger = logging.getLogger("pyrite.storage.snapshot")


class Snapshot(NamedTuple):
    """Parquet files of a stream at one moment."""

    folder: Path
    files: list[Path]
    end: int
    """Offset after the last message in the files."""

    @property
    def copied(self) -> int:
        """Bytes that exist only in this snapshot."""
        copy = self.folder / COPY
        return copy.stat().st_size if copy in self.files else 0

    def remove(self) -> None:
        """Remove the files, which must not be in use."""
        shutil.rmtree(self.folder, ignore_errors=True)


def take(log: LogFolder, stream: str, end: int, whole: bool = False) -> Snapshot | None:
    """Return a stream up to an offset, or unless `whole`, as much of it as is quickly available as Parquet.

    Returns None if that is nothing, or the files cannot be created. Raises DataLoss for a damaged message.
    """
    try:
        snapshot = Snapshot(_folder(log.data) / str(uuid4()), [], 0)
        snapshot.folder.mkdir(OWNER_ONLY_FOLDER)
        try:
            snapshot = snapshot._replace(end=_fill(log, stream, end, snapshot, whole))
        except BaseException:
            snapshot.remove()
            raise
    except OSError as error:
        _logger.warning(
            "cannot make a snapshot in %s, so the log is read through Python: %s", log.data, error
        )
        return None
    if snapshot.files:
        return snapshot
    snapshot.remove()
    return None


def _fill(log: LogFolder, stream: str, end: int, snapshot: Snapshot, whole: bool) -> int:
    """Fill a snapshot up to an offset; return the offset reached."""
    reader = StreamReader(log.data / "streams" / stream)
    start = _link(reader, snapshot)
    if start >= end and snapshot.files:
        return start
    if not whole and (end - start > MAX_COPIED_MESSAGES or _unsealed(reader) > MAX_COPIED_BYTES):
        return start
    _copy(log, Query(stream, start, max(start, end)), snapshot)
    return max(start, end)


def _unsealed(reader: StreamReader) -> int:
    """Return how many bytes of a stream are not Parquet yet."""
    sizes = 0
    for segment in reader.segments():
        if not isinstance(segment, ParquetSegment):
            try:
                sizes += segment.path.stat().st_size
            except FileNotFoundError:
                pass  # converted to Parquet in the meantime
    return sizes


def _link(reader: StreamReader, snapshot: Snapshot) -> int:
    """Link the Parquet files at the beginning of a stream; return the offset after them."""
    while True:
        segments = list(takewhile(lambda one: isinstance(one, ParquetSegment), reader.segments()))
        links = [snapshot.folder / segment.path.name for segment in segments]
        try:
            for segment, link in zip(segments, links, strict=True):
                os.link(segment.path, link)
            end = segments[-1].end() if segments else reader.first
        except FileNotFoundError as gone:
            if Path(gone.filename).exists():
                raise  # the snapshot's own folder is gone
            for link in links:
                link.unlink(missing_ok=True)
            continue  # the broker has merged or dropped a segment
        snapshot.files.extend(links)
        return end


def _copy(log: LogFolder, query: Query, snapshot: Snapshot) -> None:
    """Write the rows of a query as Parquet, with fast compression as the file is short-lived."""
    path = snapshot.folder / COPY
    with pq.ParquetWriter(
        path, query.schema, compression="snappy", use_dictionary=_REPEATED, write_statistics=_FILTERED
    ) as writer:
        for batch in log.read(query):
            writer.write_batch(batch)
    snapshot.files.append(path)


@cache
def _folder(data: Path) -> Path:
    """Return this process's folder for snapshots of a data folder."""
    snapshots = data / "snapshots"
    snapshots.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)
    for other in snapshots.iterdir():
        if other.suffix != ".begun":
            _remove_unless_used(other)
    folder = snapshots / f"reader-{uuid4()}"
    begun = folder.with_suffix(".begun")
    begun.mkdir(OWNER_ONLY_FOLDER)
    descriptor = os.open(begun / "lock", os.O_CREAT | os.O_RDWR, OWNER_ONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    begun.rename(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _remove_unless_used(folder: Path) -> None:
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return  # another process is removing it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # its process is alive
    finally:
        os.close(descriptor)
