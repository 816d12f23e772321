"""A program in a separate process, and its output."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue

CHECKOUT = Path(__file__).parents[2]
CLASSIC = CHECKOUT / "classic"
PROGRAMS = sorted(
    f"{file.parent.name}/{file.name}"
    for file in CLASSIC.glob("*/*.py")
    if 'if __name__ == "__main__":' in file.read_text()
)


class Program:
    """A classic program in a separate process; `merged` adds stderr to its output."""

    def __init__(
        self,
        *arguments: str | bytes,
        python: str = sys.executable,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        typed: str | None = None,
        merged: bool = False,
    ) -> None:
        self.process = subprocess.Popen(
            [python, *arguments],
            stdin=subprocess.DEVNULL if typed is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=os.environ | dict(environment or {}),
        )
        if typed is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(typed)
            self.process.stdin.close()
        self.ended = False
        """True once its end was awaited and its files are closed."""
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def line(self, seconds: float = 20) -> str:
        """Return its next line of output."""
        return self._lines.get(timeout=seconds)

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        """Wait for its end, after an optional signal; returns exit code and remaining output."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(60)
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
        self.ended = True
        self.process.stdout.close()
        return code, rest, errors


Start = Callable[..., Program]
