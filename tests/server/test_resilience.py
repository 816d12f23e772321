"""Invalid input and broken connections end only their own connection, and leave nothing behind."""

from __future__ import annotations

import contextlib
import random
import socket

import psutil  # type: ignore[import-untyped]
import pytest

from tests.conformance.client import Client, Closed
from tests.conformance.wire import connect_packet, publish_packet, subscribe_packet
from tests.support.waiting import wait_until

from .conftest import Serve
from .peers import (
    MIB,
    PLAIN_AND_LAYERED,
    SCHEMES,
    Server,
    Stream,
    WebSocket,
    dial,
    endpoint_of,
    open_client,
    unique,
)

GROWTH = 16 * MIB
"""Memory that may stay with the allocator after a storm."""


class Calm:
    """A client that stays connected, and the broker's resource usage while it was alone."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.topic = unique("calm")
        self.witness = server.connect()
        self.witness.subscribe(self.topic, qos=1)
        self._exchange()
        before = server.descriptors
        self._ping_everywhere()
        # libuv opens a spare descriptor with its first connection, and keeps it.
        wait_until(lambda: server.descriptors <= before + 1, "all sockets are closed")
        self.descriptors, self.resident = server.descriptors, server.resident

    def _exchange(self) -> None:
        self.witness.publish(self.topic, b"all well", qos=1)
        assert self.witness.receive().payload == b"all well"

    def require(self) -> None:
        """Require the resource usage from the start."""
        self._exchange()
        server = self.server
        wait_until(lambda: server.descriptors <= self.descriptors, "all sockets are closed")
        assert server.resident - self.resident < GROWTH
        self._ping_everywhere()
        assert server.complaints() == []

    def _ping_everywhere(self) -> None:
        for scheme in SCHEMES:
            if scheme in self.server.urls:
                client = self.server.connect(scheme)
                client.ping()
                client.close()


@pytest.fixture
def calm(serve: Serve) -> Calm:
    return Calm(serve("log_level = 'debug'\n[mqtt]\nsys_interval = 0.2\n", *SCHEMES))


def scrambled(source: random.Random) -> bytes:
    """Return random bytes, or a valid beginning followed by random bytes."""
    good = (
        connect_packet("c", keep_alive=1)
        + subscribe_packet(1, [("#", 1)])
        + publish_packet("t", b"x", qos=1, packet_id=1)
    )
    match source.randrange(4):
        case 0:
            return source.randbytes(source.randrange(1, 300))
        case 1:
            return good[: source.randrange(len(good))] + source.randbytes(source.randrange(1, 300))
        case 2:
            broken = bytearray(good)
            for _ in range(source.randrange(1, 4)):
                broken[source.randrange(len(good))] = source.randrange(256)
            return bytes(broken)
        case _:
            return connect_packet("c") + bytes([source.randrange(256)]) + source.randbytes(50)


def send_and_read(stream: Stream, data: bytes) -> None:
    """Send bytes, close the writing side, and read until the broker closes."""
    stream.send(data)
    with contextlib.suppress(OSError):
        stream.socket.shutdown(socket.SHUT_WR)
        while stream.receive(3):
            pass
    stream.close()


@pytest.mark.parametrize(
    "level", ["TCP", "inside TLS", "inside WebSocket", "as frames of WebSocket", "as HTTP"]
)
def test_random_bytes_end_only_their_own_connection(calm: Calm, level: str) -> None:
    server, source = calm.server, random.Random(level)
    for _ in range(60):
        data = scrambled(source)
        match level:
            case "TCP":
                send_and_read(dial(server.urls["mqtt"]), data)
            case "inside TLS":
                send_and_read(dial(server.urls["mqtts"], server.context), data)
            case "as HTTP":
                send_and_read(dial(server.urls["ws"]), source.choice([b"", b"GET /mqtt HTTP/1.1\r\n"]) + data)
            case _:
                client = open_client(server.urls["ws"])
                assert isinstance(client.transport, WebSocket)
                framed = WebSocket.encode(WebSocket.BINARY, data) if level == "inside WebSocket" else data
                send_and_read(client.transport.stream, framed)
    calm.require()


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_random_bytes_instead_of_tls_end_only_their_own_connection(calm: Calm, scheme: str) -> None:
    source = random.Random(scheme)
    for _ in range(60):
        record = source.choice(
            [b"", b"\x16\x03\x01\x00\x80", b"\x16\x03\x01\x00\x80\x01\x00\x00\x7c\x03\x03"]
        )
        send_and_read(calm.server.dial(scheme), record + source.randbytes(200))
    calm.require()


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_resets_in_mid_packet_end_only_their_own_connection(calm: Calm, scheme: str) -> None:
    server = calm.server
    packet = publish_packet("t", bytes(100_000), qos=1, packet_id=1)
    for number in range(40):
        client = server.open(scheme)
        if number % 2:
            client.connect("reset")
            client.subscribe("t")
            client.send(packet[: number * 2000])
        else:
            client.send(connect_packet("reset")[: number // 2])
        reset(client)
    calm.require()


def reset(client: Client) -> None:
    stream = client.transport.stream if isinstance(client.transport, WebSocket) else client.transport
    assert isinstance(stream, Stream)
    stream.reset()


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_resets_while_messages_wait_end_only_their_own_connection(calm: Calm, scheme: str) -> None:
    server = calm.server
    publisher = server.connect()
    for _ in range(3):
        clients = [server.connect(scheme, receive_buffer=8192) for _ in range(5)]
        for client in clients:
            client.subscribe("much")
        for _ in range(20):
            publisher.publish("much", bytes(200_000))
        publisher.ping()
        for client in clients[:4]:
            reset(client)
        publisher.publish("much", bytes(200_000))
        publisher.ping()
        reset(clients[4])
    publisher.close()
    calm.require()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_half_open_connections_leave_nothing_behind(calm: Calm, scheme: str) -> None:
    server = calm.server
    for _ in range(30):
        stream = server.dial(scheme)
        stream.socket.shutdown(socket.SHUT_WR)
        client = server.open(scheme)
        client.connect("half")
        with contextlib.suppress(OSError):
            endpoint_of(client).shutdown(socket.SHUT_WR)
    server.close_clients(besides=calm.witness)
    calm.require()


@pytest.mark.parametrize(("scheme", "times"), [("mqtt", 500), ("wss", 100)])
def test_connecting_and_disconnecting_leaves_nothing_behind(calm: Calm, scheme: str, times: int) -> None:
    server = calm.server
    for number in range(times):
        client = open_client(server.urls[scheme], version=4 + number % 2, context=server.context)
        client.connect(f"churn-{number}", will=None)
        client.send(subscribe_packet(1, [(f"churn/{number}/#", 1)], version=client.version))
        if number % 3:
            client.send(b"\xe0\x00")
        client.close()
    calm.require()
    wait_until(lambda: server.figure("clients/total") <= 2, "no session is left")


def test_running_out_of_file_descriptors_ends_no_connection(serve: Serve) -> None:
    server = serve("", "mqtt", "ws")
    calm = Calm(server)
    limit = server.descriptors + 10
    psutil.Process(server.pid).rlimit(psutil.RLIMIT_NOFILE, (limit, limit))
    streams = [dial(server.urls[scheme]) for _ in range(20) for scheme in ("mqtt", "ws")]
    calm.witness.ping()
    for stream in streams:
        stream.close()

    def accepts() -> bool:
        try:
            for scheme in ("mqtt", "ws"):
                server.connect(scheme).ping()
        except (OSError, AssertionError, Closed):
            return False
        return True

    wait_until(accepts, "the broker accepts connections again")
    calm.witness.ping()


def test_the_broker_survives_many_kinds_of_connections_at_once(calm: Calm) -> None:
    server, source = calm.server, random.Random(7)
    streams = []
    for _ in range(150):
        scheme = source.choice(SCHEMES)
        stream = server.dial(scheme)
        stream.send(source.choice([scrambled(source), b"GET /mqtt HTTP/1.1\r\n", b"\x16\x03\x01", b""]))
        match source.randrange(3):
            case 0:
                stream.reset()
            case 1:
                stream.close()
            case _:
                streams.append(stream)
    calm.witness.ping()
    for stream in streams:
        stream.close()
    calm.require()
