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


class Sealed(NamedTuple):
    """The Parquet files with which a stream begins, and the offset after their last message."""

    files: list[Path]
    end: int


def sealed(data: Path, stream: str) -> Sealed:
    """Return the Parquet files that a stream begins with, under names that last as long as this process."""
    reader = StreamReader(data / "streams" / stream)
    while True:
        segments = []
        for segment in reader.segments():
            if not isinstance(segment, ParquetSegment):
                break
            segments.append(segment)
        if not segments:
            return Sealed([], 0)
        try:
            folder = _folder(data) / stream
            folder.mkdir(exist_ok=True)
            return Sealed([_link(segment.path, folder) for segment in segments], segments[-1].end())
        except FileNotFoundError:
            continue  # one of them was merged with others, or dropped
        except OSError as error:
            _logger.warning("segments in %s cannot be linked, so all is read through Python: %s", data, error)
            return Sealed([], 0)


def _link(path: Path, folder: Path) -> Path:
    link = folder / path.name
    if not link.exists():  # a segment's file is never changed once it has its name
        os.link(path, link)
    return link


@cache
def _folder(data: Path) -> Path:
    """Return this process's own folder for the segments of a data folder."""
    snapshots = data / "snapshots"
    snapshots.mkdir(exist_ok=True)
    for other in snapshots.iterdir():
        _remove_unless_used(other)
    folder = snapshots / f"spark-{uuid4()}"
    folder.mkdir()
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _remove_unless_used(folder: Path) -> None:
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return  # it is being made
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # whoever made it lives
    finally:
        os.close(descriptor)
