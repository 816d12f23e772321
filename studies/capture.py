"""Captures: what tshark saw on the wire."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

from studies.machine import StudyError

SNAPSHOT = 160
"""Bytes kept of each packet: its headers, and the line that a frame begins with."""
BUFFER = "64"
"""MiB that the kernel may keep while tshark is busy."""
LARGEST = 200_000
"""KiB after which a capture ends by itself."""
_START_TIME = 20.0
_READ_TIME = 180.0


class Capture:
    """A capture of one interface into a file, for as long as a `with` block lasts."""

    def __init__(self, path: Path, wanted: str, interface: str = "lo", seconds: float = 600) -> None:
        self.path = path
        self._messages = path.with_suffix(".txt")
        self._command = [
            "tshark", "-i", interface, "-f", wanted, "-s", str(SNAPSHOT), "-B", BUFFER, "-w", str(path), "-q",
            "-a", f"duration:{seconds:.0f}", "-a", f"filesize:{LARGEST}",
        ]  # fmt: skip
        self.dropped = 0
        """Packets that went by and that tshark had no room for."""

    def __enter__(self) -> Self:
        with self._messages.open("wb") as messages:
            self._process = subprocess.Popen(  # noqa: S603
                self._command, stdout=subprocess.DEVNULL, stderr=messages, env=_environment(self.path.parent)
            )
        try:
            self._wait_until_it_captures()
        except BaseException:
            self._end()
            raise
        return self

    def _wait_until_it_captures(self) -> None:
        deadline = time.monotonic() + _START_TIME
        while "Capture started" not in (said := self._messages.read_text(errors="replace")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StudyError(f"tshark does not capture (that takes root): {said.strip()}")
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        time.sleep(0.3)  # for what is on its way to the file
        self._end()
        found = re.search(r"(\d+) packets? dropped", self._messages.read_text(errors="replace"))
        self.dropped = int(found[1]) if found else 0

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def rows(self, *fields: str, only: str = "") -> list[list[str]]:
        """Return fields of the packets that a display filter lets through, as texts."""
        command = ["tshark", "-r", str(self.path), "-T", "fields", "-E", "occurrence=f"]
        for field in fields:
            command += ["-e", field]
        if only:
            command += ["-Y", only]
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_READ_TIME, env=_environment(self.path.parent)
        )
        if done.returncode:
            raise StudyError(f"tshark cannot read its capture: {done.stderr.strip()}")
        return [row.split("\t") for row in done.stdout.splitlines()]


def _environment(home: Path) -> dict[str, str]:
    """Return an environment in which no one's own settings of Wireshark change what is read."""
    return os.environ | {"HOME": str(home), "LC_ALL": "C.UTF-8"}
