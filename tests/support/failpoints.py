"""Named failpoints: any write, sync, rename or commit of a data folder can fail, be partial or be the last.

points = Failpoints()
machine = Machine(folder, files=lambda _: FailpointFiles(points))
points.arm("index write", Fail(errno.ENOSPC))
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.durable import OpenFiles

_KINDS = [
    (".arrow", "segment"),
    (".arrow.index", "index"),
    (".arrow.tail", "tail"),
    (".arrow.index.tmp", "new index"),
    (".parquet.tmp", "parquet"),
    (".parquet", "parquet"),
    (".parquet.index.tmp", "parquet index"),
    (".parquet.index", "parquet index"),
    (".parquet.footer.tmp", "footer"),
    (".parquet.footer", "footer"),
    ("probe.tmp", "probe"),
    ("format.tmp", "format"),
    ("boot.tmp", "boot"),
    ("boot", "boot"),
    ("lock", "lock"),
    ("state.sqlite", "state"),
]
"""By how a path ends, which file it is; the longest ending counts."""

FAILPOINTS = {
    "segment": ("open", "write", "sync", "truncate", "remove"),
    "index": ("open", "write", "sync", "truncate", "remove"),
    "tail": ("open", "write", "sync", "remove"),
    "new index": ("open", "write", "sync", "rename", "remove"),
    "parquet": ("open", "write", "sync", "rename", "remove"),
    "parquet index": ("open", "write", "sync", "rename", "remove"),
    "footer": ("open", "write", "sync", "rename", "remove"),
    "probe": ("open", "write", "sync", "remove"),
    "boot": ("open", "write", "sync", "rename", "remove"),
    "lock": ("open", "write", "truncate"),
    "state": ("open", "commit"),
    "part": ("open", "write", "sync", "rename", "remove"),
    "folder": ("make", "sync", "remove"),
}
"""All failpoints: by the file that it is about, the operations."""
NAMES = [f"{kind} {operation}" for kind, operations in FAILPOINTS.items() for operation in operations]


class Stopped(BaseException):
    """The end of the process. Only the test catches it."""


@dataclass
class Fail:
    """Fail with an error a number of times; a write may be partial."""

    error: int = errno.ENOSPC
    times: int = 1 << 30
    short: bool = False


@dataclass
class Stop:
    """End the process before or after the operation, or during a write."""

    after: bool = False
    short: bool = False
    really: bool = False
    """With os._exit, which ends the process that runs the test, too, unless that is another."""


Action = Fail | Stop


class Failpoints:
    """The failpoints that are armed, and those that were reached."""

    def __init__(self) -> None:
        self.armed: dict[str, Action] = {}
        self.reached: Counter[str] = Counter()
        self.hit: list[str] = []
        """Failpoints that did what they were armed with."""
        self.stopped = False

    def arm(self, name: str, action: Action) -> None:
        """Set what happens when a failpoint is reached."""
        assert name in NAMES, name
        self.armed[name] = action

    def heal(self) -> None:
        """Disarm all failpoints."""
        self.armed.clear()
        self.stopped = False

    def at(self, name: str, operation: Callable[[], None], part: Callable[[], None] | None = None) -> None:
        """Run an operation, or what its failpoint says; `part` runs a part of it."""
        if self.stopped:
            raise Stopped
        self.reached[name] += 1
        action = self.armed.get(name)
        if action is None:
            operation()
            return
        self.hit.append(name)
        if action.short and part is not None:
            part()
        if isinstance(action, Fail):
            action.times -= 1
            if action.times <= 0:
                del self.armed[name]
            raise OSError(action.error, os.strerror(action.error))
        if action.after:
            operation()
        if action.really:
            os._exit(3)
        self.stopped = True
        raise Stopped


def kind_of(path: Path) -> str:
    """Return the kind of file at a path."""
    if "staging" in path.parts:
        return "part"
    return max(_KINDS, key=lambda one: len(one[0]) if path.name.endswith(one[0]) else -1)[1]


class FailpointFiles(OpenFiles):
    """The real disk with failpoints, without waiting for syncs."""

    def __init__(self, points: Failpoints) -> None:
        super().__init__()
        self.points = points
        self._paths: dict[int, Path] = {}

    def make_folder(self, path: Path, parents: bool = False) -> None:
        self.points.at("folder make", lambda: super(OpenFiles, self).make_folder(path, parents))

    def open(self, path: Path) -> int:
        opened: list[int] = []
        self.points.at(f"{kind_of(path)} open", lambda: opened.append(super(FailpointFiles, self).open(path)))
        self._paths[opened[0]] = path
        return opened[0]

    def write(self, descriptor: int, pieces: Sequence[bytes | memoryview], at: int = -1) -> None:
        """Write; a partial write writes half."""
        base = super().write
        data = b"".join(pieces)
        self.points.at(
            f"{kind_of(self._paths[descriptor])} write",
            lambda: base(descriptor, [data], at),
            lambda: base(descriptor, [data[: len(data) // 2]], at),
        )

    def sync(self, descriptor: int) -> None:
        self.points.at(f"{kind_of(self._paths[descriptor])} sync", lambda: None)

    def truncate(self, descriptor: int, size: int) -> None:
        base = super().truncate
        self.points.at(f"{kind_of(self._paths[descriptor])} truncate", lambda: base(descriptor, size))

    def sync_folder(self, path: Path) -> None:
        self.points.at("folder sync", lambda: None)

    def rename(self, old: Path, new: Path) -> None:
        base = super().rename
        self.points.at(f"{kind_of(old)} rename", lambda: base(old, new))

    def remove(self, path: Path) -> None:
        base = super().remove
        self.points.at(f"{kind_of(path)} remove", lambda: base(path))

    def remove_folder(self, path: Path) -> None:
        base = super().remove_folder
        self.points.at("folder remove", lambda: base(path))

    def commit(self, path: Path, cursor: sqlite3.Cursor) -> None:
        base = super().commit
        self.points.at(f"{kind_of(path)} commit", lambda: base(path, cursor))
