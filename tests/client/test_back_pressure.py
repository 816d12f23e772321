"""Messages that are not read stay with the broker."""

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
        await client.publish("elsewhere", b"", qos=1)  # whatever the broker had to send before is here
        assert messages.waiting == 100
        most = 0
        for number in range(2_000):
            assert int((await messages.get(10)).payload) == number
            most = max(most, messages.waiting)
        assert most <= 100


async def test_a_client_that_is_not_read_from_stops_reading(durable: Durable) -> None:
    """QoS 0 without loss: the broker keeps in its log what is not taken, and memory is bounded."""
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
            await publisher.publish("b", b"", qos=1)  # the broker has everything before it
            await until(lambda: client._link.paused)
            waiting = messages.waiting
            memory = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert 100 < waiting < 1_000  # no more than one read beyond
        assert memory < 10_000_000  # of 50 MB
        for number in range(total):
            assert int((await messages.get(10)).payload[:6]) == number


async def test_who_publishes_between_messages_does_not_wait_for_ever(url: str, topic: str) -> None:
    """Reading goes on while a call waits for the broker, or its acknowledgement would never be read."""
    async with asyncio.timeout(60), Client(url, max_waiting=10) as client, Client(url) as publisher:
        messages = await client.subscribe(f"{topic}/in")
        for number in range(1_000):
            await publisher.publish(f"{topic}/in", b"%d" % number)
        await publisher.publish("elsewhere", b"", qos=1)
        await until(lambda: client._link.paused)
        for number in range(200):
            assert int((await messages.get(10)).payload) == number
            await client.publish(f"{topic}/out", b"", qos=1)


async def test_a_loop_that_publishes_qos_0_waits_for_the_peer() -> None:
    """A peer that accepts and reads nothing more: what is published does not pile up in memory."""
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
            await until(lambda: client._link.wire is not None and not client._link.wire.writable)
            await turns(10)  # the call that filled the buffer returns
            before = sent
            await turns(1_000)
            assert sent == before < 50_000
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            done.set()
