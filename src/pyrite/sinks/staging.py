"""Staged parts of sinks: files of messages that are not published yet.

DIR/staging/SINK/PART.arrow    an Arrow stream: topic, payload, and optionally other columns of query.SCHEMA

A part is durable once its file has this name. A commit (commit.py) publishes the part and removes the file.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa

from pyrite.sinks.rows import check_rows, check_schema
from pyrite.storage.files import Appending, Files
from pyrite.storage.query import QueryError

NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Names of sinks and parts."""
FILE = re.compile(r"([0-9a-f]{16}-)?[A-Za-z0-9_-]{1,128}")
"""File names of parts: each user's parts have a prefix."""
ROWS = 16_384
"""Rows read at once."""
KEPT = 24 * 3600.0
"""Seconds after which an uncommitted part is removed."""
STEP = 8 * 1024 * 1024
"""Bytes of a part between two checks for room."""
BLOCK = 4096
"""Minimum bytes that a file counts for."""


def check_name(kind: str, name: str) -> str:
    """Return a valid name of a sink or part; raise QueryError for an invalid one."""
    if not NAME.fullmatch(name):
        raise QueryError(f"{kind} {name!r}: expected up to 128 letters, digits, '-' and '_'")
    return name


class Staging:
    """The folder with staged parts."""

    def __init__(self, data: Path, files: Files | None = None) -> None:
        self.folder = data / "staging"
        self._files = files or Files()

    def path(self, sink: str, part: str) -> Path:
        """Return the file of a part."""
        if not FILE.fullmatch(part):
            raise QueryError(f"part {part!r}: expected up to 128 letters, digits, '-' and '_'")
        return self.folder / check_name("sink", sink) / f"{part}.arrow"

    def write(
        self,
        sink: str,
        part: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        check_room: Callable[[], object] = bool,
    ) -> int:
        """Write a part, replacing one with the same name; return the number of rows once they are durable.

        `check_room` is called as the part grows; it raises an error if there is no room.
        """
        check_schema(schema)
        path = self.path(sink, part)
        for folder in (self.folder, path.parent):
            self._files.make_folder(folder, parents=True)
        temporary = path.with_suffix(f".{os.getpid()}-{time.monotonic_ns()}.tmp")
        count = asked = 0
        try:
            with closing(Appending(self._files, temporary)) as file:
                with pa.ipc.new_stream(file, schema) as writer:
                    for rows in batches:
                        check_rows(rows)
                        writer.write_batch(rows)
                        count += rows.num_rows
                        if file.tell() - asked >= STEP:
                            asked = file.tell()
                            check_room()
                file.sync()
            self._files.rename(temporary, path)
            for folder in (path.parent, self.folder, self.folder.parent):
                self._files.sync_folder(folder)
        except BaseException as error:
            self._files.remove(temporary)
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                text = f"cannot write part {part!r} of sink {sink!r}: {error.strerror or error}"
                raise QueryError(text) from None
            raise
        return count

    def remove(self, sink: str, parts: Sequence[str] | None, needed: Collection[str] = ()) -> None:
        """Remove parts, or all parts, except those that are still needed."""
        folder = self.folder / check_name("sink", sink)
        paths = _files_in(folder) if parts is None else [self.path(sink, part) for part in parts]
        for path in paths:
            if path.stem not in needed:
                self._files.remove(path)
        self._remove_if_empty(folder)

    def missing(self, sink: str, parts: Sequence[str]) -> list[str]:
        """Return the parts that were not staged."""
        return [part for part in parts if not self.path(sink, part).exists()]

    def size(self, counts: Callable[[str, str], bool]) -> int:
        """Return the bytes of the parts for which `counts(sink, part)` is true."""
        found = 0
        for folder in _files_in(self.folder):
            for path in _files_in(folder):
                part = path.name.partition(".")[0]  # also of a temporary file
                if counts(folder.name, part):
                    with suppress(FileNotFoundError):
                        found += max(path.stat().st_size, BLOCK)
        return found

    def read(self, sink: str, parts: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts in order, `ROWS` at a time, from memory-mapped files."""
        for part in parts:
            with pa.memory_map(str(self.path(sink, part))) as file, pa.ipc.open_stream(file) as reader:
                for rows in reader:
                    for at in range(0, rows.num_rows, ROWS):
                        yield rows.slice(at, ROWS)

    def tidy(self, keep: Callable[[str], bool]) -> None:
        """Remove old uncommitted parts, except of sinks for which `keep` is true."""
        before = time.time() - KEPT
        for folder in _files_in(self.folder):
            if keep(folder.name):
                continue
            for path in _files_in(folder):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        self._files.remove(path)
            self._remove_if_empty(folder)

    def _remove_if_empty(self, folder: Path) -> None:
        with suppress(OSError):
            self._files.remove_folder(folder)


def _files_in(folder: Path) -> list[Path]:
    """Return the entries of a folder; none if it does not exist (any more)."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
