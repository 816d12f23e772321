"""One broker with every kind of listener, and third-party clients that connect to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from uuid import uuid4

import pytest
import trustme

from tests.support.process import BrokerProcess

from .aiomqtt_client import AiomqttClient, Loop
from .client import VERSIONS, Address, Certificates, Client, ClientFactory
from .mosquitto_client import MosquittoClient
from .mqttjs_client import MqttjsClient, Node, install
from .paho_client import PahoClient

WEBSOCKET_PATH = "/mqtt"


def need(condition: object, reason: str) -> None:
    """Skip the test unless the condition holds; fail it if PYRITE_NOTHING_SKIPPED is set."""
    if condition:
        return
    if os.environ.get("PYRITE_NOTHING_SKIPPED"):
        pytest.fail(f"{reason}, and PYRITE_NOTHING_SKIPPED is set")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "client.pem")
    authority.cert_pem.write_to_path(made.ca)
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(made.server)
    authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(made.client)
    made.server.chmod(0o600)
    return made


@pytest.fixture(scope="session")
def addresses(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Address]]:
    """The listeners of a running broker, by transport."""
    folder = tmp_path_factory.mktemp("broker")
    config = folder / "pyrite.toml"
    config.write_text(
        f"""
        data = "{folder / "data"}"
        log_level = "warning"
        [tls]
        certificate = "{certificates.server}"
        """
    )
    schemes = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}
    # A Unix socket's path must be short, and those of tmp_path_factory are not always.
    with tempfile.TemporaryDirectory(prefix="pyrite-") as short:
        arguments = ["--config", str(config)]
        for transport, scheme in schemes.items():
            path = WEBSOCKET_PATH if transport in ("ws", "wss") else ""
            arguments += ["--listen", f"{scheme}://127.0.0.1:0{path}"]
        socket = f"{short}/broker.socket"
        with BrokerProcess(*arguments, "--listen", f"unix://{socket}", cwd=folder) as broker:
            found = {"unix": Address("unix", path=socket)}
            for number, transport in enumerate(schemes):
                found[transport] = Address(
                    transport,
                    broker.port(number),
                    WEBSOCKET_PATH if transport in ("ws", "wss") else "",
                    certificates.ca if transport in ("tls", "wss") else None,
                )
            yield found
        assert broker.log == [], "these clients do nothing that the broker warns about"


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    need(shutil.which("node") and shutil.which("npm"), "node and npm are not installed")
    try:
        install()
    except subprocess.SubprocessError as error:
        need(False, f"npm could not install MQTT.js: {error} {getattr(error, 'stderr', '')!r}")
    process = Node()
    yield process
    process.close()


@pytest.fixture
def new_client(addresses: dict[str, Address], request: pytest.FixtureRequest) -> Iterator[ClientFactory]:
    """Return a function that makes a client from the names of a library, a transport and a version."""
    clients: list[Client] = []

    def new(name: str, transport: str, version: str) -> Client:
        address, level = addresses[transport], VERSIONS[version]
        client: Client
        if name == "aiomqtt":
            client = AiomqttClient(address, level, request.getfixturevalue("loop_thread"))
        elif name == "mqttjs":
            client = MqttjsClient(address, level, request.getfixturevalue("node"))
        elif name == "mosquitto":
            commands = ("mosquitto_pub", "mosquitto_sub", "stdbuf")
            missing = [command for command in commands if not shutil.which(command)]
            need(not missing, f"not installed: {', '.join(missing)}")
            client = MosquittoClient(address, level)
        else:
            client = PahoClient(address, level)
        clients.append(client)
        return client

    yield new
    for client in clients:
        client.close()


@pytest.fixture
def client(new_client: ClientFactory, request: pytest.FixtureRequest) -> Client:
    """One client, chosen by `every_client` and the other marks of matrix.py."""
    name, transport, version = request.param
    return new_client(name, transport, version)


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test uses."""
    return f"interop/{uuid4().hex}"
