"""A program in a process of its own, and what it prints."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

CLASSIC = Path(__file__).parents[2] / "classic"


class Program:
    """A classic program, started in a process of its own; `merged`: with its errors among its output."""

    def __init__(self, *arguments: str, python: str = sys.executable, merged: bool = False) -> None:
        self.process = subprocess.Popen(
            [python, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def line(self, seconds: float = 20) -> str:
        """Return the next line that it prints."""
        return self._lines.get(timeout=seconds)

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        """Wait for its end, after a signal if there is one; return its exit code and what it printed."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(10)
        rest = ""
        while True:
            try:
                rest += self._lines.get_nowait()
            except Empty:
                break
        errors = ""
        if self.process.stderr is not None:
            errors = self.process.stderr.read()
            self.process.stderr.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code, rest, errors


Start = Callable[..., Program]
