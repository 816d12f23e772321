"""Figures of the log that the broker itself cannot know: what commits take, and how large streams are."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pyrite.broker.figures import Figures
from pyrite.broker.journal import Stream
from pyrite.journal.disk import Group
from pyrite.journal.workers import ThreadWorker, raised
from pyrite.process.fair import NO_ONE, Asker

Result = TypeVar("Result")

SETTLED = 50_000_000
"""Nanoseconds after which a second change of a folder has another time of change than the first."""


class CommitWorker(ThreadWorker):
    """The thread that writes the log, with an eye on the clock: once a commit, never for a message."""

    def __init__(self, name: str, post: Callable[[Callable[[], object]], object]) -> None:
        super().__init__(name, post)
        self.figures: Figures | None = None
        """Where commits are noted, as soon as there is a broker."""
        self.ends: dict[Stream, int] = {}
        """Up to where each stream has been written."""

    def run(
        self,
        job: Callable[[], Result],
        then: Callable[[Result], object],
        failed: Callable[[Exception], Result] = raised,
        asker: Asker = NO_ONE,
    ) -> None:
        """Do a job, as any worker; if it is a commit, note what came of it."""
        began = time.monotonic()

        def told(result: Result) -> None:
            if isinstance(result, Group):
                self._note(result, time.monotonic() - began)
            then(result)

        super().run(job, told, failed)

    def _note(self, group: Group, seconds: float) -> None:
        figures = self.figures
        if figures is None:
            return
        for stream, gathering in group.gathered.items():
            count = gathering.end - self.ends.get(stream, 0)
            self.ends[stream] = gathering.end
            if stream not in group.faults:
                figures.log_messages += count
        if not group.faults:
            figures.log_bytes += group.size
            figures.log_commits += 1
            figures.commit_times.append(seconds)


class Sizes:
    """How many bytes streams have on disk; measured in another thread, so what is told is a moment old."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._streams = {name: _Folder(path) for name, path in folders.items()}
        self._known: dict[str, int] = {}
        self._measuring: asyncio.Future[None] | None = None

    def __call__(self) -> Mapping[str, int]:
        """Return the sizes that are known, and have them measured again. In the event loop's thread."""
        if self._measuring is None or self._measuring.done():
            loop = asyncio.get_running_loop()
            self._measuring = loop.run_in_executor(None, self._measure)
        return self._known

    def _measure(self) -> None:
        for name, folder in self._streams.items():
            try:
                self._known[name] = folder.size()
            except OSError:
                pass  # a segment went meanwhile: the next time


class _Folder:
    """A stream's folder. Parquet never changes: while no name comes or goes, few files are looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self._settled = 0
        self._growing: list[str] = []

    def size(self) -> int:
        """Return the bytes of all files."""
        changed = self._path.stat().st_mtime_ns
        if changed != self._changed:
            self._settled, self._growing = 0, []
            with os.scandir(self._path) as entries:
                for entry in entries:
                    if entry.name.endswith(".parquet"):
                        self._settled += entry.stat().st_size
                    else:
                        self._growing.append(entry.path)
            settled = time.time_ns() - changed > SETTLED
            self._changed = changed if settled else -1
        return self._settled + sum(os.stat(path).st_size for path in self._growing)
