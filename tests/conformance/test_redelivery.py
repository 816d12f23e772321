"""Sections 4.4 and 4.6: what is sent again after a reconnect, and in which order everything goes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.waiting import let_pass

from .client import Client
from .conftest import Broker, let_a_second_expire
from .wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, ack_packet, connect_packet, publish_packet


def subscribed(broker: Broker, client_id: str, topic: str) -> Client:
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(topic, qos=2)
    return client


def resumed(broker: Broker, client: Client, **values: Any) -> Client:
    """Drop the client's connection and let it come back to its session."""
    client.close()
    client = broker.connect(client.client_id, clean=False, session_expiry_interval=60, **values)
    assert client.connack is not None
    assert client.connack.session_present
    return client


@pytest.mark.parametrize("qos", [1, 2])
def test_an_unacknowledged_publish_is_sent_again(
    broker: Broker, topic: str, client_id: str, qos: int
) -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.3.2-3] [MQTT-4.3.3-3] With its identifier, and with DUP set."""
    client = subscribed(broker, client_id, topic)
    broker.connect().publish(topic, b"message", qos=qos)
    first = client.expect(PUBLISH)
    client = resumed(broker, client)
    again = client.receive()
    assert again.dup
    assert (again.packet_id, again.qos, again.payload) == (first.packet_id, qos, b"message")


def test_a_message_never_sent_before_has_no_dup(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.3.1-1] [MQTT-3.3.1-3] [MQTT-4.3.2-2] [MQTT-4.3.3-2] Waiting is not a first delivery."""
    client = subscribed(broker, client_id, topic)
    client.close()
    publisher = broker.connect()
    for qos in (1, 2):
        publisher.publish(topic, b"waiting", qos=qos)
    client = resumed(broker, client)
    assert [client.receive().dup for _ in range(2)] == [False, False]


def test_an_uncompleted_pubrel_is_sent_again(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-4.4.0-1] [MQTT-4.3.3-5] [MQTT-4.3.3-6] The PUBREL, and not the PUBLISH."""
    client = subscribed(broker, client_id, topic)
    publisher = broker.connect()
    publisher.publish(topic, b"message", qos=2)
    message = client.expect(PUBLISH)
    client.send(ack_packet(PUBREC, message.packet_id))
    client.expect(PUBREL)
    client = resumed(broker, client)
    assert client.expect(PUBREL).packet_id == message.packet_id
    client.send(ack_packet(PUBCOMP, message.packet_id))
    assert client.received_before_fence(publisher) == []
    client = resumed(broker, client)
    assert client.received_before_fence(publisher) == []


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_sent_again_while_the_connection_lasts(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-4.4.0-1] Reconnecting is the only occasion. A second of silence shows it."""
    client, publisher = broker.connect(), broker.connect()
    client.subscribe(topic, qos=qos)
    publisher.publish(topic, b"message", qos=qos)
    client.expect(PUBLISH)
    let_pass(1.0, "a server that repeats messages would do so after a time")
    assert client.received_before_fence(publisher) == []


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_acknowledged_is_not_sent_again(
    broker: Broker, topic: str, client_id: str, qos: int
) -> None:
    """[MQTT-4.4.0-1] Only what is unacknowledged."""
    client = subscribed(broker, client_id, topic)
    publisher = broker.connect()
    publisher.publish(topic, b"message", qos=qos)
    client.receive()
    client.ping()
    client = resumed(broker, client)
    assert client.received_before_fence(publisher) == []


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
@pytest.mark.parametrize("reason", [0x80, 0x97])
def test_what_was_refused_is_not_sent_again(
    broker: Broker, topic: str, client_id: str, qos: int, kind: int, reason: int
) -> None:
    """[MQTT-4.4.0-2] A reason code of 0x80 or more is an acknowledgement."""
    client = subscribed(broker, client_id, topic)
    publisher = broker.connect()
    publisher.publish(topic, b"message", qos=qos)
    client.send(ack_packet(kind, client.expect(PUBLISH).packet_id, reason))
    client.ping()
    client = resumed(broker, client)
    assert client.received_before_fence(publisher) == []


def test_what_was_sent_once_does_not_expire(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-4.3.3-7] The message was sent in time; it is sent again although its second has passed."""
    client = subscribed(broker, client_id, topic)
    broker.connect().publish(topic, b"short", qos=2, message_expiry_interval=1)
    first = client.expect(PUBLISH)
    client.close()
    let_a_second_expire()
    client = resumed(broker, client)
    again = client.receive()
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"short", True)


def test_redelivery_keeps_the_order(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-4.6.0-1] [MQTT-4.6.0-5] The statement binds the client; the server has reason to do the same."""
    client = subscribed(broker, client_id, topic)
    publisher = broker.connect()
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=1 + number % 2)
    first = [client.expect(PUBLISH) for _ in range(20)]
    for message in (first[3], first[7]):
        client.send(ack_packet(PUBACK if message.qos == 1 else PUBREC, message.packet_id, 0x80))
    client.ping()
    client = resumed(broker, client)
    left = [message for message in first if message not in (first[3], first[7])]
    assert [client.expect(PUBLISH).packet_id for _ in left] == [message.packet_id for message in left]


