"""Section 6: MQTT over WebSocket."""

from __future__ import annotations

import pytest

from .client import Client, Closed, WebSocket
from .conftest import Broker
from .wire import (
    CONNACK,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    SUBACK,
    connect_packet,
    packet,
    publish_packet,
    subscribe_packet,
)


def socket_of(client: Client) -> WebSocket:
    assert isinstance(client.transport, WebSocket)
    return client.transport


@pytest.mark.parametrize("offered", ["mqtt", "mqtt, other", "other, mqtt", "other,mqtt"])
def test_the_server_selects_mqtt(broker: Broker, offered: str) -> None:
    """[MQTT-6.0.0-4] [MQTT-6.0.0-3]"""
    socket = socket_of(broker.open_websocket(subprotocols=offered))
    assert socket.status == 101
    assert socket.headers["sec-websocket-protocol"] == "mqtt"


@pytest.mark.parametrize("offered", [None, "other"])
def test_a_client_that_does_not_offer_mqtt_is_not_upgraded(broker: Broker, offered: str | None) -> None:
    """[MQTT-6.0.0-3] The statement binds the client; Pyrite holds it to that."""
    assert socket_of(broker.open_websocket(subprotocols=offered)).status >= 400


@pytest.mark.parametrize("version", [4, 5])
def test_messages_pass_between_websocket_and_tcp(broker: Broker, topic: str, version: int) -> None:
    """[MQTT-6.0.0-1] [MQTT-4.2.0-1] In binary frames, both ways; TCP and WebSocket are one broker."""
    web, tcp = broker.open_websocket(version), broker.connect()
    assert web.connect(f"web{topic[-12:]}").reason == 0
    for subscriber in (web, tcp):
        subscriber.subscribe(topic, qos=2)
    for publisher in (web, tcp):
        publisher.publish(topic, bytes(range(256)), qos=2)
        for subscriber in (web, tcp):
            message = subscriber.receive()
            assert (message.topic, message.payload, message.qos) == (topic, bytes(range(256)), 2)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_packet_may_span_frames(broker: Broker, topic: str, size: int) -> None:
    """[MQTT-6.0.0-2] Frames of a few bytes each."""
    client = broker.open_websocket()
    stream = connect_packet("") + subscribe_packet(1, [(topic, 0)]) + publish_packet(topic, b"in pieces")
    for at in range(0, len(stream), size):
        client.send(stream[at : at + size])
    assert client.expect(CONNACK).reason == 0
    client.expect(SUBACK)
    assert client.expect(PUBLISH).payload == b"in pieces"


def test_a_frame_may_hold_packets(broker: Broker, topic: str) -> None:
    """[MQTT-6.0.0-2] Three and a half in one, the rest in the next."""
    client = broker.open_websocket()
    last = publish_packet(topic, b"two")
    client.send(
        connect_packet("") + subscribe_packet(1, [(topic, 0)]) + publish_packet(topic, b"one") + last[:5]
    )
    client.send(last[5:])
    client.expect(CONNACK)
    client.expect(SUBACK)
    assert [client.expect(PUBLISH).payload for _ in range(2)] == [b"one", b"two"]


def test_a_packet_may_span_the_fragments_of_a_message(broker: Broker) -> None:
    """[MQTT-6.0.0-2] [MQTT-6.0.0-1] Continuation frames of a binary message."""
    client = broker.open_websocket()
    socket, data = socket_of(client), connect_packet("")
    socket.send_frame(0x2, data[:4], final=False)
    socket.send_frame(0x0, data[4:9], final=False)
    socket.send_frame(0x9, b"are you there?")
    socket.send_frame(0x0, data[9:])
    assert client.expect(CONNACK).reason == 0


def test_a_text_frame_ends_the_connection(broker: Broker) -> None:
    """[MQTT-6.0.0-1] Before CONNECT, and after it; then a DISCONNECT may come first."""
    fresh = broker.open_websocket()
    socket_of(fresh).send_frame(0x1, b"hello")
    fresh.expect_closed()
    client = broker.open_websocket()
    client.connect()
    socket_of(client).send_frame(0x1, b"hello")
    try:
        assert client.read().reason >= 0x80
    except Closed:
        return
    client.expect_closed()


def test_an_empty_frame_means_nothing(broker: Broker) -> None:
    """[MQTT-6.0.0-2] Zero bytes of MQTT."""
    client = broker.open_websocket()
    client.connect()
    client.send(b"")
    client.send(packet(PINGREQ, 0))
    client.expect(PINGRESP)


def test_errors_end_a_websocket_connection_too(broker: Broker) -> None:
    """[MQTT-4.13.1-1] DISCONNECT, then the end."""
    client = broker.open_websocket()
    client.connect()
    client.send(packet(0, 0))
    client.expect_disconnect(0x81, 0x82)


def test_a_large_packet_passes(broker: Broker, topic: str) -> None:
    """[MQTT-6.0.0-2] Larger than the frames' two byte length."""
    client = broker.open_websocket()
    client.connect()
    client.subscribe(topic)
    client.publish(topic, bytes(200_000))
    assert client.receive().payload == bytes(200_000)
