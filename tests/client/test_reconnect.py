"""Reconnecting: nothing promised is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pyrite.client import Client, ClientError, ConnectError, ConnectionLost
from tests.support.waiting import let_pass, until

from .conftest import Durable

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("qos", [1, 2])
async def test_no_acknowledged_message_is_lost_when_the_broker_is_killed(durable: Durable, qos: int) -> None:
    acknowledged: list[int] = []
    received: list[int] = []
    restarted = asyncio.Event()
    total = 2_000

    async def publish(client: Client, numbers: range) -> None:
        for number in numbers:
            await client.publish("kept/a", b"%d" % number, qos=qos)
            acknowledged.append(number)
            if number == numbers[-1] // 2:
                await restarted.wait()  # so some messages are published after the restart

    async def read(client: Client) -> None:
        messages = await client.subscribe("kept/#", qos=qos)
        ready.set()
        async for message in messages:
            received.append(int(message.payload))
            if len(set(received)) == total:
                return

    ready = asyncio.Event()
    lost: list[ClientError] = []
    async with (
        asyncio.timeout(100),
        Client(
            durable.url, client_id="publisher", session_expiry=600, on_disconnect=lost.append
        ) as publisher,
        Client(durable.url, client_id="reader", session_expiry=600) as reader,
    ):
        reading = asyncio.create_task(read(reader))
        await ready.wait()
        tasks = [
            asyncio.create_task(publish(publisher, range(first, first + 100)))
            for first in range(0, total, 100)
        ]
        await until(lambda: len(acknowledged) > 100)
        await durable.restart()
        restarted.set()
        await asyncio.gather(*tasks)
        await reading
        async with reader.subscribe("+/a", qos=1, start="earliest") as past:
            in_log: Counter[int] = Counter()
            while len(in_log) < total:
                in_log[int((await past.get(10)).payload)] += 1
    assert len(lost) == 1
    assert sorted(acknowledged) == list(range(total))
    assert set(received) == set(range(total))
    assert set(in_log) == set(range(total))
    if qos == 2:
        assert len(received) == total
        assert set(in_log.values()) == {1}


async def test_calls_wait_until_the_broker_is_back(durable: Durable) -> None:
    gone = asyncio.Event()
    async with (
        asyncio.timeout(60),
        Client(durable.url, on_disconnect=lambda error: gone.set()) as client,
    ):
        await asyncio.to_thread(durable.kill)
        await gone.wait()
        assert not client.connected.is_set()
        with pytest.raises(ConnectionLost):
            client.publish_nowait("a", b"")
        calls = [
            asyncio.create_task(client.publish("a", b"1", qos=1)),
            asyncio.create_task(client.publish("a", b"0", qos=0)),
        ]
        subscribing = asyncio.ensure_future(client.subscribe("b", qos=1).__aenter__())
        await asyncio.to_thread(durable.start)
        await asyncio.gather(*calls)
        messages = await subscribing
        await client.publish("b", b"heard", qos=1)
        assert (await messages.get(10)).payload == b"heard"


async def test_a_client_subscribes_again_when_its_session_is_gone(durable: Durable) -> None:
    present: asyncio.Queue[bool] = asyncio.Queue()
    async with (
        asyncio.timeout(60),
        Client(durable.url, session_expiry=0, on_connect=present.put_nowait) as client,
        Client(durable.url) as publisher,
    ):
        assert not await present.get()
        messages = await client.subscribe("a/#", qos=1, start="earliest")
        await publisher.publish("a/b", b"before", qos=1)
        assert (await messages.get(10)).payload == b"before"
        await durable.restart()
        assert not await present.get()
        await client.publish("a/b", b"after", qos=1)  # sent after the SUBSCRIBE, on the same connection
        assert (await messages.get(10)).payload == b"after"


@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_not_taken_are_delivered_again_once(url: str, topic: str, qos: int) -> None:
    """Messages still waiting are unacknowledged; a resumed session delivers them again."""
    back: asyncio.Queue[bool] = asyncio.Queue()
    async with (
        asyncio.timeout(60),
        Client(url, max_waiting=50, on_connect=back.put_nowait) as client,
        Client(url) as publisher,
    ):
        await back.get()
        messages = await client.subscribe(topic, qos=qos)
        await asyncio.gather(*(publisher.publish(topic, b"%d" % number, qos=qos) for number in range(200)))
        await until(lambda: messages.waiting == 50)
        received = [int((await messages.get(10)).payload) for _ in range(10)]
        await client.publish("elsewhere", b"", qos=1)  # so the acknowledgements have arrived
        assert client._connection.transport is not None
        client._connection.transport.abort()
        assert await back.get()
        received += [int((await messages.get(10)).payload) for _ in range(190)]
    assert received == list(range(200))


async def test_without_reconnect_every_waiting_call_fails(durable: Durable) -> None:
    async with asyncio.timeout(60), Client(durable.url, reconnect=False, keep_alive=0) as client:
        messages = await client.subscribe("a")
        reading = asyncio.create_task(messages.get())
        await client.publish("b", b"", qos=1)
        await asyncio.to_thread(durable.kill)
        with pytest.raises(ConnectionLost, match="was lost"):
            await reading
        for call in (client.publish("a", b"", qos=1), client.publish("a", b""), client.topics()):
            with pytest.raises(ConnectionLost):
                await call
        with pytest.raises(ConnectionLost):
            await client.subscribe("c")


async def test_a_session_takeover_ends_the_client(url: str, topic: str) -> None:
    async with asyncio.timeout(10), Client(url, client_id=topic) as client:
        messages = await client.subscribe(topic)
        async with Client(url, client_id=topic):
            with pytest.raises(ConnectionLost, match="session taken over"):
                await messages.get()
            with pytest.raises(ConnectionLost, match="session taken over"):
                await client.publish(topic, b"", qos=1)


async def test_a_waiting_publish_can_be_cancelled(durable: Durable) -> None:
    gone = asyncio.Event()
    async with asyncio.timeout(60), Client(durable.url, on_disconnect=lambda error: gone.set()) as client:
        await asyncio.to_thread(durable.kill)
        await gone.wait()
        for qos in (0, 1, 2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.publish("a", b"cancelled", qos=qos)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.subscribe("b")
        await asyncio.to_thread(durable.start)
        messages = await client.subscribe("#", qos=2, start="earliest")
        await client.publish("a", b"sent", qos=1)
        assert (await messages.get(10)).payload == b"sent"
        async with client.subscribe("b"):
            pass


async def test_closing_a_subscription_does_not_wait_for_a_reconnect(durable: Durable) -> None:
    gone = asyncio.Event()
    async with asyncio.timeout(30), Client(durable.url, on_disconnect=lambda error: gone.set()) as client:
        async with client.subscribe("a", qos=1):
            await asyncio.to_thread(durable.kill)
            await gone.wait()
        await asyncio.to_thread(durable.start)
        messages = await client.subscribe("+", qos=1)
        await client.publish("a", b"1", qos=1)
        await client.publish("a", b"2", qos=1)
        received = [await messages.get(10) for _ in range(2)]
        assert [message.payload for message in received] == [b"1", b"2"]
        assert [len(message.properties["subscription_identifier"]) for message in received] == [1, 1]


async def test_closing_a_subscription_returns_when_the_connection_is_lost() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept one connection and one subscription, and close at UNSUBSCRIBE."""
        server.close()
        while True:
            first, length = await reader.readexactly(2)
            await reader.readexactly(length)
            if first == 0xA2:
                break
            writer.write(bytes.fromhex("20 03 00 00 00" if first == 0x10 else "90 04 00 01 00 01"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(10), Client(f"mqtt://127.0.0.1:{port}") as client:
        async with client.subscribe("a", qos=1):
            pass
        assert not client.connected.is_set()


async def test_closing_the_client_while_the_broker_is_down_does_not_hang(durable: Durable) -> None:
    gone = asyncio.Event()
    client = Client(durable.url, on_disconnect=lambda error: gone.set())
    async with asyncio.timeout(10):
        await client.connect()
        await asyncio.to_thread(durable.kill)
        await gone.wait()
        publishing = asyncio.create_task(client.publish("a", b"", qos=1))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await publishing


async def test_a_silent_broker_is_detected_by_keep_alive(url: str) -> None:
    accepted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(bytes.fromhex("20 03 00 00 00"))
        accepted.set()
        while await reader.read(1_000):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        port = server.sockets[0].getsockname()[1]
        async with Client(f"mqtt://127.0.0.1:{port}", keep_alive=1, reconnect=False) as client:
            with pytest.raises(ConnectionLost, match="no packet from the broker"):
                await client.publish("a", b"", qos=1)


async def test_an_idle_client_keeps_its_connection_alive(url: str) -> None:
    lost: list[ClientError] = []
    async with Client(url, keep_alive=1, on_disconnect=lost.append) as client:
        await asyncio.to_thread(let_pass, 1.8, "the broker would close a silent connection after 1.5 s")
        await client.publish("a", b"", qos=1)
    assert lost == []


async def test_a_permanent_refusal_stops_reconnecting() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readexactly(2)
        writer.write(bytes.fromhex("20 03 00 00 00" if connections == 1 else "20 03 00 87 00"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        port = server.sockets[0].getsockname()[1]
        async with Client(f"mqtt://127.0.0.1:{port}") as client:
            with pytest.raises(ConnectError, match="not authorized") as caught:
                await client.publish("a", b"", qos=1)
            assert caught.value.reason == 0x87
    assert connections == 2
