"""Subscriptions with several filters, and sessions of an earlier client."""

from __future__ import annotations

import asyncio

import pytest

from pyrite.client import BlockingClient, Client, ClientError, SubscribeError

from .conftest import Durable

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_several_filters_share_one_iterator(url: str, topic: str, version: int) -> None:
    filters = [f"{topic}/a/#", f"{topic}/b"]
    async with Client(url, version=version) as client:
        async with client.subscribe(filters, qos=1) as messages:
            assert messages.filters == tuple(filters)
            assert messages.granted == dict.fromkeys(filters, 1)
            for name in ("a/1", "elsewhere", "b", "a/2"):
                await client.publish(f"{topic}/{name}", name, qos=1)
            assert [(await messages.get(10)).payload for _ in range(3)] == [b"a/1", b"b", b"a/2"]
        await client.publish(f"{topic}/b", b"unheard", qos=1)
        async with client.subscribe(filters, qos=1) as messages:
            await client.publish(f"{topic}/b", b"heard", qos=1)
            assert (await messages.get(10)).payload == b"heard"


async def test_overlapping_filters_of_one_subscription_deliver_a_message_once(url: str, topic: str) -> None:
    async with Client(url) as client, client.subscribe([f"{topic}/#", f"{topic}/+"], qos=1) as messages:
        for number in range(3):
            await client.publish(f"{topic}/a", b"%d" % number, qos=1)
        payloads = [(await messages.get(10)).payload for _ in range(messages.waiting)]
        assert sorted(set(payloads)) == [b"0", b"1", b"2"]


async def test_one_of_several_filters_can_be_unsubscribed(url: str, topic: str) -> None:
    async with Client(url) as client:
        messages = await client.subscribe([f"{topic}/a", f"{topic}/b"], qos=1)
        assert await client.unsubscribe(f"{topic}/a") == {}
        await client.publish(f"{topic}/a", b"unheard", qos=1)
        await client.publish(f"{topic}/b", b"heard", qos=1)
        assert (await messages.get(10)).payload == b"heard"
        assert await client.unsubscribe([f"{topic}/b", f"{topic}/never"]) == {}
        with pytest.raises(ClientError, match="has ended"):
            await messages.get(10)


async def test_a_refused_filter_does_not_affect_the_others(guarded: str) -> None:
    async with Client(guarded, username="bob", password="secret") as client:
        messages = await client.subscribe(["private/a", "public/a"], qos=1)
        assert messages.granted == {"public/a": 1}
        assert messages.refused == {"private/a": 0x87}
        assert messages.filters == ("public/a",)
        await client.publish("public/a", b"1", qos=1)
        assert (await messages.get(10)).payload == b"1"
        with pytest.raises(SubscribeError, match="private/b: not authorized") as caught:
            await client.subscribe(["private/b", "private/c"])
        assert caught.value.refused == {"private/b": 0x87, "private/c": 0x87}
        assert (caught.value.reason, caught.value.said) == (0x87, "not authorized")


async def test_a_subscription_needs_a_filter(url: str) -> None:
    async with Client(url) as client:
        with pytest.raises(ValueError, match="at least one filter"):
            client.subscribe([])


async def test_the_blocking_client_takes_several_filters(url: str, topic: str) -> None:
    def program() -> None:
        with BlockingClient(url) as client, client.subscribe([f"{topic}/a", f"{topic}/b"], 1) as messages:
            client.publish(f"{topic}/b", b"1", qos=1)
            assert messages.filters == (f"{topic}/a", f"{topic}/b")
            assert messages.get(10).payload == b"1"

    await asyncio.to_thread(program)


@pytest.mark.parametrize("filters", [[], ["elsewhere"]])
async def test_messages_of_an_earlier_subscription_can_be_claimed(
    url: str, topic: str, filters: list[str]
) -> None:
    async with Client(url, client_id=topic, session_expiry=60) as client:
        await client.subscribe(f"{topic}/#", qos=1)
    async with Client(url) as publisher:
        for number in range(3):
            await publisher.publish(f"{topic}/a", b"%d" % number, qos=1)
    async with Client(url, client_id=topic, session_expiry=60) as client:
        messages = await client.subscribe(filters, unclaimed=True)
        assert [(await messages.get(10)).payload for _ in range(3)] == [b"0", b"1", b"2"]
        async with client.subscribe(f"{topic}/b", qos=1) as own:
            await client.publish(f"{topic}/b", b"own", qos=1)
            await client.publish(f"{topic}/c", b"unclaimed", qos=1)
            assert (await own.get(10)).payload == b"own"
        assert (await messages.get(10)).payload == b"unclaimed"
        await messages.close()
        with pytest.raises(ClientError, match="has ended"):
            await messages.get(10)


async def test_a_replay_is_requested_again_until_a_message_has_arrived(durable: Durable) -> None:
    back: asyncio.Queue[bool] = asyncio.Queue()
    async with (
        asyncio.timeout(60),
        Client(durable.url, session_expiry=0, on_connect=back.put_nowait) as client,
        Client(durable.url) as publisher,
    ):
        await back.get()
        # From a future offset: nothing is delivered before the session is lost.
        messages = await client.subscribe("a", qos=1, start=1)
        await publisher.publish("b", b"", qos=1)
        await durable.restart()
        assert not await back.get()
        await publisher.publish("a", b"first", qos=1)
        assert (await messages.get(10)).payload == b"first"
        await durable.restart()
        assert not await back.get()
        await publisher.publish("a", b"second", qos=1)
        assert (await messages.get(10)).payload == b"second"


async def test_an_unsubscribed_filter_is_not_subscribed_again(durable: Durable) -> None:
    back: asyncio.Queue[bool] = asyncio.Queue()
    async with (
        asyncio.timeout(60),
        Client(durable.url, session_expiry=0, on_connect=back.put_nowait) as client,
    ):
        await back.get()
        messages = await client.subscribe(["a", "b"], qos=1)
        await client.unsubscribe("a")
        assert messages.filters == ("b",)
        await durable.restart()
        assert not await back.get()
        await client.publish("a", b"unheard", qos=1)
        await client.publish("b", b"heard", qos=1)
        assert (await messages.get(10)).payload == b"heard"
        async with client.subscribe("a", qos=1) as anew:
            await client.publish("a", b"again", qos=1)
            assert (await anew.get(10)).payload == b"again"
