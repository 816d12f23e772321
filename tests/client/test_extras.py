"""Replay, topics and consumers, which only Pyrite has, and errors with other brokers and peers."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyrite.client import Client, ConnectError, PublishError, RequestError, SubscribeError, Topic
from pyrite.client.trace import Trace
from pyrite.protocols.mqtt.packets import V5, Auth, Connect, encode
from tests.support.waiting import until

from .conftest import Durable, free_port


async def test_a_subscription_can_start_with_a_replay(durable: Durable) -> None:
    async with Client(durable.url) as client:
        for number in range(10):
            await client.publish("a/b", b"%d" % number, qos=1)
        async with client.subscribe("a/#", qos=1, start="earliest") as messages:
            assert [int((await messages.get(10)).payload) for _ in range(10)] == list(range(10))
            await client.publish("a/b", b"10", qos=1)
            assert (await messages.get(10)).payload == b"10"
        async with client.subscribe("a/#", qos=1, start=7) as messages:
            assert (await messages.get(10)).payload == b"7"


async def test_topics_are_listed_created_and_deleted(durable: Durable) -> None:
    async with Client(durable.url) as client:
        await client.create_topic("weather/wind")
        await client.publish("weather/temp", b"21", qos=1, retain=True)
        assert await client.topics("weather/#") == [Topic("weather/temp", b"21"), Topic("weather/wind")]
        await client.delete_topic("weather/temp")
        assert await client.topics("weather/#") == [Topic("weather/wind")]
        assert await client.topics("nothing/#") == []


async def test_a_consumer_continues_after_its_acknowledged_messages(durable: Durable) -> None:
    async with Client(durable.url) as client:
        for number in range(250):
            properties = {"user_property": [("number", str(number))]}
            await client.publish(f"jobs/{number % 2}", b"%d" % number, qos=1, properties=properties)
        consumer = await client.consumer("workers", "jobs/#")
        first = await consumer.pull(100)
        assert [int(message.payload) for message in first] == list(range(100))
        assert first[1].topic == "jobs/1"
        assert first[1].properties["user_property"] == [("number", "1")]
        await consumer.ack(first)
    async with Client(durable.url) as client:
        consumer = await client.consumer("workers", "jobs/#")
        rest = await consumer.pull(1_000)
        assert [int(message.payload) for message in rest] == list(range(100, 250))
        await consumer.ack(message.place for message in rest)
        assert await consumer.pull() == []
        await consumer.delete()
        with pytest.raises(RequestError, match="workers"):
            await consumer.pull()


async def test_concurrent_requests_each_get_their_own_answer(durable: Durable) -> None:
    async with Client(durable.url) as client:
        for number in range(20):
            await client.create_topic(f"made/{number}")
        answers = await asyncio.gather(*(client.topics(f"made/{number}") for number in range(20)))
    assert answers == [[Topic(f"made/{number}")] for number in range(20)]


async def test_a_wrong_request_raises_an_error_that_names_the_cause(durable: Durable) -> None:
    async with Client(durable.url) as client:
        with pytest.raises(RequestError, match="nonsense"):
            await client.consumer("name", "a", start="nonsense")
        with pytest.raises(RequestError):
            await client.create_topic("a/#")
    async with Client(durable.url, version=4) as client:
        with pytest.raises(RequestError, match="MQTT 5"):
            await client.topics()
        with pytest.raises(ValueError, match="version=5"):
            client.subscribe("a", start="earliest")


async def test_a_consumer_needs_a_broker_with_a_log(url: str) -> None:
    async with Client(url) as client:
        with pytest.raises(RequestError, match="no log"):
            await client.consumer("name", "a")


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture
async def mosquitto(tmp_path: Path) -> AsyncIterator[str]:
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    process = await asyncio.create_subprocess_exec(
        program, "-c", str(config), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await until(lambda: listens(port), "mosquitto listens")
        yield f"mqtt://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("version", [4, 5])
async def test_the_client_works_with_mosquitto(mosquitto: str, version: int) -> None:
    async with Client(mosquitto, version=version) as client, client.subscribe("a/#", qos=2) as messages:
        for qos in (0, 1, 2):
            await asyncio.gather(*(client.publish("a/b", b"%d" % number, qos=qos) for number in range(200)))
            received = [await messages.get(10) for _ in range(200)]
            assert [int(message.payload) for message in received] == list(range(200))
            assert {message.qos for message in received} == {qos}


async def test_a_pyrite_request_to_another_broker_raises_an_error(mosquitto: str) -> None:
    async with Client(mosquitto, timeout=0.5) as client:
        with pytest.raises(RequestError, match="Pyrite"):
            await client.topics()
        await client.publish("a", b"", qos=1)


async def test_refusals_carry_the_reason_of_the_broker(guarded: str) -> None:
    with pytest.raises(ConnectError, match=r"bad user name or password .*: not with that password") as caught:
        await Client(guarded, username="wrong", password="no").connect()
    assert caught.value.reason == 0x86
    with pytest.raises(ConnectError, match="bad user name or password") as caught:
        await Client(guarded, username="wrong", password="no", version=4).connect()
    assert caught.value.reason == 4
    with_credentials = guarded.replace("mqtt://", "mqtt://bob:secret@")
    async with Client(with_credentials, reconnect=False) as client:
        with pytest.raises(PublishError, match="not authorized") as refused:
            await client.publish("private/a", b"", qos=1)
        assert refused.value.reason == 0x87
        with pytest.raises(SubscribeError, match="not authorized"):
            await client.subscribe("private/a")
        with pytest.raises(RequestError, match="not authorized"):
            await client.topics("private/#")
        await client.publish("public/a", b"", qos=2)


async def test_connecting_to_a_closed_port_raises_connect_error() -> None:
    with pytest.raises(ConnectError, match="cannot connect to mqtt://127"):
        await Client(f"mqtt://127.0.0.1:{free_port()}").connect()


async def test_connecting_to_a_missing_unix_socket_raises_connect_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="cannot connect to unix://"):
        await Client(f"unix://{tmp_path}/nothing").connect()


@pytest.mark.parametrize(
    ("banner", "text"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not a valid MQTT broker"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a valid MQTT broker"),
        (b"", "closed the connection"),
        (None, "no answer within"),
    ],
)
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
async def test_connecting_to_a_peer_that_is_no_broker_raises_connect_error(
    banner: bytes | None, text: str, scheme: str
) -> None:
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if banner is not None:
            writer.write(banner)
        else:
            await done.wait()
        await reader.read(100)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError) as caught:
            await Client(f"{scheme}://127.0.0.1:{port}", timeout=0.3).connect()
        done.set()
        assert scheme == "ws" or text in str(caught.value), str(caught.value)
        assert str(caught.value).startswith(f"cannot connect to {scheme}://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "url",
    [
        "http://a",
        "mqtt://",
        "unix://",
        "mqtt://host/path",
        "localhost:1883",
        "http://ann:sesame@host",
        "mqtt://ann:sesame@",
        "mqtt://ann:sesame@host:99999",
        "mqtt://ann:sesame@[::1",
        "mqtt://ann:sesame/x@host",
        "ws://ann:sesame/x@host:1",
    ],
)
def test_an_invalid_url_raises_value_error_without_quoting_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"mqtt://|host|path") as caught:
        Client(url)
    assert "sesame" not in str(caught.value)


def test_the_packet_log_contains_no_credentials(caplog: pytest.LogCaptureFixture) -> None:
    secret = {"authentication_method": "M", "authentication_data": b"sesame"}
    with caplog.at_level(logging.DEBUG, "pyrite.client.packets"):
        for packet in (
            Connect("c", username="ann", password=b"sesame", properties=secret),
            Auth(0x18, secret),
        ):
            Trace("sending", V5).feed(encode(packet, V5))
    assert "AUTH 0x18 {'authentication_method': 'M'}" in caplog.text
    assert "sesame" not in caplog.text
