"""Publishing and subscribing with the asyncio client, against a real broker."""

from __future__ import annotations

import asyncio

import pytest

from pyrite.client import Client, ClientError, ConnectError, Message, SubscribeError, Will
from pyrite.topics.filters import matches, without_share
from tests.server.conftest import Certificates
from tests.support.waiting import until

from .conftest import SCHEMES


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_arrive_in_order_with_their_qos(url: str, topic: str, qos: int, version: int) -> None:
    async with (
        Client(url, version=version) as client,
        client.subscribe(f"{topic}/#", qos=qos) as messages,
    ):
        assert messages.qos == qos
        for number in range(200):
            await client.publish(f"{topic}/{number % 3}", b"%d" % number, qos=qos)
        received = [await messages.get(10) for _ in range(200)]
    assert [message.payload for message in received] == [b"%d" % number for number in range(200)]
    assert {message.qos for message in received} == {qos}
    assert received[1].topic == f"{topic}/1"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_every_transport_works(
    urls: dict[str, str], certificates: Certificates, topic: str, scheme: str
) -> None:
    tls = certificates.context() if scheme in ("mqtts", "wss") else None
    large = bytes(range(256)) * 4_000
    async with Client(urls[scheme], tls=tls) as client, client.subscribe(topic, qos=1) as messages:
        await asyncio.gather(*(client.publish(topic, b"%d" % number, qos=1) for number in range(500)))
        await client.publish(topic, large, qos=1)
        async with asyncio.timeout(20):  # shorter than the interval of the ping that would unblock it
            await client.drained(everything=True)
        received = [(await messages.get(10)).payload for _ in range(501)]
    assert received == [*(b"%d" % number for number in range(500)), large]


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
async def test_a_certificate_that_is_not_trusted_is_refused(urls: dict[str, str], scheme: str) -> None:
    with pytest.raises(ConnectError, match="certificate verify failed"):
        await Client(urls[scheme]).connect()


async def test_concurrent_publishes_are_all_acknowledged(url: str, topic: str) -> None:
    async with Client(url) as publisher, Client(url) as subscriber:
        messages = await subscriber.subscribe(topic, qos=2)
        for qos in (1, 2):
            await asyncio.gather(*(publisher.publish(topic, b"x", qos=qos) for _ in range(5_000)))
            assert {(await messages.get(10)).qos for _ in range(5_000)} == {qos}


async def test_properties_arrive_unchanged(url: str, topic: str) -> None:
    properties = {
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"\0\1",
        "user_property": [("a", "1"), ("a", "2")],
    }
    async with Client(url) as client, client.subscribe(topic, qos=1) as messages:
        await client.publish(topic, "text", qos=1, properties=properties)
        message = await messages.get(10)
    assert {name: message.properties[name] for name in properties} == properties
    assert message.payload == b"text"
    assert message.user_property("a") == "2"
    assert message.user_property("b") is None


async def test_a_new_subscription_receives_the_retained_message(url: str, topic: str) -> None:
    async with Client(url) as client:
        await client.publish(topic, b"kept", qos=1, retain=True)
        async with client.subscribe(topic, qos=1) as messages:
            message = await messages.get(10)
            assert (message.payload, message.retain) == (b"kept", True)
        await client.publish(topic, b"", qos=1, retain=True)


async def test_the_will_is_published_after_a_lost_connection_only(url: str, topic: str) -> None:
    async with Client(url) as watcher, watcher.subscribe(topic, qos=1) as messages:
        async with Client(url, will=Will(topic, b"left", 1), session_expiry=0):
            pass
        client = Client(url, will=Will(topic, b"vanished", 1), session_expiry=0, reconnect=False)
        await client.connect()
        assert client._connection.transport is not None
        client._connection.transport.abort()
        assert (await messages.get(10)).payload == b"vanished"
        await client.close()


async def test_overlapping_subscriptions_each_receive_a_message_once(url: str, topic: str) -> None:
    async with (
        Client(url) as client,
        client.subscribe(f"{topic}/#", qos=1) as all_of_them,
        client.subscribe(f"{topic}/a", qos=1) as one,
    ):
        await client.publish(f"{topic}/a", b"1", qos=1)
        await client.publish(f"{topic}/b", b"2", qos=1)
        assert [(await all_of_them.get(10)).payload for _ in range(2)] == [b"1", b"2"]
        assert (await one.get(10)).payload == b"1"
        await client.publish(f"{topic}/a", b"3", qos=1)
        assert (await one.get(10)).payload == b"3"
        assert (await all_of_them.get(10)).payload == b"3"


async def test_subscribing_twice_to_a_filter_is_refused(url: str, topic: str) -> None:
    async with Client(url) as client:
        async with client.subscribe(topic):
            with pytest.raises(ClientError, match="already"):
                await client.subscribe(topic)
        async with client.subscribe(topic):
            pass


@pytest.mark.parametrize("topic_filter", ["a/#/b", "a+", "", "a/b#"])
async def test_an_invalid_filter_is_refused_locally(url: str, topic_filter: str) -> None:
    async with Client(url) as client:
        with pytest.raises(ValueError, match="invalid topic filter"):
            client.subscribe(topic_filter)


