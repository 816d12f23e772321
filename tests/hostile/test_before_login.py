"""Memory that clients can occupy before they log in, over every kind of stream."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from tests.conformance.wire import connect_packet
from tests.support.process import BrokerProcess

SCHEMES = ("mqtt", "ws", "mqtts", "wss")
STRANGERS = 200
MEBIBYTE = 1024 * 1024
PLAIN_BOUND, TLS_BOUND = 192 * 1024, 768 * 1024
"""Bytes for each stranger: with TLS, uvloop and OpenSSL have buffers of some 400 KiB for a connection."""
UNFINISHED = b"\x10\x80\x80\x40\x00\x04MQTT\x05\x02\x00\x00"
"""The beginning of a CONNECT of 1 MiB."""
HANDSHAKE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n"
)


class Place:
    """A broker, and connections to it."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            str(folder / "server.pem")
        )
        (folder / "pyrite.toml").write_text("[tls]\ncertificate = 'server.pem'\n")
        self.context = ssl.create_default_context()
        authority.configure_trust(self.context)
        listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in SCHEMES]
        self.broker = BrokerProcess("--config=pyrite.toml", *listen, "--ephemeral", cwd=folder)
        self.before = self.resident()

    def dial(self, scheme: str) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.broker.port(SCHEMES.index(scheme))), timeout=30)
        if scheme in ("mqtts", "wss"):
            return self.context.wrap_socket(plain, server_hostname="127.0.0.1")
        return plain

    def resident(self) -> int:
        """Return the resident memory of the broker in bytes."""
        text = Path(f"/proc/{self.broker.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place(tmp_path_factory.mktemp("strangers"))
    with found.broker:
        yield found


def send_all_that_is_taken(stranger: socket.socket, data: bytes) -> None:
    """Send until the broker has read everything, reads no more, or closes."""
    stranger.settimeout(0.2)
    try:
        stranger.sendall(data)
    except OSError:  # it was closed at the bound, or is not read any more
        pass


def frames(data: bytes, size: int) -> bytes:
    """Return masked frames (with a mask of zeros) that carry data, the first a binary one, none the last."""
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(
        bytes([0 if number else 2, 0x80 | 127]) + struct.pack(">Q", len(part)) + bytes(4) + part
        for number, part in enumerate(parts)
    )


def opening(scheme: str) -> tuple[bytes, dict[str, bytes]]:
    """Return the start of a connection, and data that a client could send then, by name."""
    connect = UNFINISHED + bytes(MEBIBYTE - 20)
    if scheme in ("mqtt", "mqtts"):
        return b"", {"packet": connect}
    return HANDSHAKE + b"\r\n", {
        "frame": frames(connect, MEBIBYTE)[:-100],
        "fragments": frames(connect, 1_000),
    }


CASES = [
    ("mqtt", "packet"),
    ("ws", "frame"),
    ("ws", "fragments"),
    ("ws", "handshake"),
    ("mqtts", "packet"),  # after those without TLS, as what it took may stay with the process
    ("wss", "frame"),
    ("wss", "fragments"),
    ("wss", "handshake"),
]


@pytest.mark.parametrize(("scheme", "kind"), CASES)
def test_unfinished_input_before_login_takes_little_memory(place: Place, scheme: str, kind: str) -> None:
    first, kinds = opening(scheme)
    data = first + kinds[kind] if kind in kinds else HANDSHAKE + b"X: " + b"x" * (MEBIBYTE - 1_000)
    with ExitStack() as stack:
        for _ in range(STRANGERS):
            send_all_that_is_taken(stack.enter_context(place.dial(scheme)), data)
        with place.dial("mqtt") as friend:
            friend.sendall(connect_packet("friend"))
            assert friend.recv(1) == b"\x20", "and by then the broker has read of those before"
        grown = place.resident() - place.before
    bound = TLS_BOUND if scheme in ("mqtts", "wss") else PLAIN_BOUND
    assert grown < STRANGERS * bound, f"{grown / STRANGERS:.0f} bytes for each"
