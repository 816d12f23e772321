"""A browser sends its user's certificate for pages of any site, so the listener checks the origin."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.test_certificates import make_files
from tests.support.process import BrokerProcess

PUBLIC = "https://broker.example"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("origin")
    make_files(folder, certificate_user="'san'")
    with (folder / "pyrite.toml").open("a") as file:
        file.write(f'[http]\npublic_url = "{PUBLIC}/pyrite"\n')
    return folder


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("wss", "https")]
    with BrokerProcess("--config", "pyrite.toml", *listen, "--ephemeral", cwd=folder) as broker:
        yield broker


def status(broker: BrokerProcess, folder: Path, host: str, origin: str | None) -> int:
    """Request a WebSocket as a page would, with Ann's certificate, and return the status."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(str(folder / "ann.pem"))
    head = (
        f"GET /mqtt HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n" + (f"Origin: {origin}\r\n" if origin is not None else "") + "\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", broker.port()), 30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
    ):
        stream.sendall(head.encode())
        answer = stream.recv(1_000)
    return int(answer.split()[1])


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, 101),
        ("https://127.0.0.1:{wss}", 101),
        ("https://127.0.0.1:{https}", 101),
        (PUBLIC, 101),
        ("https://127.0.0.1", 403),
        ("http://127.0.0.1:{wss}", 403),
        ("https://localhost:{wss}", 403),
        ("https://elsewhere.example", 403),
        ("https://broker.example.elsewhere.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_page_of_another_origin_cannot_use_a_certificate(
    broker: BrokerProcess, folder: Path, origin: str | None, expected: int
) -> None:
    wss, https = (int(url.rpartition(":")[2].partition("/")[0]) for url in broker.urls)
    shown = None if origin is None else origin.format(wss=wss, https=https)
    assert status(broker, folder, f"127.0.0.1:{wss}", shown) == expected


@pytest.mark.parametrize("host", ["", "[", "a b", "127.0.0.1:99999"])
def test_an_invalid_host_header_is_refused(broker: BrokerProcess, folder: Path, host: str) -> None:
    assert status(broker, folder, host, "https://elsewhere.example") in (400, 403)
