"""Section 3.2.2.3: restrictions that a server announces, and how it enforces them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .client import TIMEOUT
from .conftest import Broker, StartBroker
from .reader import Packet
from .wire import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    Will,
    ack_packet,
    connect_packet,
    publish_packet,
    subscribe_packet,
)

RESTRICTED = """
[mqtt]
maximum_qos = 1
retain_available = false
wildcard_subscriptions = false
shared_subscriptions = false
subscription_identifiers = false
topic_alias_maximum = 0
server_keep_alive = 1
max_session_expiry = 30
response_information = "answers/"
check_payload_format = true

[limits]
max_packet_size = 1000
receive_maximum = 3
"""


@pytest.fixture(scope="module")
def restricted(start_broker: StartBroker) -> Broker:
    """A broker with every optional feature disabled."""
    return start_broker(RESTRICTED)


def connack_of(broker: Broker, **values: Any) -> Packet:
    connack = broker.connect(**values).connack
    assert connack is not None
    return connack


def test_the_connack_announces_every_restriction(restricted: Broker) -> None:
    """[MQTT-3.2.2-9] [MQTT-3.2.2-1]"""
    offered = connack_of(restricted, session_expiry_interval=3600, keep_alive=60).properties
    assert offered["maximum_qos"] == 1
    assert offered["retain_available"] == 0
    assert offered["wildcard_subscription_available"] == 0
    assert offered["shared_subscription_available"] == 0
    assert offered["subscription_identifiers_available"] == 0
    assert offered.get("topic_alias_maximum", 0) == 0
    assert offered["server_keep_alive"] == 1
    assert offered["session_expiry_interval"] == 30
    assert offered["maximum_packet_size"] == 1000
    assert offered["receive_maximum"] == 3


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_every_qos_may_be_asked_for(restricted: Broker, topic: str, asked: int) -> None:
    """[MQTT-3.2.2-10] [MQTT-3.8.4-7] What is granted is what the server has."""
    assert restricted.connect().subscribe(topic, qos=asked).reasons == (min(asked, 1),)


def test_a_publish_beyond_the_maximum_qos_ends_the_connection(restricted: Broker, topic: str) -> None:
    """[MQTT-3.2.2-11] QoS not supported."""
    client = restricted.connect()
    client.send(publish_packet(topic, qos=2, packet_id=1))
    client.expect_disconnect(0x9B)


def test_a_will_beyond_the_maximum_qos_is_refused(restricted: Broker, topic: str) -> None:
    """[MQTT-3.2.2-12] QoS not supported."""
    client = restricted.open()
    client.send(connect_packet("c", will=Will(topic, qos=2)))
    client.expect_refused(0x9B)


def test_a_retained_will_is_refused_where_there_is_no_retain(restricted: Broker, topic: str) -> None:
    """[MQTT-3.2.2-13] Retain not supported."""
    client = restricted.open()
    client.send(connect_packet("c", will=Will(topic, retain=True)))
    client.expect_refused(0x9A)


def test_a_retained_publish_ends_the_connection_where_there_is_no_retain(
    restricted: Broker, topic: str
) -> None:
    """[MQTT-3.2.2-14] Retain not supported."""
    client = restricted.connect()
    client.send(publish_packet(topic, b"kept", retain=True))
    client.expect_disconnect(0x9A)


def test_a_packet_of_the_maximum_size_is_accepted(restricted: Broker, topic: str) -> None:
    """[MQTT-3.2.2-15] The limit itself is allowed."""
    client = restricted.connect()
    client.subscribe(topic)
    payload = bytes(1000 - len(publish_packet(topic, bytes(900))) + 900)
    assert len(publish_packet(topic, payload)) == 1000
    client.publish(topic, payload)
    assert client.receive().payload == payload


@pytest.mark.parametrize("size", [990, 100_000])
def test_a_larger_packet_ends_the_connection(restricted: Broker, topic: str, size: int) -> None:
    """[MQTT-3.2.2-15] Packet too large."""
    client = restricted.connect()
    client.send(publish_packet(topic, bytes(size)))
    client.expect_disconnect(0x95)


def test_without_topic_aliases_an_alias_ends_the_connection(restricted: Broker, topic: str) -> None:
    """[MQTT-3.2.2-18] [MQTT-3.3.2-9] Topic Alias invalid."""
    client = restricted.connect()
    client.send(publish_packet(topic, topic_alias=1))
    client.expect_disconnect(0x94)


def test_the_servers_keep_alive_counts(restricted: Broker) -> None:
    """[MQTT-3.1.2-21] [MQTT-3.2.2-21] [MQTT-3.1.2-22] The server's second replaces the client's minute."""
    client = restricted.connect(keep_alive=60)
    began = time.monotonic()
    client.expect_disconnect(0x8D)
    assert 1.0 <= time.monotonic() - began < TIMEOUT


def test_response_information_is_sent_when_asked_for(restricted: Broker) -> None:
    """[MQTT-3.1.2-28] Not otherwise."""
    assert connack_of(restricted, request_response_information=1).properties["response_information"]
    assert "response_information" not in connack_of(restricted, request_response_information=0).properties
    assert "response_information" not in connack_of(restricted).properties


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [("a/#", 0xA2), ("a/+/b", 0xA2), ("#", 0xA2), ("$share/group/a", 0x9E)],
)
def test_a_subscription_of_a_disabled_kind_is_refused(
    restricted: Broker, topic_filter: str, reason: int
) -> None:
    """[MQTT-3.8.4-7] [MQTT-3.9.3-2] In SUBACK, or by ending the connection with the same reason."""
    client = restricted.connect()
    client.send(subscribe_packet(1, [(topic_filter, 0)]))
    answer = client.read()
    assert answer.kind in (SUBACK, DISCONNECT)
    assert (answer.reasons or (answer.reason,)) == (reason,)


def test_a_disabled_subscription_identifier_is_refused(restricted: Broker, topic: str) -> None:
    """[MQTT-3.9.3-2] Section 3.2.2.3.12: a protocol error, with the reason of its own."""
    client = restricted.connect()
    client.send(subscribe_packet(1, [(topic, 0)], subscription_identifier=1))
    answer = client.read()
    assert answer.kind in (SUBACK, DISCONNECT)
    assert (answer.reasons or (answer.reason,)) == (0xA1,)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_payload_that_is_not_the_declared_text_is_refused(restricted: Broker, topic: str, qos: int) -> None:
    """[MQTT-3.4.2-1] Payload format invalid; nobody receives it."""
    watcher, client = restricted.connect(), restricted.connect()
    watcher.subscribe(topic)
    if qos:
        client.send(publish_packet(topic, b"\xff", qos=1, packet_id=1, payload_format_indicator=1))
        assert client.expect(PUBACK).reason == 0x99
    else:
        client.send(publish_packet(topic, b"\xff", payload_format_indicator=1))
    client.close()
    assert watcher.received_before_fence(restricted.connect()) == []


@pytest.fixture(scope="module")
def narrow(start_broker: StartBroker) -> Broker:
    """A broker that takes three unfinished messages from a client."""
    return start_broker("[limits]\nreceive_maximum = 3\n")


def test_exceeding_the_servers_receive_maximum_ends_the_connection(narrow: Broker, topic: str) -> None:
    """[MQTT-3.3.4-7] [MQTT-4.9.0-1] Three may be unfinished, a fourth is one too many."""
    client = narrow.connect()
    for packet_id in (1, 2, 3):
        client.send(publish_packet(topic, qos=2, packet_id=packet_id))
        assert client.expect(PUBREC).packet_id == packet_id
    client.send(publish_packet(topic, qos=2, packet_id=4))
    client.expect_disconnect(0x93)


def test_a_finished_message_makes_room_for_another(narrow: Broker, topic: str) -> None:
    """[MQTT-3.3.4-7] [MQTT-4.9.0-2] Also a QoS 1 message, which is finished at once."""
    client = narrow.connect()
    for packet_id in range(1, 10):
        client.send(publish_packet(topic, qos=2, packet_id=packet_id))
        client.expect(PUBREC)
        client.send(ack_packet(PUBREL, packet_id))
        client.expect(PUBCOMP)
        client.send(publish_packet(topic, qos=1, packet_id=packet_id))
        client.expect(PUBACK)


def test_a_resent_message_does_not_count_twice(narrow: Broker, topic: str) -> None:
    """[MQTT-3.3.4-7] [MQTT-4.3.3-10] The same identifier is the same message."""
    client = narrow.connect()
    for packet_id in (1, 2, 3, 1, 2, 3):
        client.send(publish_packet(topic, qos=2, packet_id=packet_id, dup=True))
        assert client.expect(PUBREC).packet_id == packet_id
    client.ping()