def test_new_messages_follow_those_sent_again(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-4.6.0-5] [MQTT-4.6.0-6] Sent and lost, published while away, published after: in this order."""
    client = subscribed(broker, client_id, topic)
    publisher = broker.connect()
    publisher.publish(topic, b"1", qos=1)
    client.expect(PUBLISH)
    client.close()
    publisher.publish(topic, b"2", qos=1)
    client = resumed(broker, client)
    publisher.publish(topic, b"3", qos=1)
    assert [client.receive().payload for _ in range(3)] == [b"1", b"2", b"3"]


def test_redelivery_respects_a_smaller_receive_maximum(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.3.4-9] [MQTT-4.4.0-1] [MQTT-4.9.0-1] The quota is of the new connection."""
    client = subscribed(broker, client_id, topic)
    publisher = broker.connect()
    for number in range(3):
        publisher.publish(topic, b"%d" % number, qos=1)
    for _ in range(3):
        client.expect(PUBLISH)
    client = resumed(broker, client, receive_maximum=1)
    for number in range(3):
        message = client.expect(PUBLISH)
        assert message.payload == b"%d" % number
        assert client.received_before_fence(publisher) == []
        client.send(ack_packet(PUBACK, message.packet_id))


def test_the_publishers_qos_2_exchange_survives_a_reconnect(
    broker: Broker, topic: str, client_id: str
) -> None:
    """[MQTT-4.3.3-10] [MQTT-3.1.2-5] The server remembers which identifiers it has received."""
    watcher = broker.connect()
    watcher.subscribe(topic, qos=2)
    client = broker.connect(client_id, session_expiry_interval=60)
    client.send(publish_packet(topic, b"once", qos=2, packet_id=1))
    client.expect(PUBREC)
    client = resumed(broker, client)
    client.send(publish_packet(topic, b"once", qos=2, packet_id=1, dup=True))
    assert client.expect(PUBREC).reason < 0x80
    client = resumed(broker, client)
    client.send(ack_packet(PUBREL, 1))
    pubcomp = client.expect(PUBCOMP)
    assert (pubcomp.packet_id, pubcomp.reason) == (1, 0)
    assert watcher.receive().payload == b"once"
    assert watcher.received_before_fence(client) == []


def test_a_clean_start_forgets_the_exchanges(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-4] [MQTT-4.4.0-1] In both directions."""
    client = subscribed(broker, client_id, topic)
    publisher = broker.connect()
    publisher.publish(topic, b"message", qos=2)
    client.expect(PUBLISH)
    client.send(publish_packet(f"{topic}/out", b"message", qos=2, packet_id=1))
    client.wait_for(PUBREC)
    client.close()
    client = broker.open()
    client.send(connect_packet(client_id, session_expiry_interval=60) + ack_packet(PUBREL, 1))
    assert not client.read().session_present
    assert client.expect(PUBCOMP).reason == 0x92
    assert client.received_before_fence(publisher) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_one_publisher_arrive_in_order(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-4.6.0-5] [MQTT-4.6.0-6] Through an exact and a wildcard subscription, at each QoS."""
    exact, wild, publisher = broker.connect(), broker.connect(), broker.connect()
    exact.subscribe(topic, qos=qos)
    wild.subscribe(f"{topic}/#", qos=qos)
    payloads = [b"%d" % number for number in range(200)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=qos)
    for subscriber in (exact, wild):
        assert [subscriber.receive().payload for _ in payloads] == payloads


def test_acknowledgements_come_in_the_order_of_the_messages(broker: Broker, topic: str) -> None:
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4] They bind the client; the server keeps them as well."""
    client = broker.connect()
    client.subscribe(topic, qos=2)
    identifiers = [5, 3, 9, 1, 7]
    client.send(b"".join(publish_packet(f"{topic}/x", qos=1, packet_id=number) for number in identifiers))
    assert [client.expect(PUBACK).packet_id for _ in identifiers] == identifiers
    client.send(b"".join(publish_packet(f"{topic}/x", qos=2, packet_id=number) for number in identifiers))
    assert [client.expect(PUBREC).packet_id for _ in identifiers] == identifiers
    publisher = broker.connect()
    for _ in range(3):
        publisher.publish(topic, qos=2)
    sent = [client.expect(PUBLISH).packet_id for _ in range(3)]
    client.send(b"".join(ack_packet(PUBREC, number) for number in reversed(sent)))
    assert [client.expect(PUBREL).packet_id for _ in sent] == sent[::-1]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_takeover_sends_again_what_the_older_connection_left(
    broker: Broker, topic: str, client_id: str, qos: int
) -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-3.1.4-3] To the newer connection, while the older one was open."""
    older = subscribed(broker, client_id, topic)
    broker.connect().publish(topic, b"message", qos=qos)
    first = older.expect(PUBLISH)
    newer = broker.connect(client_id, clean=False, session_expiry_interval=60)
    again = newer.receive()
    assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"message")


@pytest.mark.parametrize("qos", [1, 2])
def test_what_has_become_too_large_is_not_sent_again(
    broker: Broker, topic: str, client_id: str, qos: int
) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25] The new connection takes less; only what fits comes."""
    client = subscribed(broker, client_id, topic)
    publisher = broker.connect()
    for payload in (b"one", bytes(300), b"two"):
        publisher.publish(topic, payload, qos=qos)
        client.expect(PUBLISH)
    client = resumed(broker, client, maximum_packet_size=200, receive_maximum=1)
    assert [client.receive().payload for _ in range(2)] == [b"one", b"two"]
