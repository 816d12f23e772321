"""Attacks without a login: unfinished packets and bodies, large bodies, pages of other sites, Ping."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import time

import pyarrow as pa
import pyarrow.flight as flight

from tests.hostile.attacks_by_log import timed
from tests.hostile.dialing import (
    MQTT_SCHEMES,
    PASSWORD,
    PATIENCE,
    Attack,
    Done,
    Ports,
    again_and_again,
    dial,
    open_wire,
    prepares,
    ready_after,
    request,
    unfinished_connect,
    upgrade,
)

from .dialing import pace

MIB = 1024 * 1024
UNFINISHED = 1_000
"""Unfinished HTTP bodies at one time."""
UNFINISHED_CONNECTS = 700
PINGING = 50
"""Line connections that send Ping and do not log in."""
BOMB = 200 * MIB
"""Bytes of a batch that is sent compressed."""


def _large_body() -> bytes:
    """Return a body of 21 MB that becomes several times as long in JSON with ASCII escapes."""
    pairs = [["k", "é" * 10_000] for _ in range(1_000)]
    return json.dumps({"topic": "a", "payload": "x", "user_properties": pairs}, ensure_ascii=False).encode()


@prepares
async def large_bodies(ports: Ports, until: float, done: Done) -> None:
    """POST 21 MB of user properties without a login, where everyone may publish."""
    await _post_repeatedly(ports, until, done)


@prepares
async def unauthenticated_bodies(ports: Ports, until: float, done: Done) -> None:
    """POST 21 MB without a login, where one is required."""
    await _post_repeatedly(ports, until, done)


async def _post_repeatedly(ports: Ports, until: float, done: Done) -> None:
    began = time.monotonic()
    body = _large_body()
    until = ready_after(began, until)

    async def post(_: int) -> None:
        done["posts"] += 1
        status = await request(ports, "/api/v1/publish", method="POST", body=body)
        done["let in" if status == 200 else "refused"] += 1

    await again_and_again(2, until, post)


async def unfinished_bodies(ports: Ports, until: float, done: Done) -> None:
    """Start 1,000 requests and finish none, while /ready and /metrics are requested."""
    head = (
        "POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n"
    )
    begun = (f"{head}\r\n{{", head, "")

    async def begin(which: int) -> None:
        reader, writer = await dial(ports["http"])
        writer.write(begun[which % len(begun)].encode())
        done["begun"] += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, until - time.monotonic())):
                while await reader.read(65_536):
                    pass
        writer.transport.abort()
        await pace(0.5)

    async def ask(which: int) -> None:
        path = ("/ready", "/metrics")[which]
        async with timed(done, path):
            status = await request(ports, path)
            if status != 200:
                raise ConnectionError(f"{path}: {status}")

    await asyncio.gather(again_and_again(UNFINISHED, until, begin), again_and_again(2, until, ask))


async def unfinished_connects(ports: Ports, until: float, done: Done) -> None:
    """Hold 700 connections with a CONNECT of 64 KiB or 1 MiB that lacks its last byte."""
    sizes = (60_000, MIB)

    async def begin(which: int) -> None:
        scheme = MQTT_SCHEMES[0 if which % 7 else which // 7 % len(MQTT_SCHEMES)]
        wire = await open_wire(ports, scheme)
        wire.write(unfinished_connect(sizes[which % 2]))
        done["begun"] += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, until - time.monotonic())):
                while await wire.reader.read(65_536):
                    pass
        wire.abort()
        await pace(0.2)

    await again_and_again(UNFINISHED_CONNECTS, until, begin)


@prepares
async def compressed_batches(ports: Ports, until: float, done: Done) -> None:
    """Send Flight a batch that decompresses to 1,000 times its size, as users with and without permission."""
    began = time.monotonic()
    payload = pa.array([bytes(BOMB)], pa.binary())
    batch = pa.record_batch({"topic": pa.array(["mine/sink"], pa.string()), "payload": payload})
    until = ready_after(began, until)

    def send(user: str) -> None:
        word = base64.b64encode(f"{user}:{PASSWORD}".encode())
        options = flight.FlightCallOptions(
            headers=[(b"authorization", b"Basic " + word)],
            write_options=pa.ipc.IpcWriteOptions(compression="zstd"),
            timeout=PATIENCE,
        )
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"sink": "s", "part": "p"}).encode())
        with flight.connect(f"grpc://127.0.0.1:{ports['flight']}") as client:
            try:
                writer, _ = client.do_put(descriptor, batch.schema, options)
                writer.write_batch(batch)
                writer.close()
                done["taken"] += 1
            except (flight.FlightError, pa.ArrowException, OSError):
                done["refused"] += 1

    while not done["refused"] or time.monotonic() < until:
        for user in ("greedy", "reader"):
            await asyncio.to_thread(send, user)


async def foreign_pages(ports: Ports, until: float, done: Done) -> None:
    """Request a WebSocket as a page of another site in a browser with a client certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(str(ports["certificate"]))
    origins = ("https://elsewhere.example", "null", "https://localhost")

    async def ask(which: int) -> None:
        reader, writer = await dial(ports["wss"], context)
        writer.write(upgrade(f"127.0.0.1:{ports['wss']}", f"Origin: {origins[which]}\r\n"))
        answer = await asyncio.wait_for(reader.read(1_000), PATIENCE)
        done["refused" if answer.startswith(b"HTTP/1.1 403 ") else "let in"] += 1
        writer.transport.abort()

    await again_and_again(len(origins), until, ask)


async def pings_instead_of_a_log_in(ports: Ports, until: float, done: Done) -> None:
    """Keep line connections busy with Ping before the login, until the broker closes them."""

    async def ping(_: int) -> None:
        reader, writer = await dial(ports["line"])
        done["opened"] += 1
        async with timed(done, "ended"), asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                answer = b" "
                while answer:
                    writer.write(b"Ping here\n")
                    answer = await reader.read(65_536)
                    done["pings"] += 1
                    await pace(0.05)
        writer.transport.abort()

    await again_and_again(PINGING, until, ping)


ATTACKS: tuple[Attack, ...] = (
    large_bodies,
    unauthenticated_bodies,
    unfinished_bodies,
    unfinished_connects,
    compressed_batches,
    foreign_pages,
    pings_instead_of_a_log_in,
)
