"""Sections 3.1.2.10 and 3.14: keep-alive, DISCONNECT, and the end of the server itself."""

from __future__ import annotations

import time

import pytest

from tests.support.waiting import let_pass

from .client import TIMEOUT
from .conftest import Broker, StartBroker
from .wire import DISCONNECT, PINGREQ, disconnect_packet, packet, publish_packet

CLIENT_REASONS = [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]


def test_a_silent_client_is_disconnected(broker: Broker) -> None:
    """[MQTT-3.1.2-22] [MQTT-3.2.2-22] After one and a half times its keep-alive of one second."""
    client = broker.connect(keep_alive=1)
    began = time.monotonic()
    client.expect_disconnect(0x8D)
    assert 1.2 <= time.monotonic() - began < TIMEOUT


def test_a_client_that_sends_packets_is_kept(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-20] [MQTT-3.1.2-22] Any packet will do, PINGREQ if there is no other."""
    client = broker.connect(keep_alive=1)
    for data in (packet(PINGREQ, 0), publish_packet(topic), packet(PINGREQ, 0)):
        let_pass(0.85, "any two of these are more than a keep-alive and a half apart, any one is less")
        client.send(data)
    client.ping()


def test_what_the_server_sends_does_not_keep_a_client_alive(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-22] Only what it receives from the client counts."""
    client, publisher = broker.connect(keep_alive=1), broker.connect()
    client.subscribe(topic)
    deadline = time.monotonic() + TIMEOUT
    while True:
        publisher.publish(topic, b"knock", qos=1)
        if (found := client.read()).kind == DISCONNECT:
            break
        assert time.monotonic() < deadline, "the connection is still open"
        let_pass(0.3, "several messages reach the client within its keep-alive")
    assert found.reason == 0x8D


def test_a_keep_alive_of_0_allows_silence(broker: Broker) -> None:
    """[MQTT-3.1.2-22] There is nothing to measure."""
    client = broker.connect(keep_alive=0)
    let_pass(1.6, "a keep-alive of one second would be over")
    client.ping()


@pytest.mark.parametrize("reason", CLIENT_REASONS)
def test_every_reason_of_a_client_ends_the_connection(broker: Broker, reason: int) -> None:
    """[MQTT-3.14.2-1] [MQTT-3.14.4-2] The server closes it, and says nothing more."""
    client = broker.connect()
    client.send(disconnect_packet(reason, reason_string="enough", user_property=[("a", "b")]))
    client.expect_closed()


def test_disconnect_comes_in_three_lengths(broker: Broker) -> None:
    """[MQTT-3.14.2-1] Without a reason it is 0x00; with a reason, the properties may be left out."""
    for data in (disconnect_packet(), disconnect_packet(0), packet(14, 0, b"\x00\x00")):
        client = broker.connect()
        client.send(data)
        client.expect_closed()


def test_nothing_after_disconnect_is_processed(broker: Broker, topic: str) -> None:
    """[MQTT-3.14.4-1] What a client sends after it is ignored."""
    watcher, client = broker.connect(), broker.connect()
    watcher.subscribe(topic)
    client.send(disconnect_packet() + publish_packet(topic, b"dead"))
    client.expect_closed()
    assert watcher.received_before_fence(broker.connect()) == []


def test_nothing_follows_the_servers_disconnect(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.14.4-1] [MQTT-3.14.4-2] [MQTT-3.14.2-2] Although messages keep coming for the session."""
    older, publisher = broker.connect(client_id, session_expiry_interval=60), broker.connect()
    older.subscribe(topic)
    newer = broker.connect(client_id, clean=False, session_expiry_interval=60)
    publisher.publish(topic, b"later", qos=1)
    assert newer.receive().payload == b"later"
    assert "session_expiry_interval" not in older.expect_disconnect(0x8E).properties


def test_the_server_announces_its_shutdown(start_broker: StartBroker) -> None:
    """[MQTT-3.14.2-1] [MQTT-3.14.2-2] [MQTT-3.14.4-2] DISCONNECT 0x8B to every client, then the end."""
    broker = start_broker("")
    clients = [broker.connect() for _ in range(3)]
    waiting = broker.open()
    assert broker.terminate() == 0
    for client in clients:
        assert "session_expiry_interval" not in client.expect_disconnect(0x8B).properties
    waiting.expect_closed()
