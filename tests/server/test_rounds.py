"""However many clients send much at the same time, a round of the event loop stays short."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine

import pytest
import uvloop

from pyrite.server.config import Config
from pyrite.server.server import Server
from tests.conformance.wire import connect_packet
from tests.hostile.turns import MAX_TURN, collector_of_the_server
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
                    and not server.broker.has_interrupted
                ),
                "all was handled",
            )
            for client, _ in clients:
                client.close()
            return rounds.longest
        finally:
            await server.stop()

    check(attack)


def check(attack: Callable[[], Coroutine[None, None, float]]) -> None:
    """Run an attack; fail if a round is too long at every try."""
    longest = float("inf")
    for _ in range(ATTEMPTS):
        with collector_of_the_server(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            longest = runner.run(attack())
        if longest <= MAX_TURN:
            return
    raise AssertionError(f"{longest * 1e3:.1f} ms")
