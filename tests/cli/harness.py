"""Runs the commands as a user would, and brokers for them to connect to."""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SECONDS = 30.0
PYRITE = (sys.executable, "-m", "pyrite")


class Running:
    """A process whose output is read line by line while it runs."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._lines: dict[str, queue.Queue[bytes | None]] = {"stdout": queue.Queue(), "stderr": queue.Queue()}
        self._seen = {"stdout": bytearray(), "stderr": bytearray()}
        self._threads = []
        for name in self._lines:
            thread = threading.Thread(
                target=self._gather, args=(name, getattr(self.process, name)), daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _gather(self, name: str, stream: IO[bytes]) -> None:
        for line in stream:
            self._lines[name].put(line)
        self._lines[name].put(None)

    def wait_for(self, text: str, stream: str = "stderr") -> str:
        """Wait for a line that contains this text, and return it."""
        deadline = time.monotonic() + SECONDS
        while True:
            line = self._lines[stream].get(timeout=max(0.0, deadline - time.monotonic()))
            assert line is not None, f"{text!r} was not among {self._seen[stream]!r}"
            self._seen[stream] += line
            if text.encode() in line:
                return line.decode().strip()

    def output(self, stream: str = "stdout") -> bytes:
        """Wait for the process to exit, and return all of its output."""
        self.process.wait(SECONDS)
        while (line := self._lines[stream].get(timeout=SECONDS)) is not None:
            self._seen[stream] += line
        self._lines[stream].put(None)
        return bytes(self._seen[stream])

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def exit_code(self) -> int:
        return self.process.wait(SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        for thread in self._threads:
            thread.join(SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass


@contextmanager
def serving(port: int = 0) -> Iterator[tuple[Running, int]]:
    """Run a Pyrite broker; yields the process and its port."""
    broker = Running(*PYRITE, "serve", "--ephemeral", "--listen", f"mqtt://127.0.0.1:{port}")
    try:
        line = broker.wait_for("listening on mqtt://", "stdout")
        broker.wait_for("pyrite ready", "stdout")
        yield broker, int(line.rpartition(":")[2])
        broker.process.send_signal(signal.SIGTERM)
        broker.exit_code()
    finally:
        broker.close()


class Commands:
    """Runs subcommands with the options that connect to one broker."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.running: list[Running] = []

    def run(self, command: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        line = [*PYRITE, command, *self.options, *arguments]
        return subprocess.run(line, input=stdin, capture_output=True, timeout=2 * SECONDS, check=False)

    def publish(self, *arguments: str, stdin: bytes = b"") -> None:
        result = self.run("pub", *arguments, stdin=stdin)
        assert (result.returncode, result.stderr) == (0, b"")

    def start(self, command: str, *arguments: str) -> Running:
        running = Running(*PYRITE, command, *self.options, *arguments)
        self.running.append(running)
        return running

    def subscribe(self, *arguments: str) -> Running:
        """Start `pyrite sub` and wait for SUBACK."""
        running = self.start("sub", "-d", *arguments)
        running.wait_for("subscribed to")
        return running

    def close(self) -> None:
        for running in self.running:
            running.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(frozen=True)
class Mosquitto:
    """Ports and paths of a mosquitto with passwords, which lets ann use allowed/# only."""

    plain: int
    tls: int
    websockets: int
    unix: Path
    ca: Path
