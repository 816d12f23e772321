"""Memory that clients can occupy before they log in, over every kind of stream."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from tests.conformance.wire import connect_packet, packet, publish_packet
from tests.support.process import BrokerProcess

STRANGERS = 100
MEBIBYTE = 1024 * 1024
PLAIN_BOUND, TLS_BOUND = 160 * 1024, 768 * 1024
"""Bytes for each stranger: with TLS, uvloop and OpenSSL have buffers of some 400 KiB for a connection."""
QUIET = 0.5
"""Seconds in which the broker takes nothing more of what any stranger sends, when it reads no more."""
BOUND = 30.0
"""Seconds in which the broker must have closed all of them, or read no more."""
LOG_IN_TIME = 120
"""Seconds of `connect_timeout`: strangers are not closed for their silence here."""
DOORMAN = """
import threading
from pyrite.broker.access import Access, Refuse

class Doorman(Access):
    def takes_time(self, credentials):
        return credentials.username is not None

    def authenticate(self, credentials):
        if credentials.username is None:
            return Refuse()
        threading.Event().wait()
"""
"""A plug-in that never comes to a decision."""
HANDSHAKE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n"
)


class Place:
    """A broker on one kind of listener, and the strangers that come to it."""

    def __init__(self, folder: Path, scheme: str, stack: ExitStack) -> None:
        authority = trustme.CA()
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            str(folder / "server.pem")
        )
        (folder / "doorman.py").write_text(DOORMAN)
        (folder / "pyrite.toml").write_text(
            f"[limits]\nconnect_timeout = {LOG_IN_TIME}\n[tls]\ncertificate = 'server.pem'\n"
            "[mqtt]\nauthenticator = 'doorman:Doorman'\n"
        )
        self.context = ssl.create_default_context()
        authority.configure_trust(self.context)
        self.tls = scheme in ("mqtts", "wss")
        where = f"{scheme}://127.0.0.1:0"
        self.broker = stack.enter_context(
            BrokerProcess("--config=pyrite.toml", f"--listen={where}", "--ephemeral", cwd=folder)
        )
        self.strangers = [stack.enter_context(self.dial()) for _ in range(STRANGERS)]
        self.before = self.peak()

    def dial(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.broker.port()), timeout=BOUND)
        if not self.tls:
            return plain
        return self.context.wrap_socket(plain, server_hostname="127.0.0.1")

    def peak(self) -> int:
        """Return the most bytes of memory that the broker ever had."""
        text = Path(f"/proc/{self.broker.process.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024

    def send(self, data: bytes, seconds: float = BOUND) -> set[socket.socket]:
        """Have all strangers send, until the broker has closed or reads no more; return those left open."""
        rest = {one: memoryview(data) for one in self.strangers}
        heard = set(self.strangers)
        for one in self.strangers:
            one.setblocking(False)
        until = time.monotonic() + seconds
        while heard and time.monotonic() < until:
            ready, writable, _ = select.select(heard, [one for one in rest if rest[one]], [], QUIET)
            if not ready and not writable:
                break
            for one in writable:
                if not self._advance(lambda one=one: self._write(one, rest)):  # type: ignore[misc]
                    rest.pop(one, None)
                    heard.discard(one)
            for one in ready:
                if one in heard and not self._advance(lambda one=one: one.recv(65_536)):  # type: ignore[misc]
                    rest.pop(one, None)
                    heard.discard(one)
        return heard

    @staticmethod
    def _write(one: socket.socket, rest: dict[socket.socket, memoryview]) -> int:
        sent = one.send(rest[one][:65_536])
        rest[one] = rest[one][sent:]
        return sent

    @staticmethod
    def _advance(step: Callable[[], object]) -> bool:
        """Take a step; return False if the connection has ended."""
        try:
            return bool(step())
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except OSError:
            return False


def frame(data: bytes) -> bytes:
    """Return a binary frame that is masked with zeros."""
    return b"\x82\xff" + struct.pack(">Q", len(data)) + bytes(4) + data


def fragments(data: bytes, size: int = 1_000) -> bytes:
    """Return frames, the first a binary one and none the last."""
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(
        bytes([0 if number else 2, 0xFE]) + struct.pack(">H", len(part)) + bytes(4) + part
        for number, part in enumerate(parts)
    )


UNFINISHED = packet(1, 0, b"\0\4MQTT\5\2\0\0" + bytes(1_000_000))[:-1]
"""A CONNECT that is smaller than what a packet of someone who has logged in may be."""
LONG_HANDSHAKE = HANDSHAKE + b"".join(b"X-%d: %s\r\n" % (number, b"x" * 8_000) for number in range(100))
"""As many lines, and as long, as the WebSocket library takes."""
MESSAGE = publish_packet("a", bytes(10_000))
OPEN = HANDSHAKE + b"\r\n"
TOO_LARGE = {
    ("mqtt", "packet"): UNFINISHED,
    ("mqtts", "packet"): UNFINISHED,
    ("ws", "frame"): OPEN + frame(bytes(MEBIBYTE))[:-1],
    ("wss", "frame"): OPEN + frame(bytes(MEBIBYTE))[:-1],
    ("ws", "fragments"): OPEN + fragments(UNFINISHED),
    ("wss", "fragments"): OPEN + fragments(UNFINISHED),
    ("ws", "handshake"): LONG_HANDSHAKE,
    ("wss", "handshake"): LONG_HANDSHAKE,
    ("line", "line"): b"Ping " + b"x" * 200_000,
    ("line", "payload"): b"Publish a 10000000\n" + bytes(MEBIBYTE),
}
CONNECTING = connect_packet("", username="ann", password=b"word")
FRAMES_BEHIND = OPEN + frame(CONNECTING) + frame(MESSAGE) * 300
WAITING = {
    "mqtt": CONNECTING + MESSAGE * 300,
    "mqtts": CONNECTING + MESSAGE * 300,
    "ws": FRAMES_BEHIND,
    "wss": FRAMES_BEHIND,
    "line": b"Connect a user=ann password=word\n" + b"Publish a 10000\n%s\n" % bytes(10_000) * 300,
}
EMPTY_FRAMES = OPEN + b"\x82\x80\0\0\0\0" * 300_000
"""More than the broker can take apart while the test lasts."""


def check_memory(place: Place) -> None:
    grown = (place.peak() - place.before) / STRANGERS
    assert grown < (TLS_BOUND if place.tls else PLAIN_BOUND), f"{grown:.0f} bytes for each"


@pytest.mark.parametrize(("scheme", "kind"), TOO_LARGE)
def test_strangers_that_send_too_much_are_closed(tmp_path: Path, scheme: str, kind: str) -> None:
    with ExitStack() as stack:
        place = Place(tmp_path, scheme, stack)
        left_open = place.send(TOO_LARGE[scheme, kind])
        check_memory(place)
        assert not left_open


@pytest.mark.parametrize("scheme", WAITING)
def test_strangers_that_wait_for_their_log_in_are_read_from_no_further(tmp_path: Path, scheme: str) -> None:
    with ExitStack() as stack:
        place = Place(tmp_path, scheme, stack)
        place.send(WAITING[scheme])
        check_memory(place)


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_strangers_that_send_more_frames_than_can_be_handled_are_not_read_ahead_of(
    tmp_path: Path, scheme: str
) -> None:
    with ExitStack() as stack:
        place = Place(tmp_path, scheme, stack)
        place.send(EMPTY_FRAMES, seconds=8)
        check_memory(place)
