"""Brokers for the client tests: a shared one with every kind of listener, and one that can be killed."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.server.conftest import Certificates
from tests.server.test_authenticator import PLUGIN
from tests.support.process import BrokerProcess

SCHEMES = ("mqtt", "mqtts", "ws", "wss", "unix")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Durable:
    """A broker with a data folder, always on the same port."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._folder = folder
        self._config = folder / "pyrite.toml"
        self._config.write_text(config)
        self.process: BrokerProcess | None = None
        self.start()

    def start(self) -> None:
        self.process = BrokerProcess(
            "--config", str(self._config), "--data", str(self._folder / "data"), "--listen", self.url
        )

    def kill(self) -> None:
        """Kill it, as a crash would."""
        assert self.process is not None
        self.process.stop(signal.SIGKILL)
        self.process = None

    async def restart(self) -> None:
        await asyncio.to_thread(self.kill)
        await asyncio.to_thread(self.start)

    def close(self) -> None:
        if self.process is not None:
            self.process.stop()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def urls(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[dict[str, str]]:
    """URLs of an in-memory broker, by scheme."""
    folder = tmp_path_factory.mktemp("broker")
    config = folder / "pyrite.toml"
    config.write_text(f"[tls]\ncertificate = '{certificates.server}'\n")
    arguments = ["--ephemeral", "--config", str(config)]
    for scheme in SCHEMES:
        where = folder / "socket" if scheme == "unix" else "127.0.0.1:0"
        arguments += ["--listen", f"{scheme}://{where}"]
    with BrokerProcess(*arguments) as broker:
        yield dict(zip(SCHEMES, broker.urls, strict=True))
        assert broker.process.poll() is None


@pytest.fixture
def url(urls: dict[str, str]) -> str:
    return urls["mqtt"]


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Durable]:
    broker = Durable(tmp_path)
    yield broker
    broker.close()


@pytest.fixture
def topic() -> str:
    """A topic used by one test only."""
    return f"topic-{uuid4().hex}"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """URL of a broker that requires a password."""
    (tmp_path / "doorman.py").write_text(PLUGIN)
    (tmp_path / "pyrite.toml").write_text("[mqtt]\nauthenticator = 'doorman:make'\n")
    arguments = ("--ephemeral", "--config", "pyrite.toml", "--listen", "mqtt://127.0.0.1:0")
    with BrokerProcess(*arguments, cwd=tmp_path) as broker:
        yield broker.urls[0]
