"""Section 4.3: the exchanges of QoS 1 and 2, and sections 3.4 to 3.7 for their packets."""

from __future__ import annotations

import pytest

from .conftest import Broker, let_a_second_expire
from .wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, ack_packet, publish_packet


def test_a_qos_1_publish_is_acknowledged_and_delivered(broker: Broker, topic: str) -> None:
    """[MQTT-4.3.2-4] [MQTT-3.4.2-1]"""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=1)
    publisher.send(publish_packet(topic, b"message", qos=1, packet_id=5))
    puback = publisher.expect(PUBACK)
    assert (puback.packet_id, puback.reason) == (5, 0)
    assert subscriber.receive().payload == b"message"


def test_a_publish_nobody_subscribed_to_is_acknowledged_too(broker: Broker, topic: str) -> None:
    """[MQTT-3.4.2-1] [MQTT-3.5.2-1] With Success, or with No matching subscribers."""
    client = broker.connect()
    for qos in (1, 2):
        answer = client.publish(topic, qos=qos)
        assert answer is not None
        assert answer.reason in (0x00, 0x10)


def test_after_puback_the_identifier_is_free(broker: Broker, topic: str) -> None:
    """[MQTT-4.3.2-5] The same identifier is then a new message, whatever its DUP flag says."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=1)
    for payload in (b"one", b"two"):
        publisher.send(publish_packet(topic, payload, qos=1, packet_id=5, dup=payload == b"two"))
        assert publisher.expect(PUBACK).packet_id == 5
    assert [subscriber.receive().payload for _ in range(2)] == [b"one", b"two"]


def test_a_qos_2_publish_is_received_and_completed(broker: Broker, topic: str) -> None:
    """[MQTT-4.3.3-8] [MQTT-4.3.3-11] [MQTT-3.5.2-1] [MQTT-3.7.2-1]"""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=2)
    publisher.send(publish_packet(topic, b"message", qos=2, packet_id=6))
    pubrec = publisher.expect(PUBREC)
    assert (pubrec.packet_id, pubrec.reason) == (6, 0)
    publisher.send(ack_packet(PUBREL, 6))
    pubcomp = publisher.expect(PUBCOMP)
    assert (pubcomp.packet_id, pubcomp.reason) == (6, 0)
    assert subscriber.receive().payload == b"message"


def test_a_repeated_qos_2_publish_is_delivered_once(broker: Broker, topic: str) -> None:
    """[MQTT-4.3.3-10] Each copy gets its PUBREC, until PUBREL comes."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=2)
    for dup in (False, True, True):
        publisher.send(publish_packet(topic, b"once", qos=2, packet_id=7, dup=dup))
        assert publisher.expect(PUBREC).packet_id == 7
    publisher.send(ack_packet(PUBREL, 7))
    assert publisher.expect(PUBCOMP).packet_id == 7
    assert subscriber.receive().payload == b"once"
    assert subscriber.received_before_fence(publisher) == []


