"""MQTT 5 properties, reason codes and topic aliases; the packet log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pyrite.client import Client, ConnectionLost, PublishError
from pyrite.protocols.mqtt.packets import Connack, Connect, Publish, decode, encode

from .test_protocol import connected, sent


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_topic_alias_replaces_the_topic(url: str, topic: str, qos: int) -> None:
    async with Client(url) as client, client.subscribe(f"{topic}/+", qos=2) as messages:
        for name, alias in (("a", 1), ("a", 1), ("b", 2), ("a", 1), ("c", 1), ("c", 1), ("b", 2)):
            properties = {"topic_alias": alias, "content_type": name}
            await client.publish(f"{topic}/{name}", name, qos=qos, properties=properties)
        received = [await messages.get(10) for _ in range(7)]
    assert "".join(message.topic[-1] for message in received) == "aabaccb"
    assert [message.properties["content_type"] for message in received] == list("aabaccb")


async def test_a_topic_alias_above_the_maximum_is_refused(url: str) -> None:
    async with Client(url) as client:
        most = client.capabilities["topic_alias_maximum"]
        for alias in (0, most + 1):
            with pytest.raises(PublishError, match="topic alias") as caught:
                await client.publish("a", b"", qos=1, properties={"topic_alias": alias})
            assert caught.value.reason == 0x94
        await client.publish("a", b"", qos=1, properties={"topic_alias": most})


async def test_topic_aliases_of_the_broker_are_resolved(url: str, topic: str) -> None:
    async with (
        Client(url, properties={"topic_alias_maximum": 5}) as client,
        client.subscribe(f"{topic}/+", qos=1) as messages,
    ):
        for number in range(20):
            await client.publish(f"{topic}/{number % 2}", b"%d" % number, qos=1)
        received = [await messages.get(10) for _ in range(20)]
    assert [message.topic for message in received] == [f"{topic}/{number % 2}" for number in range(20)]
    assert any("topic_alias" in message.properties for message in received)


async def test_properties_are_sent_with_connect_and_disconnect() -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()
        while data := await reader.read(1_000):
            seen.put_nowait(data)
            if data[0] == 0x10:
                writer.write(encode(Connack(0, False, {"maximum_qos": 1}), 5))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(10):
        properties = {"user_property": [("a", "1")], "receive_maximum": 7}
        client = Client(f"mqtt://127.0.0.1:{port}", client_id="me", properties=properties)
        await client.connect()
        assert client.capabilities == {"maximum_qos": 1}
        await client.close({"user_property": [("b", "2")]})
        first, last = await seen.get(), await seen.get()
    packet = decode(first[0], first[2:], 5)
    assert isinstance(packet, Connect)
    assert packet.properties == {"session_expiry": 300} | properties
    assert last == bytes.fromhex("e0 0e 00 0c 11 00000000 26 0001 62 0001 32")


async def test_properties_need_mqtt_5() -> None:
    with pytest.raises(ValueError, match="need MQTT 5"):
        Client(version=4, properties={"user_property": [("a", "1")]})


async def test_errors_carry_the_reason_string_of_the_broker(guarded: str, url: str, topic: str) -> None:
    async with Client(guarded, username="bob", password="secret") as client:
        with pytest.raises(PublishError) as refused:
            await client.publish_soon("private/a", b"", 2)
        assert (refused.value.reason, refused.value.said) == (0x87, "not authorized")
    async with asyncio.timeout(10), Client(url, client_id=topic) as client:
        messages = await client.subscribe(topic)
        async with Client(url, client_id=topic):
            with pytest.raises(ConnectionLost) as lost:
                await messages.get()
            assert lost.value.reason == 0x8E


@pytest.mark.parametrize("qos", [1, 2])
async def test_publish_soon_sends_many_messages_without_a_task_for_each(
    url: str, topic: str, qos: int
) -> None:
    async with Client(url) as client, client.subscribe(topic, qos=qos) as messages:
        sent = [client.publish_soon(topic, b"%d" % number, qos) for number in range(500)]
        await asyncio.gather(*sent)
        assert [int((await messages.get(10)).payload) for _ in range(500)] == list(range(500))
        with pytest.raises(ValueError, match="QoS must be"):
            client.publish_soon(topic, b"", 0)


async def test_the_local_address_can_be_chosen(url: str) -> None:
    async with Client(url, bind_address="127.0.0.1") as client:
        await client.publish("a", b"", qos=1)


async def test_every_packet_is_logged_at_debug_level(
    url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "pyrite.client"):
        async with Client(url, password="secret", username="me") as client:
            async with client.subscribe(topic, qos=2) as messages:
                await client.publish(topic, bytes(10_000), qos=2)
                await messages.get(10)
            await client.publish(topic, b"unheard", qos=1)
    told = [record.message.split()[:2] for record in caplog.records if record.name.endswith("packets")]
    for name in ("CONNECT", "SUBSCRIBE", "PUBLISH", "PUBREL", "UNSUBSCRIBE", "DISCONNECT"):
        assert ["sending", name] in told
    for name in ("CONNACK", "SUBACK", "PUBLISH", "PUBREC", "PUBCOMP", "PUBACK", "UNSUBACK"):
        assert ["received", name] in told
    assert f"subscribed to {topic} with QoS 2" in caplog.messages
    assert "secret" not in caplog.text
    assert max(map(len, caplog.messages)) < 1_000


def test_a_topic_alias_is_valid_for_one_connection() -> None:
    """A retransmission includes the topic. [MQTT-3.3.2-7]"""
    protocol = connected(topic_alias_maximum=5)
    for _ in range(2):
        protocol.publish("a", b"x", 1, properties={"topic_alias": 3})
    topics = [packet.topic for packet in sent(protocol) if isinstance(packet, Publish)]
    assert topics == [b"a", b""]
    protocol.lost()
    again = sent(connected(protocol, present=True, topic_alias_maximum=5))
    assert [packet.topic for packet in again if isinstance(packet, Publish)] == [b"a", b""]
    protocol.lost()
    again = sent(connected(protocol, present=True))
    assert [packet.topic for packet in again if isinstance(packet, Publish)] == [b"a", b"a"]
    assert all(not packet.properties for packet in again if isinstance(packet, Publish))
