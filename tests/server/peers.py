"""Clients for every kind of listener: byte streams under a raw MQTT client, and a broker with its URLs."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]

from tests.conformance.client import TIMEOUT, Client
from tests.support.process import BrokerProcess

SCHEMES = ("mqtt", "ws", "mqtts", "wss")
PLAIN_AND_LAYERED = ("mqtt", "wss")
"""The listener with no layer between TCP and MQTT, and the one with both, TLS and WebSocket."""
MIB = 1024 * 1024
CHUNK = 128 * 1024
ROOT = Path(__file__).parents[2]

_numbers = itertools.count()


def unique(label: str) -> str:
    """Return a unique name for a topic or a client."""
    return f"{label}-{os.getpid()}-{next(_numbers)}"


class Stream:
    """Bytes over a connected socket: TCP, Unix or TLS."""

    def __init__(self, endpoint: socket.socket) -> None:
        self.socket = endpoint

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            pass  # the broker has closed already; what it sent before is still to be read

    def receive(self, timeout: float) -> bytes:
        self.socket.settimeout(timeout)
        try:
            return self.socket.recv(CHUNK)
        except (ConnectionResetError, ssl.SSLEOFError):
            return b""
        finally:
            self.socket.settimeout(TIMEOUT)

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with a reset (RST) instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class WebSocket:
    """The client side of RFC 6455, frame by frame. All masks are 0, which is fast and allowed."""

    CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

    def __init__(self, stream: Stream, host: str, path: str, subprotocols: str | None = "mqtt") -> None:
        self.stream = stream
        self.socket = stream.socket
        self.close_code: int | None = None
        self.closed = False
        self._buffer = bytearray()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
        ]
        if subprotocols is not None:
            lines.append(f"Sec-WebSocket-Protocol: {subprotocols}")
        stream.send("\r\n".join([*lines, "", ""]).encode())
        self.status, self.headers = self._read_head()

    def _read_head(self) -> tuple[int, dict[str, str]]:
        while b"\r\n\r\n" not in self._buffer:
            chunk = self.stream.receive(TIMEOUT)
            assert chunk, "the broker closed without an answer to the upgrade"
            self._buffer += chunk
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer = bytearray(rest)
        status, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return int(status.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    def frame(self, opcode: int, data: bytes = b"", *, final: bool = True) -> None:
        self.stream.send(self.encode(opcode, data, final=final))

    @staticmethod
    def encode(opcode: int, data: bytes = b"", *, final: bool = True) -> bytes:
        head = bytes([final << 7 | opcode])
        if len(data) < 126:
            head += bytes([0x80 | len(data)])
        elif len(data) < 65536:
            head += b"\xfe" + len(data).to_bytes(2, "big")
        else:
            head += b"\xff" + len(data).to_bytes(8, "big")
        return head + bytes(4) + data

    def read_frame(self, timeout: float = TIMEOUT) -> tuple[int, bytes]:
        """Return the next frame as (opcode, data); (CLOSE, b"") at the end of the stream."""
        deadline = time.monotonic() + timeout
        while (found := self._cut_frame()) is None:
            chunk = self.stream.receive(max(deadline - time.monotonic(), 0.001))
            if not chunk:
                self.closed = True
                return self.CLOSE, b""
            self._buffer += chunk
        return found

    def _cut_frame(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        assert not buffer[1] & 0x80, "a server does not mask its frames"
        length, start = buffer[1] & 0x7F, 2
        if length >= 126:
            start = 4 if length == 126 else 10
            length = int.from_bytes(buffer[2:start], "big")
        if len(buffer) < start + length:
            return None
        opcode, data = buffer[0] & 0x0F, bytes(buffer[start : start + length])
        del buffer[: start + length]
        return opcode, data

    def send(self, data: bytes) -> None:
        self.frame(self.BINARY, data)

    def receive(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while True:
            opcode, data = self.read_frame(max(deadline - time.monotonic(), 0.001))
            if opcode == self.CLOSE:
                self.close_code = int.from_bytes(data[:2], "big") if data else None
                return b""
            assert opcode != self.TEXT, "the broker sent MQTT in a text frame"
            if opcode in (self.BINARY, self.CONTINUATION) and data:
                return data

    def close(self) -> None:
        self.stream.close()


def trusting(authority: Path) -> ssl.SSLContext:
    """Make a client's TLS settings that trust one authority."""
    return ssl.create_default_context(cafile=str(authority))


def dial(
    url: str,
    context: ssl.SSLContext | None = None,
    receive_buffer: int | None = None,
    timeout: float = TIMEOUT,
) -> Stream:
    """Connect to a listener, with TLS where it has that, and send nothing."""
    parts = urlsplit(url)
    family = socket.AF_UNIX if parts.scheme == "unix" else socket.AF_INET
    if parts.hostname is not None and ":" in parts.hostname:
        family = socket.AF_INET6
    endpoint = socket.socket(family, socket.SOCK_STREAM)
    try:
        endpoint.settimeout(timeout)
        if receive_buffer is not None:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        endpoint.connect(parts.path if parts.scheme == "unix" else (parts.hostname, parts.port))
        if family != socket.AF_UNIX:
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme in ("mqtts", "wss"):
            assert context is not None, f"{url} needs TLS settings"
            endpoint = context.wrap_socket(endpoint, server_hostname=parts.hostname)
    except BaseException:
        endpoint.close()
        raise
    return Stream(endpoint)