def test_after_pubcomp_the_identifier_is_free(broker: Broker, topic: str) -> None:
    """[MQTT-4.3.3-12] The same identifier is then a new message."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=2)
    for payload in (b"one", b"two"):
        publisher.send(publish_packet(topic, payload, qos=2, packet_id=8))
        publisher.expect(PUBREC)
        publisher.send(ack_packet(PUBREL, 8))
        assert publisher.expect(PUBCOMP).reason == 0
        assert subscriber.receive().payload == payload


@pytest.mark.parametrize("times", [1, 2])
def test_a_pubrel_for_nothing_is_answered(broker: Broker, times: int) -> None:
    """[MQTT-4.3.3-11] [MQTT-3.7.2-1] With Packet Identifier not found; it may be a repetition."""
    client = broker.connect()
    for _ in range(times):
        client.send(ack_packet(PUBREL, 99))
        pubcomp = client.expect(PUBCOMP)
        assert (pubcomp.packet_id, pubcomp.reason) == (99, 0x92)


def test_a_pubrec_for_nothing_is_answered(broker: Broker) -> None:
    """[MQTT-3.6.2-1] PUBREL says Packet Identifier not found (section 3.6.2.1)."""
    client = broker.connect()
    client.send(ack_packet(PUBREC, 99))
    pubrel = client.expect(PUBREL)
    assert (pubrel.packet_id, pubrel.reason) == (99, 0x92)


def test_acknowledgements_may_carry_reasons_and_properties(broker: Broker, topic: str) -> None:
    """[MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1] The server accepts each form of them."""
    client = broker.connect()
    client.subscribe(topic, qos=2)
    values = {"reason_string": "because", "user_property": [("a", "b"), ("a", "c")]}
    client.publish(topic, qos=1)
    client.send(ack_packet(PUBACK, client.expect(PUBLISH).packet_id, 0x10, **values))
    client.send(publish_packet(topic, qos=2, packet_id=50))
    client.wait_for(PUBREC)
    client.send(ack_packet(PUBREL, 50, 0, **values))
    assert client.wait_for(PUBCOMP).packet_id == 50
    packet_id = client.expect(PUBLISH).packet_id
    client.send(ack_packet(PUBREC, packet_id, 0, **values))
    assert client.expect(PUBREL).packet_id == packet_id
    client.send(ack_packet(PUBCOMP, packet_id, 0, **values))
    client.ping()


def test_the_server_sends_pubrel_for_pubrec(broker: Broker, topic: str) -> None:
    """[MQTT-4.3.3-4] [MQTT-2.2.1-5] [MQTT-3.6.1-1] With the identifier of the PUBLISH."""
    client = broker.connect()
    client.subscribe(topic, qos=2)
    client.publish(topic, b"message", qos=2)
    message = client.expect(PUBLISH)
    client.send(ack_packet(PUBREC, message.packet_id))
    pubrel = client.expect(PUBREL)
    assert (pubrel.packet_id, pubrel.reason) == (message.packet_id, 0)


@pytest.mark.parametrize("reason", [0x80, 0x83, 0x87, 0x91, 0x97, 0x99])
def test_a_failing_pubrec_ends_the_exchange(broker: Broker, topic: str, reason: int) -> None:
    """[MQTT-4.3.3-4] [MQTT-4.4.0-2] No PUBREL follows a reason code of 0x80 or more."""
    client, publisher = broker.connect(), broker.connect()
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"refused", qos=2)
    client.send(ack_packet(PUBREC, client.expect(PUBLISH).packet_id, reason))
    assert client.received_before_fence(publisher) == []


def test_the_server_completes_qos_2_although_the_message_expired(broker: Broker, topic: str) -> None:
    """[MQTT-4.3.3-13] PUBREL comes after the message's second has passed, and is answered all the same."""
    client = broker.connect()
    client.send(publish_packet(topic, b"short", qos=2, packet_id=3, message_expiry_interval=1))
    client.expect(PUBREC)
    let_a_second_expire()
    client.send(ack_packet(PUBREL, 3))
    pubcomp = client.expect(PUBCOMP)
    assert (pubcomp.packet_id, pubcomp.reason) == (3, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_many_exchanges_at_once_do_not_mix(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-2.2.1-5] [MQTT-4.6.0-5] Up to a hundred publishes in one segment."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=qos)
    assert publisher.connack is not None
    numbers = range(1, min(100, publisher.connack.properties.get("receive_maximum", 100)) + 1)
    publisher.send(
        b"".join(publish_packet(topic, b"%d" % number, qos=qos, packet_id=number) for number in numbers)
    )
    first = [publisher.expect(PUBACK if qos == 1 else PUBREC).packet_id for _ in numbers]
    assert first == list(numbers)
    if qos == 2:
        publisher.send(b"".join(ack_packet(PUBREL, number) for number in numbers))
        assert [publisher.expect(PUBCOMP).packet_id for _ in numbers] == list(numbers)
    assert [subscriber.receive().payload for _ in numbers] == [b"%d" % number for number in numbers]
