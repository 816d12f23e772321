"""Sealed segments that stay for as long as Spark may read them.

Spark lists files when a DataFrame is made, and opens them when it is used; the broker merges and drops
segments whenever it likes. So the files get a second name (a hard link) in a folder of this process, under
`snapshots` in the data folder, which goes when the process ends. Should it be killed, the next one that
makes a snapshot removes what it left: each holds a lock for as long as it lives.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from pyrite.log.parquet import ParquetSegment
from pyrite.log.stream import StreamReader

_logger = logging.getLogger("pyrite.spark")


class Snapshot(NamedTuple):
    """The Parquet files with which a stream began when it was taken, and the offset after their last one."""

    folder: Path
    files: list[Path]
    end: int

    def remove(self) -> None:
        """Remove it: no one reads it any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


def take(data: Path, stream: str) -> Snapshot | None:
    """Return the Parquet files that a stream begins with; None if there are none, or they cannot be kept."""
    reader = StreamReader(data / "streams" / stream)
    while True:
        segments = []
        for segment in reader.segments():
            if not isinstance(segment, ParquetSegment):
                break
            segments.append(segment)
        if not segments:
            return None
        try:
            folder = _folder(data) / str(uuid4())
            folder.mkdir()
            snapshot = Snapshot(folder, [folder / segment.path.name for segment in segments], 0)
            try:
                for segment, link in zip(segments, snapshot.files, strict=True):
                    os.link(segment.path, link)
                return snapshot._replace(end=segments[-1].end())
            except OSError:
                snapshot.remove()
                raise
        except FileNotFoundError:
            continue  # one of them was merged with others, or dropped
        except OSError as error:
            _logger.warning("segments in %s cannot be linked, so all is read through Python: %s", data, error)
            return None


@cache
def _folder(data: Path) -> Path:
    """Return this process's own folder for the segments of a data folder."""
    snapshots = data / "snapshots"
    snapshots.mkdir(exist_ok=True)
    for other in snapshots.iterdir():
        if other.suffix != ".begun":
            _remove_unless_used(other)
    folder = snapshots / f"spark-{uuid4()}"
    begun = folder.with_suffix(".begun")
    begun.mkdir()
    descriptor = os.open(begun / "lock", os.O_CREAT | os.O_RDWR, 0o644)
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
