"""Brokers on every kind of listener, and certificates for the encrypted ones."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import trustme

from tests.support.process import BrokerProcess

from .peers import SCHEMES, Server, close_runner, trusting, unique


class Certificates:
    """An authority, the server's certificate from it, and one for a client."""

    def __init__(self, folder: Path) -> None:
        authority, other = trustme.CA(), trustme.CA()
        self.authority = folder / "authority.pem"
        self.server = folder / "server.pem"
        self.client = folder / "client.pem"
        self.stranger = folder / "stranger.pem"
        """A client certificate from an unknown authority."""
        authority.cert_pem.write_to_path(str(self.authority))
        authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
            str(self.server)
        )
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(
            str(self.client)
        )
        other.issue_cert("stranger@example.org").private_key_and_cert_chain_pem.write_to_path(
            str(self.stranger)
        )
        self.server.chmod(0o600)  # the broker warns about keys that others can read

    def context(self) -> ssl.SSLContext:
        """Return a client's TLS settings."""
        return trusting(self.authority)


class Serve(Protocol):
    """Starts a broker with a configuration on some kinds of listener. It ends with the test."""

    def __call__(self, config: str = "", *schemes: str, cwd: Path | None = None) -> Server: ...


@pytest.fixture(scope="session", autouse=True)
def _runner() -> Iterator[None]:
    yield
    close_runner()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def start(
    config: str, schemes: tuple[str, ...], folder: Path, certificates: Certificates, cwd: Path | None
) -> Server:
    """Start a broker; a configuration without [tls] gets one if a listener needs it."""
    if "[tls]" not in config and {"mqtts", "wss"} & set(schemes):
        config += f"\n[tls]\ncertificate = '{certificates.server}'\n"
    path = folder / "pyrite.toml"
    path.write_text(config)
    arguments = ["--ephemeral", "--config", str(path)]
    for scheme in schemes:
        where = folder / "socket" if scheme == "unix" else "127.0.0.1:0"
        arguments += ["--listen", f"{scheme}://{where}"]
    return Server(BrokerProcess(*arguments, cwd=cwd), certificates.context())


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Serve]:
    started: list[Server] = []

    def make(config: str = "", *schemes: str, cwd: Path | None = None) -> Server:
        folder = tmp_path_factory.mktemp("broker")
        started.append(start(config, schemes or ("mqtt",), folder, certificates, cwd))
        return started[-1]

    yield make
    try:
        for server in started:
            if server.process.process.poll() is None:
                server.stop()
    finally:
        for server in started:
            server.close_clients()
            server.process.process.kill()
            server.process.stop()  # closes its pipes


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("broker")
    server = start("[mqtt]\nsys_interval = 1\n", (*SCHEMES, "unix"), folder, certificates, None)
    yield server
    assert server.stop() == 0


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The broker that the tests of a worker share; its clients are closed after each test."""
    yield shared_server
    shared_server.close_clients()
    assert shared_server.process.process.poll() is None
    assert shared_server.complaints() == []


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return unique("topic")
