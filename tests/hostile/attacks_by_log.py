"""Attacks on shared resources: sessions, consumers, retained messages, and reads of the log.

They run on the guarded broker. `greedy` and `reader` attack; `other` is a user who needs a share meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.conformance.wire import options, publish_packet, subscribe_packet
from tests.hostile.dialing import (
    PATIENCE,
    SOAKING,
    Attack,
    Done,
    Ports,
    Wire,
    again_and_again,
    dial,
    in_parallel,
    log_in,
    prepares,
    ready_after,
    request,
)

from .dialing import pace

SESSIONS = 500
"""Sessions that one user may have, by the configuration of the guarded broker."""
CONSUMERS = 1_000
"""Consumers that `greedy` may have, by the same."""
RESUMING = 300
"""Sessions that come back at one time."""
PAST = 2_000 if SOAKING else 200
"""Messages that each of them is sent from the log."""
SIZE = 1_000
"""Bytes of the payload of each."""
POLLS = 900
"""Pulls over HTTP that wait."""
LARGE = 1_000_000
"""Bytes of a payload that must not be retained."""


@asynccontextmanager
async def timed(done: Done, what: str) -> AsyncIterator[None]:
    """Count the block, and keep its longest duration in milliseconds."""
    began = time.monotonic()
    yield
    done[what] += 1
    longest = f"longest {what}, ms"
    done[longest] = max(done[longest], round((time.monotonic() - began) * 1e3))


async def requests_without_rights(ports: Ports, until: float, done: Done) -> None:
    """Publish and retain a megabyte at a time below $pyrite/, and send JSON that must not be decoded."""
    body = json.dumps({"topic": "$pyrite/kept", "payload": "x" * LARGE, "retain": True}).encode()
    places = json.dumps([f"default:{number}" for number in range(4_000)]).encode()

    async def over_mqtt(which: int) -> None:
        wire = await log_in(ports, ("mqtt", "ws")[which], f"requests-{which}", "reader")
        number = 0
        while time.monotonic() < until:
            number += 1
            kept = publish_packet(f"$pyrite/{which}/{number}", bytes(LARGE), retain=True, qos=1, packet_id=1)
            await wire.round_trip(kept)
            done["retained"] += 1
            decoded = [
                publish_packet(f"$pyrite/{name}", places, response_topic="answers")
                for name in ("consumers/hidden/ack", "consumers/mine/create", "topics/list")
            ]
            await wire.round_trip(b"".join(decoded * 4))
            done["requests"] += len(decoded) * 4
        wire.abort()

    async def as_lines(_: int) -> None:
        reader, writer = await dial(ports["line"])
        writer.write(b"Connect requests user=reader password=word\n")
        while time.monotonic() < until:
            writer.write(b"Publish $pyrite/line %d retain\n" % LARGE + bytes(LARGE) + b"\nPing over\n")
            async with asyncio.timeout(PATIENCE):
                while b"Pong over" not in await reader.readuntil(b"\n"):
                    pass
            done["lines"] += 1
        writer.transport.abort()

    async def over_http(_: int) -> None:
        status = await request(ports, "/api/v1/publish", "reader", "POST", body)
        done["refused over HTTP"] += status in (0, 403)  # 0: it was answered before all was sent

    await asyncio.gather(
        again_and_again(2, until, over_mqtt),
        again_and_again(1, until, as_lines),
        again_and_again(1, until, over_http),
    )


async def all_sessions_and_consumers(ports: Ports, until: float, done: Done) -> None:
    """Let one user create sessions and consumers beyond the quota, while another user logs in."""
    hoard: list[Wire] = []

    async def come(which: int) -> None:
        try:
            hoard.append(
                await log_in(ports, "mqtt", f"hoard-{which}", "greedy", session_expiry_interval=3_600)
            )
            done["sessions"] += 1
        except ConnectionError:
            done["sessions refused"] += 1

    async def consume(wire: Wire, action: str, body: bytes) -> None:
        """Send a request about each consumer, and wait for all answers."""
        wire.write(
            b"".join(
                publish_packet(f"$pyrite/consumers/c{number}/{action}", body, response_topic="answers")
                for number in range(CONSUMERS + 100)
            )
        )
        async with asyncio.timeout(PATIENCE):
            for _ in range(CONSUMERS + 100):
                await wire.reader.readuntil(b"pyrite-")
                done[f"{action}: {(await wire.reader.readexactly(5)).decode()}"] += 1

    async def log_in_meanwhile() -> None:
        while time.monotonic() < until:
            async with timed(done, "others let in"):
                wire = await log_in(ports, "mqtt", "other", "other", session_expiry_interval=3_600)
                await wire.end()
            await pace(0.05)

    logging_in = asyncio.create_task(log_in_meanwhile())
    await come(0)
    for first in range(1, SESSIONS, 50):
        await in_parallel(50, lambda which, first=first: come(first + which))  # type: ignore[misc]
    await consume(hoard[0], "create", b'{"filter": "mine/#"}')
    await again_and_again(5, until, lambda which: come(SESSIONS + which))
    await logging_in
    await consume(hoard[0], "delete", b"")
    await in_parallel(len(hoard), lambda which: hoard[which].end())


@prepares
async def resuming_sessions(ports: Ports, until: float, done: Done) -> None:
    """Resume 300 sessions with messages waiting in the log, beside another user's catch-up."""
    began = time.monotonic()
    stays = {"session_expiry_interval": 3_600, "clean": False}

    logging_in = asyncio.Semaphore(200)  # of more than 256 from one address the broker refuses some

    async def resume(which: int) -> Wire:
        async with logging_in:
            return await log_in(ports, "mqtt", f"resuming-{which}", "greedy", **stays)

    async def leave_session(which: int) -> None:
        wire = await resume(which)
        await wire.round_trip(subscribe_packet(1, [("mine/past", options(qos=1))]))
        wire.abort()

    async def stream(which: int) -> None:
        wire = await resume(which)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                came = 0
                while came < PAST * SIZE and time.monotonic() < until:
                    read = await wire.reader.read(262_144)
                    came += len(read)
                    if not read:
                        break
                done["resumed"] += 1
        wire.abort()

    async def catch_up() -> None:
        wire = await log_in(ports, "mqtt", "catches-up", "other")
        async with timed(done, "catch-ups"), asyncio.timeout(PATIENCE):
            past = ("pyrite-from", "earliest")
            wire.write(subscribe_packet(1, [("mine/past", options(qos=1))], user_property=past))
            came = 0
            while came < PAST * SIZE:
                came += len(await wire.reader.readexactly(SIZE))
        await wire.end()

    async def end_session(which: int) -> None:
        await (await log_in(ports, "mqtt", f"resuming-{which}", "greedy")).end()
        done["ended"] += 1

    await in_parallel(RESUMING, leave_session)
    publisher = await log_in(ports, "mqtt", "publisher", "greedy")
    for first in range(0, PAST, 10):
        ids = range(first + 1, first + 11)
        payload = b"x" * SIZE
        await publisher.round_trip(
            b"".join(publish_packet("mine/past", payload, qos=1, packet_id=one) for one in ids)
        )
    await publisher.end()
    until = ready_after(began, until)
    while not done["catch-ups"] or time.monotonic() < until:
        crowd = asyncio.create_task(in_parallel(RESUMING, stream))
        await catch_up()
        await crowd
    for first in range(0, RESUMING, 50):
        await in_parallel(50, lambda which, first=first: end_session(first + which))  # type: ignore[misc]


