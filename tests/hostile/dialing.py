"""Connections of attackers: MQTT on every listener, the line protocol and HTTP, with and without a user."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine

from tests.conformance.wire import connect_packet, disconnect_packet, varint

Ports = dict[str, int | str]
Done = Counter[str]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Attack = Callable[[Ports, float, Done], Coroutine[None, None, None]]

SECURE = ("mqtts", "wss", "https", "flights")
TLS = ssl.create_default_context()
TLS.check_hostname = False
TLS.verify_mode = ssl.CERT_NONE
SOAKING = "PYRITE_SOAK" in os.environ
"""Whether this is `make soak`: attacks then prepare as much as was found to hurt."""
PASSWORD = "word"
"""The password of every user of the guarded broker."""
PATIENCE = 60.0
"""Seconds that the broker has for an answer."""
MAX_FRAME = 60_000
"""Payload bytes of one WebSocket frame."""
MQTT_SCHEMES = ("mqtt", "ws", "unix", "mqtts", "wss")
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
PREPARING: set[Attack] = set()
"""Attacks that print `ready` themselves."""


def prepares(attack: Attack) -> Attack:
    """Mark an attack that prepares something and then calls `ready_after`."""
    PREPARING.add(attack)
    return attack


def ready() -> None:
    """Report that the attack begins, and lower its priority below the broker and the regular clients."""
    print("ready", flush=True)
    os.nice(5)


def ready_after(began: float, until: float) -> float:
    """Report that the preparations are done; return the end of the attack, postponed by their duration."""
    ready()
    return until + time.monotonic() - began


async def dial(port: int | str, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1") -> Stream:
    """Connect from a local address."""
    if isinstance(port, str):
        return await asyncio.open_unix_connection(port)
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls, local_addr=(address, 0))


async def hang_up(stream: Stream) -> None:
    stream[1].close()
    with contextlib.suppress(OSError):
        await stream[1].wait_closed()


async def client(port: int | str, client_id: str, line: bool = False) -> Stream:
    """Connect with MQTT or the line protocol, without a user name."""
    reader, writer = await dial(port)
    writer.write(f"Connect {client_id}\n".encode() if line else connect_packet(client_id))
    answer = await asyncio.wait_for(reader.read(1_000), 30)
    if not answer.startswith(b"Ack Connect" if line else b"\x20"):
        raise ConnectionError(f"it was refused: {answer!r}")
    return reader, writer


async def in_parallel(number: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Run `work` this many times concurrently; each ends when it is refused or disconnected."""

    async def quietly(which: int) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            await work(which)

    await asyncio.gather(*(quietly(which) for which in range(number)))


async def again_and_again(number: int, until: float, work: Callable[[int], Awaitable[object]]) -> None:
    """Run `work` this many times concurrently, repeatedly until the attack is over."""

    async def repeat(which: int) -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                await work(which)
            await pace()

    await in_parallel(number, repeat)


async def pace(seconds: float = 0.01) -> None:
    """Rest between two steps of an attack. It is meant to load the broker, not the machine it runs on."""
    await asyncio.sleep(seconds)


def credentials(user: str | None) -> dict[str, str | bytes]:
    return {} if user is None else {"username": user, "password": PASSWORD.encode()}


def authorization(user: str | None) -> str:
    """Return the Authorization header of a user."""
    if user is None:
        return ""
    return f"Authorization: Basic {base64.b64encode(f'{user}:{PASSWORD}'.encode()).decode()}\r\n"


