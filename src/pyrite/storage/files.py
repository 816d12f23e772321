"""Every write goes through this thin layer: few operations, so that tests can make each of them fail.

Nothing is safe before `sync`; the name of a new or renamed file is not safe before its folder is synced too.
Everything that is made belongs to the broker's own user alone.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

OWNER_ONLY = 0o600
"""Mode of new files."""
OWNER_ONLY_FOLDER = 0o700
OTHERS = 0o007
"""Mode bits that let every user of the machine in."""


class Files:
    """The real disk."""

    def make_folder(self, path: Path, parents: bool = False) -> None:
        """Make a folder, unless it exists."""
        path.mkdir(OWNER_ONLY_FOLDER, parents=parents, exist_ok=True)

    def open(self, path: Path) -> int:
        """Open a file for writing; make it if it does not exist."""
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, OWNER_ONLY)

    def write(self, descriptor: int, pieces: Sequence[bytes | memoryview], at: int = -1) -> None:
        """Write all pieces at `at`, or at the end, in as few system calls as possible."""
        if at < 0:
            at = os.lseek(descriptor, 0, os.SEEK_END)
        sent = os.pwritev(descriptor, pieces[:512], at)
        if sent == sum(map(len, pieces)):  # as nearly always
            return
        at += sent
        rest = [memoryview(b"".join(pieces))[sent:]]
        while rest:
            sent = os.pwritev(descriptor, rest[:512], at)
            at += sent
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if sent:
                rest[0] = rest[0][sent:]

    def sync(self, descriptor: int) -> None:
        """Return when everything that was written is on disk."""
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file to its first `size` bytes."""
        os.ftruncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file atomically."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Remove a file, unless it does not exist."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def commit(self, path: Path, cursor: sqlite3.Cursor) -> None:
        """Return when a transaction of the database at `path` is on disk."""
        cursor.execute("COMMIT")


class Appending:
    """A new file that is written from its beginning to its end through `Files`; a file object for pyarrow."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._descriptor = files.open(path)
        self.closed = False
        self.position = 0

    def write(self, data: bytes) -> int:
        self._files.write(self._descriptor, [data], self.position)
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the size so far."""
        return self.position

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def sync(self) -> None:
        """Return when everything is on disk."""
        self._files.sync(self._descriptor)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._files.close(self._descriptor)


def write_whole(files: Files, path: Path, pieces: Sequence[bytes]) -> None:
    """Replace a file's contents atomically; the name is safe when its folder is synced."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        files.remove(temporary)
        descriptor = files.open(temporary)
        try:
            files.write(descriptor, pieces)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
    except OSError as error:  # the error of a write does not name the file
        if not temporary.is_dir():
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_safely(files: Files, path: Path, data: bytes) -> None:
    """Replace a file's contents atomically, and return when they are safe."""
    write_whole(files, path, [data])
    files.sync_folder(path.parent)


def leads_to(path: Path, descriptor: int) -> bool:
    """Return whether a name still leads to an open file."""
    try:
        found, own = path.stat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
