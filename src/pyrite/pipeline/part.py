"""A process that is a part of the demo: started, listened to, waited for, and ended."""

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

END_TIME = 30.0
"""Seconds that it has to end, once it was told to."""
_ERROR = re.compile(r"pyrite[a-z ]*: ")


class PartFailed(Exception):
    """A process of the demo did not do what it was there for; the text says which, and why."""


class Part:
    """A command of Pyrite's, for the time of a `with` block. What it says is kept, and told to `tell`."""

    def __init__(
        self, name: str, folder: Path, *arguments: str, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self.name = name
        self.lines: list[str] = []
        """What it has said so far."""
        self._tell = tell
        # Ctrl-C is for us: we end them in order.
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
        """Whether it is over; then all that it has said is known."""
        if self._process.poll() is None:
            return False
        self._reader.join(END_TIME)
        return True

    @property
    def code(self) -> int | None:
        """With which code it has ended."""
        return self._process.returncode

    def error(self) -> PartFailed:
        """Return that it has ended, and why: the last line in which a command says so, or the last of all."""
        why = [line for line in self.lines if _ERROR.match(line)] or self.lines or ["nothing"]
        return PartFailed(f"{self.name} ended with code {self.code}; it said: {why[-1]}")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(END_TIME)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(END_TIME)
