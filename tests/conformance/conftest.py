"""The broker under test and the clients of a test.

By default each worker starts its own `pyrite serve`. To run the suite against any other broker:

    PYRITE_CONFORMANCE_BROKER=127.0.0.1:1883 pytest tests/conformance
    PYRITE_CONFORMANCE_WEBSOCKET=127.0.0.1:8080/mqtt     (also, for the tests of section 6)

Tests that need a broker with a configuration of its own are then skipped.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import let_pass

from .client import Client, Tcp, WebSocket

START_TIMEOUT = 20.0
EXTERNAL = os.environ.get("PYRITE_CONFORMANCE_BROKER")
EXTERNAL_WEBSOCKET = os.environ.get("PYRITE_CONFORMANCE_WEBSOCKET")


class Broker:
    """The addresses of a broker and, if this suite started it, its process."""

    def __init__(self, tcp: str, websocket: str | None, process: subprocess.Popen[str] | None = None) -> None:
        self.host, _, port = tcp.rpartition(":")
        self.port = int(port)
        self.websocket = urlsplit(f"ws://{websocket}") if websocket else None
        self.process = process
        self._clients: list[Client] = []

    @classmethod
    def start(cls, config: str | None, folder: Path, python_path: Path | None = None) -> Broker:
        """Start `pyrite serve` on free ports and wait until it is ready."""
        command = [sys.executable, "-m", "pyrite", "serve"]
        command += ["--listen", "mqtt://127.0.0.1:0", "--listen", "ws://127.0.0.1:0/mqtt"]
        if config is not None:
            path = folder / "pyrite.toml"
            path.write_text(config)
            command += ["--config", str(path)]
        environment = dict(os.environ)
        if python_path is not None:
            paths = [str(python_path), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        errors = folder / "stderr"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=folder, env=environment
            )
        lines: queue.Queue[str] = queue.Queue()

        def pump() -> None:
            assert process.stdout is not None
            with process.stdout as output:
                for line in output:
                    lines.put(line.strip())
            lines.put("")

        threading.Thread(target=pump, daemon=True).start()
        addresses = {}
        while True:
            try:
                line = lines.get(timeout=START_TIMEOUT)
            except queue.Empty:
                process.kill()
                line = ""
            if line.startswith("listening on "):
                url = urlsplit(line.removeprefix("listening on ").split()[0])
                addresses[url.scheme] = url.netloc + url.path
            elif line == "pyrite ready":
                return cls(addresses["mqtt"].rstrip("/"), addresses.get("ws"), process)
            elif not line:
                process.wait(timeout=START_TIMEOUT)
                pytest.fail(f"the broker did not start: {' '.join(command)}\n{errors.read_text()}")

    def terminate(self) -> int:
        """Ask the broker to shut down and return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=START_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def open(self, version: int = 5) -> Client:
        """Open a network connection without sending anything."""
        client = Client(Tcp(self.host, self.port), version)
        self._clients.append(client)
        return client

    def open_websocket(self, version: int = 5, subprotocols: str | None = "mqtt") -> Client:
        if self.websocket is None:
            pytest.skip("no WebSocket listener is known (PYRITE_CONFORMANCE_WEBSOCKET)")
        host, port = self.websocket.hostname or "", self.websocket.port or 80
        client = Client(WebSocket(host, port, self.websocket.path or "/", subprotocols), version)
        self._clients.append(client)
        return client

    def connect(self, client_id: str | None = None, *, version: int = 5, **values: Any) -> Client:
        """Open a network connection and connect; a refusal fails the test."""
        client = self.open(version)
        connack = client.connect(f"c{uuid.uuid4().hex[:16]}" if client_id is None else client_id, **values)
        assert connack.reason == 0, f"the broker refused the connection: {connack}"
        return client

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()


def let_a_second_expire() -> None:
    """Let an interval of one second pass, and more for a server that looks at its clock once a second."""
    let_pass(2.1 if EXTERNAL else 1.3, "an interval of one second expires")


class StartBroker(Protocol):
    """Starts a broker with a configuration; it ends with the tests of the module."""

    def __call__(self, config: str, python_path: Path | None = None) -> Broker: ...


@pytest.fixture(scope="session")
def running_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if EXTERNAL:
        yield Broker(EXTERNAL, EXTERNAL_WEBSOCKET)
        return
    broker = Broker.start(None, tmp_path_factory.mktemp("broker"))
    yield broker
    assert broker.terminate() == 0


@pytest.fixture
def broker(running_broker: Broker) -> Iterator[Broker]:
    """The broker that the tests of a worker share; its clients are closed after each test."""
    yield running_broker
    running_broker.close_clients()


@pytest.fixture(scope="module")
def start_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartBroker]:
    if EXTERNAL:
        pytest.skip("needs a broker with a configuration of its own")
    started: list[Broker] = []

    def start(config: str, python_path: Path | None = None) -> Broker:
        started.append(Broker.start(config, tmp_path_factory.mktemp("broker"), python_path))
        return started[-1]

    yield start
    for broker in started:
        broker.close_clients()
        assert broker.process is not None
        if broker.process.poll() is None:
            broker.terminate()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names for topics and clients that no other test uses."""
    counter = itertools.count()
    run = uuid.uuid4().hex[:12]

    def make(label: str) -> str:
        return f"{label}{run}{next(counter)}"

    return make


@pytest.fixture
def topic(unique: Callable[[str], str]) -> str:
    """A topic name that no other test uses."""
    return f"conformance/{unique('t')}"


@pytest.fixture
def client_id(unique: Callable[[str], str]) -> str:
    """A client identifier that no other test uses."""
    return unique("c")
