"""Many messages published by one call."""

from __future__ import annotations

import asyncio

import pytest

from pyrite.client import Client, PublishError
from tests.support.waiting import until

from .conftest import Durable


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
async def test_messages_of_many_topics_arrive_in_order(url: str, topic: str, qos: int, version: int) -> None:
    sent = [(f"{topic}/{number % 1_100}", f"{number}" + "x" * (number % 200)) for number in range(3_000)]
    async with (
        asyncio.timeout(60),
        Client(url, version=version) as client,
        client.subscribe(f"{topic}/#", qos=2, lossless=version == 5) as messages,
    ):
        await client.publish_many([], qos)
        await client.publish_many(sent, qos)
        received = [await messages.get() for _ in sent]
    assert [(one.topic, one.payload.decode()) for one in received] == sent


async def test_a_refused_message_fails_the_call_and_not_the_others(guarded: str) -> None:
    async with (
        asyncio.timeout(30),
        Client(guarded, username="ann", password="secret") as reader,
        Client(guarded, username="bob", password="secret") as client,
        reader.subscribe("public/#", qos=1) as messages,
    ):
        with pytest.raises(PublishError, match="private/a"):
            await client.publish_many([("public/1", "x"), ("private/a", "y"), ("public/2", "z")])
        assert [(await messages.get()).payload for _ in range(2)] == [b"x", b"z"]


async def test_what_is_cancelled_before_it_is_sent_is_not_published(durable: Durable) -> None:
    """Without a connection, nothing is sent; a call that goes on is finished by the next connection."""
    async with asyncio.timeout(60), Client(durable.url, client_id="c", session_expiry=60) as client:
        await asyncio.to_thread(durable.kill)
        await until(lambda: not client.connected.is_set())
        cancelled = asyncio.create_task(client.publish_many([("a", "no")] * 10))
        kept = asyncio.create_task(client.publish_many([("a", "yes")] * 10))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.to_thread(durable.start)
        await kept
        async with client.subscribe("a", qos=1, start="earliest") as messages:
            assert [(await messages.get()).payload for _ in range(10)] == [b"yes"] * 10


async def test_an_invalid_message_is_refused_before_any_is_sent(url: str, topic: str) -> None:
    async with asyncio.timeout(30), Client(url) as client, client.subscribe(f"{topic}/#") as messages:
        with pytest.raises(ValueError, match="invalid topic"):
            await client.publish_many([(topic + "/a", "x"), ("#", "y")])
        with pytest.raises(ValueError, match="QoS"):
            await client.publish_many([(topic, "x")], 3)
        await client.publish(topic + "/b", "last", qos=1)
        assert (await messages.get()).payload == b"last"