async def long_polls(ports: Ports, until: float, done: Done) -> None:
    """Let 900 pulls of one user wait over HTTP, beside a catch-up by reads of another user."""
    waits = json.dumps({"filter": "mine/nothing", "wait": 30}).encode()
    reads = json.dumps({"filter": "mine/other", "wait": 0}).encode()

    async def poll(which: int) -> None:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                status = await request(
                    ports, f"/api/v1/consumers/poll-{which % 90}/pull", "greedy", "POST", waits
                )
        except TimeoutError:
            done["waited"] += 1
        else:
            done["refused"] += status == 429
            await pace(0.5)

    async def pull(_: int) -> None:
        async with timed(done, "pulls of another user"):
            status = await request(ports, "/api/v1/consumers/others/pull", "other", "POST", reads)
            assert status in (0, 200, 503), status
        done[f"answered {status}"] += 1

    await asyncio.gather(again_and_again(POLLS, until, poll), again_and_again(1, until, pull))
    wire = await log_in(ports, "mqtt", "cleans-up", "greedy")
    await wire.round_trip(
        b"".join(
            publish_packet(f"$pyrite/consumers/poll-{which}/delete", response_topic="answers")
            for which in range(90)
        )
    )
    await wire.end()


ATTACKS: tuple[Attack, ...] = (
    requests_without_rights,
    all_sessions_and_consumers,
    resuming_sessions,
    long_polls,
)