def open_client(
    url: str, version: int = 5, context: ssl.SSLContext | None = None, receive_buffer: int | None = None
) -> Client:
    """Connect to a listener up to the start of MQTT."""
    stream = dial(url, context, receive_buffer)
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss"):
        return Client(stream, version)
    try:
        websocket = WebSocket(stream, parts.netloc, parts.path)
        assert websocket.status == 101
    except BaseException:
        stream.close()
        raise
    return Client(websocket, version)


def endpoint_of(client: Client) -> socket.socket:
    """Return the socket under a client."""
    assert isinstance(client.transport, Stream | WebSocket)
    return client.transport.socket


class Server:
    """A broker process: its listeners by scheme, its clients, its memory and files."""

    def __init__(self, process: BrokerProcess, context: ssl.SSLContext | None) -> None:
        self.process = process
        self.context = context
        self.urls = {urlsplit(url).scheme: url for url in process.urls}
        self._clients: list[Client] = []
        self._streams: list[Stream] = []

    def open(self, scheme: str = "mqtt", version: int = 5, receive_buffer: int | None = None) -> Client:
        """Connect up to the start of MQTT."""
        client = open_client(self.urls[scheme], version, self.context, receive_buffer)
        self._clients.append(client)
        return client

    def adopt(self, client: Client) -> None:
        """Close this client at the end of the test."""
        self._clients.append(client)

    def dial(self, scheme: str = "mqtt") -> Stream:
        """Connect the TCP or Unix socket alone, without TLS or WebSocket."""
        url = urlsplit(self.urls[scheme])
        stream = dial(f"mqtt://{url.netloc}" if scheme != "unix" else self.urls[scheme])
        self._streams.append(stream)
        return stream

    def connect(
        self,
        scheme: str = "mqtt",
        client_id: str | None = None,
        *,
        version: int = 5,
        receive_buffer: int | None = None,
        **values: Any,
    ) -> Client:
        """Connect as an MQTT client; a refusal fails the test."""
        client = self.open(scheme, version, receive_buffer)
        connack = client.connect(unique("client") if client_id is None else client_id, **values)
        assert connack.reason == 0, f"the broker refused the connection: {connack}"
        return client

    def close_clients(self, besides: Client | None = None) -> None:
        for client in self._clients:
            if client is not besides:
                client.close()
        for stream in self._streams:
            stream.close()
        self._clients = [] if besides is None else [besides]
        self._streams.clear()

    @property
    def pid(self) -> int:
        return self.process.process.pid

    @property
    def resident(self) -> int:
        """Resident memory of the broker in bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def descriptors(self) -> int:
        """The number of open files and sockets of the broker."""
        return int(psutil.Process(self.pid).num_fds())

    def figure(self, name: str) -> int:
        """Return the last published value of a topic below $SYS/broker/."""
        client = self.connect()
        try:
            client.subscribe(f"$SYS/broker/{name}")
            return int(client.receive().payload)
        finally:
            client.close()

    def complaints(self) -> list[str]:
        """Return log lines about internal errors."""
        return [line for line in self.process.log if "Traceback" in line or "internal error" in line]

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Signal the broker without waiting for it."""
        self.process.process.send_signal(number)

    def wait(self) -> int:
        """Wait until the broker has ended by itself and return its exit code."""
        self.close_clients()
        self.process.process.wait(10)
        return self.stop()

    def stop(self) -> int:
        """Stop the broker and return its exit code. An internal error in its log fails the test."""
        self.close_clients()
        code = self.process.stop()
        assert self.complaints() == [], "\n".join(self.process.log)
        return code


class Runner:
    """Runs command lines that end by themselves, each in its own process (runner.py)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __call__(self, *arguments: str, cwd: Path | None = None) -> Done:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        call = {"arguments": ["serve", *arguments], "folder": str(cwd or Path.cwd())}
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        return Done(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT)


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command line."""

    code: int
    stdout: str
    stderr: str


_runners: list[Runner] = []


def run_serve(*arguments: str, cwd: Path | None = None) -> Done:
    """Run a `pyrite serve` that ends by itself."""
    if not _runners:
        _runners.append(Runner())
    return _runners[0](*arguments, cwd=cwd)


def close_runner() -> None:
    """End the process that runs command lines, if it was started."""
    while _runners:
        _runners.pop().close()


def run_refused(code: int, *arguments: str, cwd: Path | None = None) -> str:
    """Run a `pyrite serve` that cannot start; return the line that gives the reason."""
    done = run_serve(*arguments, cwd=cwd)
    assert done.code == code, (done.code, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]
