"""A stream as Parquet files, which stay for as long as Spark may read them.

Spark lists files when a DataFrame is made, and opens them when it is used; the broker merges and drops
segments whenever it likes. So the sealed segments get a second name (a hard link) in a folder of this
process, under `snapshots` in the data folder. What is not Parquet yet is copied there as Parquet, if it is
little, as a rule: on two cores, to have Spark read it once through Python takes longer. The folder goes when
the process ends. Should it be killed, the next one that makes a snapshot removes what it left: each holds a
lock while it lives.
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

from pyrite.log.bulk import LogFolder
from pyrite.log.files import OWNER_ONLY, OWNER_ONLY_FOLDER
from pyrite.log.parquet import ParquetSegment
from pyrite.log.stream import StreamReader
from pyrite.queries import Query

COPY = "rest.parquet"
"""What is not Parquet yet, copied."""
LITTLE = 2_000_000
SMALL = 128 * 1024 * 1024
"""Messages, and bytes in the log, up to which it is: more takes its time, and room on the broker's disk."""
_REPEATED = ["topic", "client_id", "content_type", "response_topic"]
_FILTERED = ["offset", "timestamp", "topic"]
"""The columns by which row groups are passed over."""

_logger = logging.getLogger("pyrite.spark")


class Snapshot(NamedTuple):
    """The Parquet files with what a stream had when it was taken."""

    folder: Path
    files: list[Path]
    end: int
    """The offset up to which they have it."""

    @property
    def copied(self) -> int:
        """Bytes that only this snapshot has."""
        copy = self.folder / COPY
        return copy.stat().st_size if copy in self.files else 0

    def remove(self) -> None:
        """Remove it: no one reads it any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


def take(log: LogFolder, stream: str, end: int) -> Snapshot | None:
    """Return what a stream has up to an offset, or as much of it as can be had as Parquet soon.

    None if that is nothing, or cannot be kept. DataLoss if some of what is copied is damaged.
    """
    try:
        snapshot = Snapshot(_folder(log.data) / str(uuid4()), [], 0)
        snapshot.folder.mkdir(OWNER_ONLY_FOLDER)
        try:
            snapshot = snapshot._replace(end=_fill(log, stream, end, snapshot))
        except BaseException:
            snapshot.remove()
            raise
    except OSError as error:
        _logger.warning("no snapshot can be made in %s, so all is read through Python: %s", log.data, error)
        return None
    if snapshot.files:
        return snapshot
    snapshot.remove()
    return None


def _fill(log: LogFolder, stream: str, end: int, snapshot: Snapshot) -> int:
    """Put what a stream has up to an offset into a snapshot; return up to where it is there."""
    reader = StreamReader(log.data / "streams" / stream)
    start = _link(reader, snapshot)
    if start >= end and snapshot.files:
        return start
    if end - start > LITTLE or _unsealed(reader) > SMALL:
        return start
    _copy(log, Query(stream, start, max(start, end)), snapshot)
    return max(start, end)


def _unsealed(reader: StreamReader) -> int:
    """Return how many bytes of a stream are not Parquet."""
    sizes = 0
    for segment in reader.segments():
        if not isinstance(segment, ParquetSegment):
            try:
                sizes += segment.path.stat().st_size
            except FileNotFoundError:
                pass  # it has become Parquet
    return sizes


def _link(reader: StreamReader, snapshot: Snapshot) -> int:
    """Link the Parquet files that a stream begins with; return the offset from which on there is none."""
    while True:
        segments = list(takewhile(lambda one: isinstance(one, ParquetSegment), reader.segments()))
        links = [snapshot.folder / segment.path.name for segment in segments]
        try:
            for segment, link in zip(segments, links, strict=True):
                os.link(segment.path, link)
            end = segments[-1].end() if segments else reader.first
        except FileNotFoundError as gone:
            if Path(gone.filename).exists():
                raise  # so it is the folder that is gone
            for link in links:
                link.unlink(missing_ok=True)
            continue  # one of them was merged with others, or dropped
        snapshot.files.extend(links)
        return end


def _copy(log: LogFolder, query: Query, snapshot: Snapshot) -> None:
    """Write what a query asks for as Parquet, as fast as can be: it does not live long."""
    path = snapshot.folder / COPY
    with pq.ParquetWriter(
        path, query.schema, compression="snappy", use_dictionary=_REPEATED, write_statistics=_FILTERED
    ) as writer:
        for batch in log.read(query):
            writer.write_batch(batch)
    snapshot.files.append(path)


@cache
def _folder(data: Path) -> Path:
    """Return this process's own folder for the segments of a data folder."""
    snapshots = data / "snapshots"
    snapshots.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)
    for other in snapshots.iterdir():
        if other.suffix != ".begun":
            _remove_unless_used(other)
    folder = snapshots / f"spark-{uuid4()}"
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
        return  # another is removing it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # whoever made it lives
    finally:
        os.close(descriptor)
