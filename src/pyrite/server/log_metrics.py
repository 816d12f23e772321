"""Metrics of the log: duration of commits, and sizes of streams."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from pyrite.broker.figures import Figures
from pyrite.broker.journal import Stream
from pyrite.journal.group import Group
from pyrite.journal.workers import ThreadWorker, raised
from pyrite.process.fair import NO_ONE, Asker
from pyrite.storage.stream import chosen

Result = TypeVar("Result")

SETTLED = 50_000_000
"""Nanoseconds after which the next change of a folder certainly has another modification time."""


class CommitWorker(ThreadWorker):
    """The thread that writes the log, and measures its commits."""

    def __init__(self, name: str, post: Callable[[Callable[[], object]], object]) -> None:
        super().__init__(name, post)
        self.figures: Figures | None = None
        """The broker's counters, once the broker exists."""
        self.ends: dict[Stream, int] = {}
        """The next offset of each stream after the last commit."""

    def run(
        self,
        job: Callable[[], Result],
        then: Callable[[Result], object],
        failed: Callable[[Exception], Result] = raised,
        asker: Asker = NO_ONE,
    ) -> None:
        """Run a job like any worker, and count it if it is a commit."""
        began = time.monotonic()

        def told(result: Result) -> None:
            if isinstance(result, Group):
                self._count(result, time.monotonic() - began)
            then(result)

        super().run(job, told, failed)

    def _count(self, group: Group, seconds: float) -> None:
        figures = self.figures
        if figures is None:
            return
        for stream, gathering in group.gathered.items():
            messages = gathering.end - self.ends.get(stream, 0)
            self.ends[stream] = gathering.end
            if stream not in group.faults:
                figures.log_messages += messages
        if not group.faults:
            figures.log_bytes += group.size
            figures.log_commits += 1
            figures.commit_times.append(seconds)


class StreamSize(NamedTuple):
    """The size of a stream on disk."""

    bytes: int
    segments: int


class Sizes:
    """Sizes of streams on disk, measured in another thread."""

    def __init__(
        self, folders: Mapping[str, Path], work: Callable[[Callable[[], object]], object] | None = None
    ) -> None:
        self._folders = {name: _Folder(path) for name, path in folders.items()}
        self._work = work
        """Calls a function in the event loop, then flushes what the broker has to send."""
        self.known: dict[str, StreamSize] = {}
        """The last measured sizes, by stream."""
        self._waiting: list[Callable[[Mapping[str, StreamSize]], object]] = []
        self._is_measuring = False

    def measure(self, then: Callable[[Mapping[str, StreamSize]], object]) -> None:
        """Measure all streams, and call `then` with the sizes. Called in the event loop's thread."""
        if not self._folders:
            then(self.known)
            return
        self._waiting.append(then)
        if not self._is_measuring:
            self._begin()

    def _begin(self) -> None:
        self._is_measuring = True
        waiting, self._waiting = self._waiting, []
        measured = asyncio.get_running_loop().run_in_executor(None, self._measure_all)
        measured.add_done_callback(lambda future: self._measured(future.result(), waiting))

    def _measured(
        self, sizes: dict[str, StreamSize], waiting: list[Callable[[Mapping[str, StreamSize]], object]]
    ) -> None:
        self.known.update(sizes)
        self._is_measuring = False
        assert self._work is not None
        for then in waiting:
            self._work(partial(then, self.known))
        if self._waiting:
            self._begin()

    def _measure_all(self) -> dict[str, StreamSize]:
        sizes = {}
        for name, folder in self._folders.items():
            try:
                sizes[name] = folder.measure()
            except OSError:
                pass  # a segment was just removed; measured the next time
        return sizes


class _Folder:
    """A stream's folder. Parquet files never change, so they are measured only when the folder changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self._sealed_bytes = 0
        self._segments = 0
        self._growing: list[str] = []

    def measure(self) -> StreamSize:
        """Return the total size of the files, and the number of segments."""
        changed = self._path.stat().st_mtime_ns
        if changed != self._changed:
            self._sealed_bytes, self._growing = 0, []
            names = []
            with os.scandir(self._path) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if entry.name.endswith(".parquet"):
                        self._sealed_bytes += entry.stat().st_size
                    else:
                        self._growing.append(entry.path)
            self._segments = len(chosen(names))
            is_settled = time.time_ns() - changed > SETTLED
            self._changed = changed if is_settled else -1
        growing = sum(os.stat(path).st_size for path in self._growing)
        return StreamSize(self._sealed_bytes + growing, self._segments)
