"""Back-pressure: messages that a client does not take stay with the broker."""

from __future__ import annotations

import asyncio
import tracemalloc

from pyrite.client import Client
from tests.support.waiting import until

from .conftest import Durable


async def turns(count: int) -> None:
    """Let the event loop go round a number of times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_qos_1_messages_beyond_max_waiting_stay_with_the_broker(url: str, topic: str) -> None:
    async with asyncio.timeout(60), Client(url, max_waiting=100) as client, Client(url) as publisher:
        messages = await client.subscribe(topic, qos=1)
        for first in range(0, 2_000, 500):
            await asyncio.gather(
                *(publisher.publish(topic, b"%d" % number, qos=1) for number in range(first, first + 500))
            )
        await until(lambda: messages.waiting == 100)
        await client.publish("elsewhere", b"", qos=1)  # so everything the broker sent before has arrived
        assert messages.waiting == 100
        most = 0
        for number in range(2_000):
            assert int((await messages.get(10)).payload) == number
            most = max(most, messages.waiting)
        assert most <= 100


async def test_a_client_whose_messages_are_not_taken_stops_reading(durable: Durable) -> None:
    """With lossless QoS 0, messages not taken stay in the log, and the client's memory is bounded."""
    payload, total = bytes(1_000), 50_000
    async with (
        asyncio.timeout(100),
        Client(durable.url, max_waiting=100) as client,
        Client(durable.url) as publisher,
    ):
        messages = await client.subscribe("a", qos=0, lossless=True)
        tracemalloc.start()
        try:
            for number in range(total):
                await publisher.publish("a", b"%06d" % number + payload)
            await publisher.publish("b", b"", qos=1)  # so everything before has reached the broker
            await until(lambda: client._connection.paused)
            waiting = messages.waiting
            memory = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert 100 < waiting < 1_000  # at most one read above the limit
        assert memory < 10_000_000  # of 50 MB in all
        for number in range(total):
            assert int((await messages.get(10)).payload[:6]) == number


async def test_publishing_while_messages_wait_does_not_deadlock(url: str, topic: str) -> None:
    """Reading continues while a call waits, or its acknowledgement would never be read."""
    async with asyncio.timeout(60), Client(url, max_waiting=10) as client, Client(url) as publisher:
        messages = await client.subscribe(f"{topic}/in")
        for number in range(1_000):
            await publisher.publish(f"{topic}/in", b"%d" % number)
        await publisher.publish("elsewhere", b"", qos=1)
        await until(lambda: client._connection.paused)
        for number in range(200):
            assert int((await messages.get(10)).payload) == number
            await client.publish(f"{topic}/out", b"", qos=1)


async def test_publishing_qos_0_in_a_loop_waits_for_a_slow_broker() -> None:
    """A broker that reads nothing makes publishers wait, so messages do not pile up in memory."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(bytes.fromhex("20 03 00 00 00"))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await done.wait()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sent = 0

    async def publish(client: Client) -> None:
        nonlocal sent
        while True:
            await client.publish("a", bytes(1_000))
            sent += 1

    async with server, asyncio.timeout(30):
        port = server.sockets[0].getsockname()[1]
        async with Client(f"mqtt://127.0.0.1:{port}", reconnect=False) as client:
            publishing = asyncio.create_task(publish(client))
            await until(
                lambda: client._connection.transport is not None and not client._connection.transport.writable
            )
            await turns(10)  # the call that filled the buffer returns
            before = sent
            await turns(1_000)
            assert sent == before < 50_000
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            done.set()
