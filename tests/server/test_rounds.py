"""However many clients send much at the same time, a round of the event loop stays short."""

from __future__ import annotations

import asyncio
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import cast

import pytest
import uvloop

from pyrite.broker.message import Batch
from pyrite.server.config import Config, Tls
from pyrite.server.server import Server
from tests.conformance.wire import connect_packet, publish_packet, subscribe_packet
from tests.hostile.turns import MAX_TURN, collector_of_the_server
from tests.server.conftest import Certificates
from tests.server.peers import WebSocket
from tests.support.waiting import until

CLIENTS = 40
ATTEMPTS = 3
"""Another process may make a round longer, but not each time."""
SIZE = 60_000
"""Bytes that each client sends at once."""
PINGS = b"\xc0\x00" * (SIZE // 2)
LINES = b"Ping x\n" * (SIZE // 7)
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


class Rounds:
    """Measures the CPU time of each round of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = time.thread_time()
        self.longest = 0.0
        self._next()

    def _next(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, now - self._began)
        self._began = now
        self._loop.call_soon(self._next)


def dial(kind: socket.SocketKind, port: int) -> socket.socket:
    client = socket.socket(socket.AF_INET, kind)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SIZE)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    return client


async def answer(client: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(client, 65_536)


async def connected(port: int, hello: bytes) -> socket.socket:
    client = dial(socket.SOCK_STREAM, port)
    client.send(hello)
    await answer(client)
    return client


async def mqtt(port: int) -> tuple[socket.socket, bytes]:
    return await connected(port, connect_packet("")), PINGS


async def line(port: int) -> tuple[socket.socket, bytes]:
    return await connected(port, b"Connect %d\n" % time.perf_counter_ns()), LINES


async def ws(port: int) -> tuple[socket.socket, bytes]:
    client = await connected(port, UPGRADE)
    client.send(WebSocket.encode(WebSocket.BINARY, connect_packet("")))
    await answer(client)
    return client, WebSocket.encode(WebSocket.BINARY, PINGS[:400]) * 100


async def udp(port: int) -> tuple[socket.socket, bytes]:
    client = dial(socket.SOCK_DGRAM, port)
    client.send(b"Subscribe nothing\n")
    client.send((await answer(client)).replace(b"Ping", b"Pong"))
    await answer(client)
    return client, LINES


SCHEMES: dict[str, Callable[[int], Awaitable[tuple[socket.socket, bytes]]]] = {
    "mqtt": mqtt,
    "line": line,
    "ws": ws,
    "udp": udp,
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_clients_that_send_much_at_the_same_time_have_no_long_round_together(scheme: str) -> None:
    async def attack() -> float:
        server = Server(Config(listen=[f"{scheme}://127.0.0.1:0"], ephemeral=True))
        (listener,) = await server.start()
        try:
            clients = [await SCHEMES[scheme](listener.port) for _ in range(CLIENTS)]
            received = server.broker.figures.bytes_received
            for client, data in clients:
                assert client.send(data) == len(data)
            rounds = Rounds()
            await until(
                lambda: (
                    server.broker.figures.bytes_received - received >= CLIENTS * SIZE // 2
                    and not server.broker.turns.has_work
                ),
                "all was handled",
            )
            for client, _ in clients:
                client.close()
            return rounds.longest
        finally:
            await server.stop()

    check(attack)


MERGED_READ = 4_000
"""Bytes of a read whose packets may be merged with those of other connections."""


def test_packets_that_are_merged_make_no_long_round() -> None:
    pairs = [publish_packet(f"{number:02}") for number in range(60)]

    async def attack() -> float:
        server = Server(Config(listen=["mqtt://127.0.0.1:0"], ephemeral=True))
        (listener,) = await server.start()
        figures = server.broker.figures
        try:
            subscriber, _ = await mqtt(listener.port)
            subscriber.send(subscribe_packet(1, [(f"{number:02}", 0) for number in range(60)]))
            await answer(subscriber)
            publishers = [(await mqtt(listener.port))[0] for _ in range(2 * len(pairs))]
            for number in range(60):
                server.broker.subscriptions.route(b"%02d" % number)  # two publishers share it
            data = [packet * (MERGED_READ // len(packet)) for packet in 2 * pairs]
            for publisher, packets in zip(publishers, data, strict=True):
                assert publisher.send(packets) == len(packets)
            count = len(publishers) * (MERGED_READ // len(pairs[0]))
            rounds = Rounds()
            await until(lambda: figures.publish_received >= count, "all was handled")
            for client in (subscriber, *publishers):
                client.close()
            return rounds.longest
        finally:
            await server.stop()

    check(attack)


MIB = 1024 * 1024


@contextmanager
def reading(clients: list[socket.socket]) -> Iterator[list[int]]:
    """Read and drop what comes to clients, in another thread; count the bytes."""
    count = [0]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ)

        def read() -> None:
            while selector.get_map():
                for key, _ in selector.select():
                    endpoint = cast(socket.socket, key.fileobj)
                    with suppress(BlockingIOError, ssl.SSLWantReadError):
                        data = endpoint.recv(MIB)
                        count[0] += len(data)
                        if not data:
                            selector.unregister(endpoint)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield count
        finally:
            for client in clients:
                client.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in clients:
                client.close()


@pytest.mark.parametrize(("scheme", "number"), [("mqtt", 60), ("mqtts", 4), ("wss", 4)])
def test_large_messages_to_many_subscribers_make_no_long_round(
    scheme: str, number: int, certificates: Certificates
) -> None:
    tls = Tls(certificate=str(certificates.server)) if scheme != "mqtt" else Tls()
    message = Batch(b"large", bytes(8 * MIB))

    async def attack() -> float:
        server = Server(Config(listen=[f"{scheme}://127.0.0.1:0"], ephemeral=True, tls=tls))
        (listener,) = await server.start()
        try:
            clients = await asyncio.to_thread(
                lambda: [subscriber(scheme, listener.port, certificates) for _ in range(number)]
            )
            with reading(clients) as count:
                rounds = Rounds()
                server.at_work(lambda: server.broker.publishing.publish(message))
                await until(lambda: count[0] > number * len(message.data), "all have it")
                return rounds.longest
        finally:
            await server.stop()

    check(attack)


def subscriber(scheme: str, port: int, certificates: Certificates) -> socket.socket:
    """Connect, and subscribe to `large`."""
    client = socket.create_connection(("127.0.0.1", port))
    if scheme != "mqtt":
        client = certificates.context().wrap_socket(client, server_hostname="127.0.0.1")
    packets = connect_packet("") + subscribe_packet(1, [("large", 0)])
    if scheme == "wss":
        client.sendall(UPGRADE)
        client.recv(65_536)
        packets = WebSocket.encode(WebSocket.BINARY, packets)
    client.sendall(packets)
    received = b""
    while b"\x90" not in received:  # the SUBACK
        received += client.recv(65_536)
    return client


def check(attack: Callable[[], Coroutine[None, None, float]]) -> None:
    """Run an attack; fail if a round is too long at every try."""
    longest = float("inf")
    for _ in range(ATTEMPTS):
        with collector_of_the_server(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            longest = runner.run(attack())
        if longest <= MAX_TURN:
            return
    raise AssertionError(f"{longest * 1e3:.1f} ms")