class Wire:
    """An MQTT connection as bytes, over any scheme."""

    def __init__(self, stream: Stream, websocket: bool) -> None:
        self.reader, self.writer = stream
        self._websocket = websocket

    def write(self, data: bytes) -> None:
        """Send bytes; over WebSocket in frames, masked with zeros."""
        if not self._websocket:
            self.writer.write(data)
            return
        for at in range(0, len(data), MAX_FRAME):
            piece = data[at : at + MAX_FRAME]
            size = len(piece)
            length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
            self.writer.write(b"\x82" + length + bytes(4) + piece)

    async def round_trip(self, data: bytes, answer: bytes = PINGRESP) -> None:
        """Send bytes and a PINGREQ, and read until PINGRESP.

        Acknowledgements may precede it or follow it; packet ids below 0xD000 do not look like it.
        """
        self.write(data + PINGREQ)
        read = last = b""
        async with asyncio.timeout(PATIENCE):
            while answer not in last + read:
                last = (last + read)[1 - len(answer) :]
                read = await self.reader.read(262_144)
                if not read:
                    raise ConnectionError("the broker closed the connection")

    def abort(self) -> None:
        self.writer.transport.abort()

    async def end(self) -> None:
        """End the session and the connection."""
        self.write(disconnect_packet(0, session_expiry_interval=0))
        await hang_up((self.reader, self.writer))


def address_of(user: str | None) -> str:
    """Return the source address of a user: attackers share one, and regular users have another."""
    return "127.0.0.3" if user == "other" else "127.0.0.1"


async def open_wire(ports: Ports, scheme: str, user: str | None = None) -> Wire:
    """Connect up to the start of MQTT."""
    stream = await dial(ports[scheme], TLS if scheme in SECURE else None, address_of(user))
    if scheme in ("ws", "wss"):
        stream[1].write(upgrade())
        head = await asyncio.wait_for(stream[0].readuntil(b"\r\n\r\n"), PATIENCE)
        if not head.startswith(b"HTTP/1.1 101 "):
            raise ConnectionError(f"no WebSocket: {head!r}")
    return Wire(stream, scheme in ("ws", "wss"))


def upgrade(host: str = "localhost", origin: str = "") -> bytes:
    """Return the request for a WebSocket; `origin` is a complete header line."""
    return (
        f"GET /mqtt HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: mqtt\r\n{origin}\r\n"
    ).encode()


async def log_in(
    ports: Ports, scheme: str, client_id: str, user: str | None = None, **values: object
) -> Wire:
    """Log in with MQTT 5 over any scheme; `values` are those of `connect_packet`."""
    wire = await open_wire(ports, scheme, user)
    wire.write(connect_packet(client_id, **credentials(user), **values))  # type: ignore[arg-type]
    if wire._websocket:
        await asyncio.wait_for(wire.reader.readexactly(2), PATIENCE)
    head = await asyncio.wait_for(wire.reader.readexactly(2), PATIENCE)
    answer = await asyncio.wait_for(wire.reader.readexactly(head[1]), PATIENCE)
    if head[0] != 0x20 or answer[1] != 0:
        wire.abort()
        raise ConnectionError(f"CONNACK 0x{answer[1]:02x}")
    return wire


async def request(
    ports: Ports, path: str, user: str | None = None, method: str = "GET", body: bytes = b""
) -> int:
    """Send an HTTP request on a new connection; return the status, or 0 without a response."""
    reader, writer = await dial(ports["http"], address=address_of(user))
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization(user)}{kind}Connection: close\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        answer = b""
        with contextlib.suppress(ConnectionError):  # it may be refused before all of the body was sent
            answer = await asyncio.wait_for(reader.read(65_536), PATIENCE)
        return int(answer.split(None, 2)[1]) if answer else 0
    finally:
        writer.transport.abort()


def counted(length: int, make: Callable[[int], bytes]) -> bytes:
    """Return numbered packets of `length` bytes in total."""
    parts: list[bytes] = []
    size = 0
    while size < length:
        parts.append(make(len(parts)))
        size += len(parts[-1])
    return b"".join(parts)


def empty_user_properties(count: int) -> bytes:
    """Return properties for the `raw` of a packet."""
    return b"\x26\0\0\0\0" * count


def unfinished_connect(size: int) -> bytes:
    """Return a CONNECT of `size` bytes whose last byte is missing."""
    length = varint(size)
    return (b"\x10" + length + connect_packet("x")[2:] + bytes(size))[: size - 1]
