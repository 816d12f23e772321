"""The thin layer through which the log writes: few operations, so that tests can play a disk that forgets.

Nothing is safe before `sync`; a new or renamed file's name is not safe before its folder is synced too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


class Files:
    """The real disk."""

    def open(self, path: Path) -> int:
        """Open a file for writing, made if it is not there."""
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)

    def write(self, descriptor: int, pieces: Sequence[bytes | memoryview], at: int = -1) -> None:
        """Write all pieces one after the other, from `at` on or at the end, in as few calls as it takes."""
        if at < 0:
            at = os.lseek(descriptor, 0, os.SEEK_END)
        rest = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        while rest:
            sent = os.pwritev(descriptor, rest[:512], at)
            at += sent
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if sent:
                rest[0] = rest[0][sent:]

    def sync(self, descriptor: int) -> None:
        """Return when everything that was written is on the disk."""
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file to its first `size` bytes."""
        os.ftruncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, at one stroke."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Give a file its contents at one stroke, and return when they are safe."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # that of a write does not say where
        if not temporary.is_dir():
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    Files().sync_folder(path.parent)
