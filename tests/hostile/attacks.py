"""Attacks on a broker: `python -m tests.hostile.attacks NAME SECONDS PORTS`, PORTS being JSON.

PORTS maps each scheme to a port, or to the path of a Unix socket. An attack prints `ready` when its
preparations are done and the attack begins. At the end it prints counts of its actions as JSON, so that a
test can check that the attack took place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import resource
import socket
import sys
import time
from collections import Counter

from tests.conformance.wire import connect_packet, options, publish_packet, subscribe_packet
from tests.hostile import attacks_by_log, attacks_by_packets, attacks_by_strangers
from tests.hostile.dialing import (
    PREPARING,
    SECURE,
    TLS,
    Attack,
    Done,
    Ports,
    Stream,
    client,
    dial,
    hang_up,
    in_parallel,
    prepares,
    ready,
    ready_after,
)

from .dialing import pace

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"loris" * 90
"""The beginning of a TLS handshake."""
IDLE = 10_000
"""Clients that are connected and do nothing."""


async def slow_loris(ports: Ports, until: float, done: Done) -> None:
    """Start a request on every port, and send it byte by byte."""
    beginnings = {
        "mqtt": connect_packet("loris" * 50),
        "ws": b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n" + b"X-Slow: loris\r\n" * 50,
        "http": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-Slow: loris\r\n" * 50,
        "line": b"Connect " + b"loris" * 100,
        "unix": connect_packet("loris" * 50),
        **dict.fromkeys(("mqtts", "wss", "https", "flights"), HELLO),
    }

    async def drip(which: int) -> None:
        scheme = list(beginnings)[which % len(beginnings)]
        stream = await dial(ports[scheme])
        done["opened"] += 1
        done[scheme] += 1
        for byte in beginnings[scheme]:
            if time.monotonic() > until:
                break
            stream[1].write(bytes([byte]))
            await stream[1].drain()
            done["bytes"] += 1
            await pace(0.2)
        await hang_up(stream)

    await in_parallel(400, drip)


async def half_open(ports: Ports, until: float, done: Done) -> None:
    """Connect on any port and send nothing; or subscribe to everything and read nothing."""
    schemes = [scheme for scheme in ports if scheme != "udp"]

    async def silent(which: int) -> None:
        if which % 2:
            scheme = schemes[which // 2 % len(schemes)]
            stream = await dial(ports[scheme])
            done[scheme] += 1
        else:
            stream = await client(ports["mqtt"], f"deaf-{which}")
            stream[1].write(subscribe_packet(1, [("#", options(qos=1))]))
            stream[1].transport.pause_reading()  # type: ignore[attr-defined]
        done["opened"] += 1
        await asyncio.sleep(max(0, until - time.monotonic()))
        stream[1].transport.abort()

    await in_parallel(400, silent)


@prepares
async def idle_with_churn(ports: Ports, until: float, done: Done) -> None:
    """Ten thousand idle clients, some of which disconnect and reconnect."""
    streams: dict[int, Stream] = {}
    began = time.monotonic()

    async def come(which: int) -> None:
        streams[which] = await client(ports["mqtt"], f"idle-{which}")

    for first in range(0, IDLE, 500):
        await in_parallel(500, lambda which, first=first: come(first + which))  # type: ignore[misc]
    done["idle"] = len(streams)
    until = ready_after(began, until)
    chosen = random.Random(7)
    while not done["churned"] or time.monotonic() < until:
        some = chosen.sample(sorted(streams), min(50, len(streams)))
        await in_parallel(len(some), lambda which, some=some: hang_up(streams.pop(some[which])))  # type: ignore[misc]
        await in_parallel(len(some), lambda which, some=some: come(some[which]))  # type: ignore[misc]
        done["churned"] += len(some)
        await pace(0.05)
    for stream in streams.values():
        stream[1].transport.abort()


async def connection_flood(ports: Ports, until: float, done: Done) -> None:
    """Connect and disconnect as fast as possible on every port; half of the TLS ports get a handshake."""
    schemes = list(ports)

    async def flood(which: int) -> None:
        number = which
        while time.monotonic() < until:
            scheme = schemes[number // 2 % len(schemes)]
            inside = TLS if scheme in SECURE and number % 2 else None
            number += 1
            with contextlib.suppress(OSError):
                if scheme == "udp":
                    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                        stranger.sendto(b"Subscribe everything\n", ("127.0.0.1", int(ports[scheme])))
                else:
                    _, writer = await dial(ports[scheme], inside)
                    writer.transport.abort()
                done[scheme] += 1
                done["inside TLS"] += inside is not None

    await in_parallel(20, flood)


async def subscription_bomb(ports: Ports, until: float, done: Done) -> None:
    """Subscribe with deep wildcards, publish matching topics, disconnect with thousands, and reconnect."""

    async def bomb(which: int) -> None:
        chosen = random.Random(which)
        while time.monotonic() < until:
            await come_and_go(which, chosen)
            done["left"] += 1

    async def come_and_go(which: int, chosen: random.Random) -> None:
        line = which % 2 == 1
        reader, writer = await client(ports["line" if line else "mqtt"], f"bomb-{which}", line)
        number = 0
        while time.monotonic() < until and number < 100:
            filters = []
            for _ in range(50):
                levels = [chosen.choice(["+", "a", "b"]) for _ in range(chosen.randint(20, 120))]
                filters.append("/".join([*levels, "#"]))
            number += 1
            topic = "/".join(chosen.choices("ab", k=120))
            if line:
                writer.write("".join(f"Subscribe {one}\n" for one in filters).encode())
                writer.write(f"Publish {topic} 1 noack\nx\n".encode())
            else:
                wishes = [(one, options(qos=0)) for one in filters]
                writer.write(subscribe_packet(number % 65_535 + 1, wishes))
                writer.write(publish_packet(topic, b"x"))
            await writer.drain()
            left = len(filters) if line else 0  # the answers to them, among messages
            while left:
                answer = await asyncio.wait_for(reader.readuntil(b"\n"), 30)
                left -= answer.startswith(b"SubAck ")
            if not line:
                await asyncio.wait_for(reader.read(65_536), 30)
            done["filters on lines" if line else "filters"] += len(filters)
            await pace()
        writer.transport.abort()

    await in_parallel(4, bomb)


async def retained_bomb(ports: Ports, until: float, done: Done) -> None:
    """Retain messages on ever more topics, and remove them all at once; repeat."""
    reader, writer = await client(ports["mqtt"], "keeper")
    phase = (until - time.monotonic()) / 4
    while time.monotonic() < until:
        topics = 0
        full = time.monotonic() + phase
        while time.monotonic() < full and topics < 200_000:
            for _ in range(100):
                writer.write(publish_packet(f"kept/{topics % 97}/{topics}", b"x" * 100, retain=True))
                topics += 1
            await writer.drain()
            await pace()
        done["topics"] = max(done["topics"], topics)
        for number in range(topics):
            writer.write(publish_packet(f"kept/{number % 97}/{number}", b"", retain=True))
            if number % 1_000 == 0:
                await writer.drain()
        await writer.drain()
        writer.write(b"\xc0\x00")
        await asyncio.wait_for(reader.read(1), 60)  # PINGRESP: everything before was handled
        done["taken back"] += topics
    await hang_up((reader, writer))


async def huge_topics(ports: Ports, until: float, done: Done) -> None:
    """Publish and subscribe with different topics of the maximum length."""

    async def huge(which: int) -> None:
        line = which % 2 == 1
        reader, writer = await client(ports["line" if line else "mqtt"], f"huge-{which}", line)
        number = 0
        while time.monotonic() < until:
            number += 1
            topic = f"{which}-{number}-".ljust(65_000, "x")
            if line:
                writer.write(f"Publish {topic} 1 noack\nx\nSubscribe {topic}\n".encode())
            else:
                writer.write(publish_packet(topic, b"x"))
                writer.write(subscribe_packet(number % 65_535 + 1, [(topic, options(qos=0))]))
            await writer.drain()
            if not await asyncio.wait_for(reader.read(65_536), 30):
                break
            done["topics on lines" if line else "topics"] += 1
            await pace()
        writer.transport.abort()

    await in_parallel(4, huge)


async def collisions(ports: Ports, until: float, done: Done) -> None:
    """Many clients with the same client id, over several protocols."""
    schemes = ("mqtt", "line", "unix")

    async def collide(which: int) -> None:
        scheme = schemes[which % len(schemes)]
        while time.monotonic() < until:
            with contextlib.suppress(OSError, EOFError):
                stream = await client(ports[scheme], "the-one", scheme == "line")
                done[scheme] += 1
                await pace(0.02)
                await hang_up(stream)

    await in_parallel(50, collide)


async def api_requests(ports: Ports, until: float, done: Done) -> None:
    """Request every resource of the HTTP API in pages of the maximum size; repeat."""
    paths = [
        "/api/v1/topics?limit=1000",
        "/api/v1/clients?limit=1000",
        "/api/v1/streams/default/messages?limit=1000",
        "/api/v1/streams/default/messages?limit=1000&filter=nothing/%23",
        "/metrics",
    ]

    async def insist(which: int) -> None:
        number = which
        while time.monotonic() < until:
            path = paths[number % len(paths)]
            number += 1
            reader, writer = await dial(ports["http"])
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.read(), 60)
            done["answers" if answer.startswith(b"HTTP/1.1 200 ") else "refusals"] += 1
            await hang_up((reader, writer))

    await in_parallel(8, insist)


async def random_bytes(ports: Ports, until: float, done: Done) -> None:
    """Send random bytes to every port; with TLS, instead of it and inside it."""
    chosen = random.Random(7)
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    endpoint.setblocking(False)

    async def babble(which: int) -> None:
        schemes = list(ports)
        while time.monotonic() < until:
            scheme = chosen.choice(schemes)
            data = chosen.randbytes(chosen.randint(1, 2_000))
            if scheme == "udp":
                with contextlib.suppress(OSError):
                    endpoint.sendto(data, ("127.0.0.1", int(ports[scheme])))
            else:
                inside = scheme in SECURE and chosen.random() < 0.5
                with contextlib.suppress(OSError, TimeoutError):
                    stream = await dial(ports[scheme], TLS if inside else None)
                    done["inside TLS"] += inside
                    stream[1].write(data)
                    await stream[1].drain()
                    await asyncio.wait_for(stream[0].read(1_000), 0.05)
                    stream[1].transport.abort()
            done[scheme] += 1
            await pace(0.002)

    await in_parallel(10, babble)
    endpoint.close()


ATTACKS: dict[str, Attack] = {
    one.__name__: one
    for one in (
        slow_loris,
        half_open,
        idle_with_churn,
        connection_flood,
        subscription_bomb,
        retained_bomb,
        huge_topics,
        collisions,
        api_requests,
        random_bytes,
        *attacks_by_packets.ATTACKS,
        *attacks_by_log.ATTACKS,
        *attacks_by_strangers.ATTACKS,
    )
}


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # connections that the broker ends are expected
    name, seconds, ports = sys.argv[1:]
    done: Done = Counter()
    if ATTACKS[name] not in PREPARING:
        ready()
    asyncio.run(ATTACKS[name](json.loads(ports), time.monotonic() + float(seconds), done))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
