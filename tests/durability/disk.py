"""A disk small enough to be filled: a tmpfs, mounted as root or in a user namespace."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from types import TracebackType

SIZE = 12 * 1024 * 1024
BLOCK = 4096


class CannotMount(Exception):
    """A tmpfs cannot be mounted here; the message says why."""


class SmallDisk:
    """A small disk, gone at the end of a `with` block."""

    def __init__(self, folder: Path) -> None:
        self._mounted = folder / "disk"
        self._mounted.mkdir()
        self.path = self._mounted
        """Where it is, for who is in the namespace."""
        self.here = self._mounted
        """Where it is, for the test."""
        self.before: tuple[str, ...] = ()
        """What to put before a command for it to see the disk."""
        self._holder: subprocess.Popen[str] | None = None
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self._mounted)]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode == 0:
            return
        script = f"{' '.join(mount)} && echo mounted && read line"
        self._holder = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "mounted\n":
            _, errors = self._holder.communicate(timeout=10)
            raise CannotMount(f"a tmpfs cannot be mounted: {done.stderr.strip()}; {errors.strip()}")
        pid = self._holder.pid
        self.before = ("nsenter", "-t", str(pid), "-U", "-m", "--preserve-credentials")
        self.here = Path(f"/proc/{pid}/root{self._mounted}")

    @property
    def _ballast(self) -> Path:
        return self.here / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Fill the disk up to this many free bytes."""
        with self._ballast.open("ab", buffering=0) as file:
            for block in (1 << 20, BLOCK):
                try:
                    for _ in range(SIZE // block + 1):
                        file.write(bytes(block))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
            file.truncate(max(0, file.tell() - leave))

    def make_room(self) -> None:
        """Remove the file that fills the disk."""
        self._ballast.unlink()

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holder is None:
            subprocess.run(["umount", "--lazy", str(self._mounted)], check=True)
        else:
            self._holder.communicate("\n", timeout=10)
