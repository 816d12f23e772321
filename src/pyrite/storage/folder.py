"""The data folder: its format, and its lock.

DIR/format            the version of the format
DIR/lock              locked by the broker that uses the folder
DIR/boot              the machine's boot id; removed when a broker ends in good order
DIR/streams/NAME/     the segments of a stream
DIR/tables/           streams as Iceberg tables (pyrite/tables)
DIR/snapshots/        links and copies for programs that read Parquet files (snapshot.py)
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from pyrite.errors import PyriteError
from pyrite.storage.files import OTHERS, Files, write_safely

logger = logging.getLogger(__name__)

FORMAT = "pyrite data, format 4\n"
_OLDER = ("pyrite data, format 3\n", "pyrite data, format 2\n")
"""Format 3 has no tails beside segments. Format 2 keeps pending messages of consumers elsewhere in the state;
they are moved when a broker starts.
"""
BOOT = Path("/proc/sys/kernel/random/boot_id")


TABLES = "tables"
LINKS = "data"


def links_of(stream: Path) -> Path:
    """Return the folder with hard links to the sealed segments of a stream that is a table."""
    return stream.parents[1] / TABLES / stream.name / LINKS


class FolderError(PyriteError):
    """The data folder cannot be used; the message says why."""


def check_format(path: Path) -> bool:
    """Return whether a folder states its format; raise FolderError if it is a format that this version cannot
    read.
    """
    try:
        found = (path / "format").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    if found not in (FORMAT, *_OLDER):
        raise FolderError(
            f"{path}: unsupported format {found.strip()!r}; this version of Pyrite reads {FORMAT.strip()!r}"
        )
    return True


def is_in_use(path: Path) -> bool:
    """Return whether a broker uses a data folder."""
    try:
        with (path / "lock").open("rb") as lock:
            if not lock.read(1):
                return False  # a broker that ended in good order emptied it
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class DataFolder:
    """A data folder that this process has locked, until it is closed."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()
        try:
            self._files.make_folder(path, parents=True)
            self._lock = self._files.open(path / "lock")
        except OSError as error:
            raise FolderError(f"{path}: cannot be used for data: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._lock, 32).decode(errors="replace").strip()
            os.close(self._lock)
            raise FolderError(
                f"{path}: another process uses this folder"
                + (f", a broker with process id {holder}" if holder else "")
                + "; stop it, or use a folder of its own with --data"
            ) from None
        if path.stat().st_mode & OTHERS:
            logger.warning(
                "%s: every user of this machine has access to this data folder; run chmod o= to end that",
                path,
            )
        try:
            self._note_holder()
            self._make_format()
            self._files.make_folder(self.streams)
        except BaseException:
            self.close()
            raise

    def _note_holder(self) -> None:
        try:
            self._files.truncate(self._lock, 0)
            self._files.write(self._lock, [f"{os.getpid()}\n".encode()], 0)
        except OSError as error:
            raise FolderError(f"{self.path / 'lock'}: cannot be written: {error.strerror}") from None

    def _make_format(self) -> None:
        """Check the format of the folder; if it states none and the folder is empty, make it a data folder.

        An older format is replaced before anything is written that an older version would take for damage.
        """
        file = self.path / "format"
        if check_format(self.path):
            if file.read_text(encoding="utf-8") != FORMAT:
                write_safely(self._files, file, FORMAT.encode())
            return
        ours = (
            "lock",
            "format.tmp",
            "lost+found",
        )  # left by a start that was cut short, or made by the file system
        others = [one.name for one in self.path.iterdir() if one.name not in ours]
        if others:
            raise FolderError(
                f"{self.path}: not a Pyrite data folder, and not empty (it contains {others[0]!r})"
            )
        write_safely(
            self._files, file, FORMAT.encode()
        )  # safe before there is data, which without it has no name

    @property
    def streams(self) -> Path:
        """The folder of the streams."""
        return self.path / "streams"

    def note_boot(self) -> bool:
        """Store the machine's boot id; return whether a broker died here before the machine was last started.

        Then what it wrote and did not sync may be lost, though others have read it.
        """
        file = self.path / "boot"
        try:
            now = BOOT.read_text()
        except OSError:  # a system without it
            return False
        before = file.read_text(errors="replace") if file.exists() else now
        write_safely(self._files, file, now.encode())
        return before != now

    def forget_boot(self) -> None:
        """Record that everything is safe."""
        self._files.remove(self.path / "boot")

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            try:
                self._files.truncate(self._lock, 0)
            finally:
                self._files.close(self._lock)
                self._lock = -1
