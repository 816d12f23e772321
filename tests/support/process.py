"""A real broker in its own process, on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.forking import ForkedProcess, fork_server

START_TIME = 120.0
"""Seconds that a broker has to say that it is ready."""
STOP_TIME = 10.0
"""Seconds that a broker has to end, once it was told to."""


class BrokerProcess:
    """`pyrite serve` with some arguments, stopped at the end of a `with` block.

    `urls` are its listeners as printed, with their real ports. `before` is put before the command, as in
    `unshare -rm`. Without `wait`, the constructor returns before the broker is ready.
    """

    def __init__(
        self, *arguments: str, cwd: Path | None = None, before: Sequence[str] = (), wait: bool = True
    ) -> None:
        inherited = os.environ.get("PYTHONPATH", "")
        folders = [one for one in (str(cwd or ""), inherited) if one]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
        self.process: subprocess.Popen[str] | ForkedProcess
        if not before and sys.platform == "linux" and fork_server().can_start(environment):
            self.process = fork_server().start(["serve", *arguments], cwd, environment)
        else:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "pyrite", "serve", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=cwd,
                env=environment,
            )
        self.urls: list[str] = []
        self.found: list[str] = []
        """What the broker said of its data folder: a line for each stream, and for each damage."""
        self.log: list[str] = []
        """What the broker wrote to standard error."""
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        if wait:
            self.wait_until_ready()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))

    def wait_until_ready(self) -> None:
        """Return when the broker serves clients; raise RuntimeError if it ends before."""
        while True:
            line = self._lines.get(timeout=START_TIME)
            if line is None:
                self.stop()
                raise RuntimeError("the broker did not start: " + "\n".join(self.log))
            if line == "pyrite ready":
                return
            if line.startswith(("stream ", "damaged: ")):
                self.found.append(line)
            else:
                assert line.startswith("listening on "), line
                self.urls.append(line.removeprefix("listening on "))

    def port(self, number: int = 0) -> int:
        """Return the port of a listener, by its index among the arguments."""
        port = urlsplit(self.urls[number]).port
        assert port is not None
        return port

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the broker by a signal and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(STOP_TIME)
        for reader in self._readers:
            reader.join(5)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