@pytest.mark.parametrize("name", ["", "a/#", "a+b", "a\0"])
async def test_an_invalid_topic_is_refused_locally(url: str, name: str) -> None:
    async with Client(url) as client:
        with pytest.raises(ValueError, match="invalid topic"):
            await client.publish(name, b"", qos=1)
        await client.publish("fine", b"", qos=1)


async def test_closing_a_subscription_frees_its_part_of_the_window(url: str, topic: str) -> None:
    async with Client(url, max_waiting=10) as client, Client(url) as publisher:
        async with client.subscribe(f"{topic}/1", qos=1) as messages:
            await asyncio.gather(*(publisher.publish(f"{topic}/1", b"x", qos=1) for _ in range(50)))
            await until(lambda: messages.waiting == 10)
        async with client.subscribe(f"{topic}/2", qos=1) as messages:
            for number in range(50):
                await publisher.publish(f"{topic}/2", b"%d" % number, qos=1)
                assert (await messages.get(10)).payload == b"%d" % number


async def test_the_iterator_ends_when_the_client_is_closed(url: str, topic: str) -> None:
    received: list[Message] = []

    async def read(client: Client, ready: asyncio.Event) -> None:
        messages = await client.subscribe(topic)
        ready.set()
        received.extend([message async for message in messages])

    async with asyncio.timeout(10), Client(url) as client:
        ready = asyncio.Event()
        reader = asyncio.create_task(read(client, ready))
        await ready.wait()
        await client.close()
        await reader
    assert received == []


async def test_closing_the_client_while_messages_wait_does_not_hang(url: str, topic: str) -> None:
    async with asyncio.timeout(10), Client(url, max_waiting=5) as client, Client(url) as publisher:
        messages = await client.subscribe(topic, qos=1)
        await client.subscribe(f"{topic}/0", qos=0)
        for _ in range(20):
            await publisher.publish(topic, b"x", qos=1)
            await publisher.publish(f"{topic}/0", b"x")
        await messages.get(5)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_resumed_session_delivers_missed_messages_even_before_subscribe(
    url: str, topic: str, version: int
) -> None:
    async with Client(url, client_id=topic, session_expiry=60, version=version) as client:
        await client.subscribe(f"{topic}/#", qos=1)
    async with Client(url) as publisher:
        for number in range(30):
            await publisher.publish(f"{topic}/a", b"%d" % number, qos=1)
    async with Client(url, client_id=topic, session_expiry=1, version=version) as client:
        await client.publish("elsewhere", b"", qos=1)  # so the first of them have arrived
        messages = await client.subscribe(f"{topic}/#", qos=1)
        assert [(await messages.get(10)).payload for _ in range(30)] == [
            b"%d" % number for number in range(30)
        ]


async def test_a_clean_start_discards_the_session(url: str, topic: str) -> None:
    async with Client(url, client_id=topic, session_expiry=60) as client:
        await client.subscribe(topic, qos=1)
    present: list[bool] = []
    async with Client(url, client_id=topic, session_expiry=60, on_connect=present.append):
        pass
    async with Client(url, client_id=topic, clean_start=True, on_connect=present.append):
        pass
    async with Client(
        url, client_id=topic, on_connect=present.append
    ):  # without session_expiry, the session has ended
        pass
    assert present == [True, False, False]


async def test_publish_nowait_sends_qos_0(url: str, topic: str) -> None:
    async with Client(url) as publisher, Client(url, max_waiting=20_000) as client:
        messages = await client.subscribe(topic)
        for number in range(2_000):
            publisher.publish_nowait(topic, b"%d" % number)
        await publisher.drained()
        assert [int((await messages.get(10)).payload) for _ in range(2_000)] == list(range(2_000))


async def test_unsubscribing_by_filter_ends_a_subscription_of_an_earlier_session(
    url: str, topic: str
) -> None:
    async with Client(url, client_id=topic, session_expiry=60) as client:
        await client.subscribe(topic, qos=1)
    async with Client(url, client_id=topic) as client:
        await client.unsubscribe(topic)
        await client.publish(topic, b"unheard", qos=1)
        async with client.subscribe(topic, qos=1) as messages:
            await client.publish(topic, b"heard", qos=1)
            assert (await messages.get(10)).payload == b"heard"


@pytest.mark.parametrize(
    ("topic_filter", "name", "fits"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a", True),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
        ("$share/group/a/+", "a/b", True),
        ("+/+", "/a", True),
        ("+", "/a", False),
    ],
)
def test_filters_match_as_specified(topic_filter: str, name: str, fits: bool) -> None:
    assert matches(without_share(topic_filter.encode()), name.encode()) is fits


async def test_a_refused_subscription_carries_the_reason_code(url: str) -> None:
    async with Client(url) as client:
        with pytest.raises(SubscribeError, match=r"topic filter invalid \(0x8F\)") as caught:
            await client.subscribe("$share//a")
        assert caught.value.reason == 0x8F
