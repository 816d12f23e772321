"""The broker under study: `pyrite serve` in a process and a folder of its own."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from pyrite.client.line import LineClient
from studies.machine import StudyError

SETTINGS: dict[str, dict[str, Any]] = {"mqtt": {"sys_interval": 0.2}}
"""Settings of every broker under study: its figures are to be fresh."""
LISTENERS = ("line://127.0.0.1:0", "udp://127.0.0.1:0")
SETTLED = 0.8
"""Seconds in which figures that have settled do not change: those of four updates."""
_START_TIME = 40.0
_STOP_TIME = 15.0


class Broker:
    """A broker, for as long as a `with` block lasts."""

    def __init__(
        self,
        settings: dict[str, dict[str, Any]] | None = None,
        listeners: Sequence[str] = LISTENERS,
        descriptors: int | None = None,
    ) -> None:
        self._settings = SETTINGS | (settings or {})
        self._listeners = listeners
        self._descriptors = descriptors
        self.ports: list[int] = []
        """One for each listener, in their order."""

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="pyrite-study-")
        folder = Path(self._folder.name)
        config = folder / "pyrite.toml"
        config.write_text(_toml(self._settings))
        self._output, self._log = folder / "output", folder / "log"
        command = [sys.executable, "-m", "pyrite", "serve", "--config", str(config)]
        # Others can reach it only in a network namespace that no one else is in.
        command += ["--data", str(folder / "data"), "--allow-anonymous"]
        for url in self._listeners:
            command += ["--listen", url]
        try:
            with self._output.open("wb") as output, self._log.open("wb") as log:
                self._process = subprocess.Popen(command, stdout=output, stderr=log)  # noqa: S603
        except BaseException:
            self._folder.cleanup()
            raise
        try:
            if self._descriptors is not None:  # of a process that has hardly begun
                bound = (self._descriptors, self._descriptors)
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, bound)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_TIME
        while "pyrite ready" not in (said := self._output.read_text()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StudyError(f"the broker did not start: {self.log().strip()}")
            time.sleep(0.02)
        urls = [row.split()[-1] for row in said.splitlines() if row.startswith("listening on ")]
        self.ports = [int(url.rpartition(":")[2]) for url in urls]

    def stop(self) -> None:
        """End the broker, and remove its folder."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_TIME)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def log(self) -> str:
        """Return what the broker has logged."""
        return self._log.read_text(errors="replace")

    def memory(self) -> int:
        """Return how many bytes of memory the broker's process has to itself (RssAnon).

        Without the pages of its libraries, of which the kernel maps as many as it likes.
        """
        for row in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if row.startswith("RssAnon"):
                return int(row.split()[1]) * 1024
        raise StudyError("the broker has ended: " + self.log().strip())

    def descriptors(self) -> int:
        """Return how many descriptors the broker's process has open."""
        return sum(1 for _ in Path(f"/proc/{self._process.pid}/fd").iterdir())

    def descriptor_limit(self) -> int:
        """Return how many descriptors the broker's process may have open."""
        return resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE)[0]

    def figures(self, client: LineClient) -> dict[str, float]:
        """Return the broker's own figures ($SYS), those that are numbers, by name."""
        found = {}
        for name, value in client.topics("$SYS/broker/#"):
            try:
                found[name.removeprefix("$SYS/broker/")] = float(value or b"")
            except ValueError:
                continue
        return found

    def settled(self, client: LineClient, *names: str, seconds: float = 20.0) -> dict[str, float]:
        """Return the figures when some of them have not changed for a while, or time is up."""
        deadline = time.monotonic() + seconds
        before, since = None, time.monotonic()
        while True:
            figures = self.figures(client)
            watched = [figures.get(name) for name in names]
            if watched != before:
                before, since = watched, time.monotonic()
            if time.monotonic() - since >= SETTLED or time.monotonic() > deadline:
                return figures
            time.sleep(0.1)


def _toml(settings: dict[str, dict[str, Any]]) -> str:
    tables = []
    for name, values in settings.items():
        rows = [f"{key} = {value}" for key, value in values.items()]
        tables.append("\n".join([f"[{name}]", *rows]))
    return "\n\n".join(tables) + "\n"


def dial(port: int, host: str = "127.0.0.1", receive_buffer: int | None = None) -> socket.socket:
    """Open a TCP connection to the broker."""
    connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if receive_buffer is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connected.settimeout(20)
        connected.connect((host, port))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connected.close()
        raise
    return connected
