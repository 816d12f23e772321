"""A process of the demo: start, read output, wait, and end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from pyrite.pipeline.errors import PipelineError

STOP_TIMEOUT = 30.0
"""Seconds that a process may take to end after SIGTERM."""
_ERROR = re.compile(r"pyrite[a-z ]*: ")


class DemoProcess:
    """A `pyrite` command that runs during a `with` block; its output lines are kept and passed to `tell`."""

    def __init__(
        self, name: str, folder: Path, *arguments: str, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self.name = name
        self.lines: list[str] = []
        """The lines printed so far."""
        self._tell = tell
        # Ctrl-C goes to the demo, which ends its processes in order.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "pyrite", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                self.lines.append(line.rstrip())
                self._tell(line.rstrip())

    @property
    def ended(self) -> bool:
        """True if the process has ended and all of its output was read."""
        if self._process.poll() is None:
            return False
        self._reader.join(STOP_TIMEOUT)
        return True

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.returncode

    def error(self) -> PipelineError:
        """Return an exception with the last error line of the process, or its last line."""
        why = [line for line in self.lines if _ERROR.match(line)] or self.lines or ["nothing"]
        return PipelineError(f"{self.name} ended with exit code {self.code}: {why[-1]}")

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_TIMEOUT)
