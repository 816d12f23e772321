"""Section 2.2.1: packet identifiers."""

from __future__ import annotations

import pytest

from .conftest import Broker
from .wire import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    ack_packet,
    publish_packet,
    subscribe_packet,
    unsubscribe_packet,
)

IDENTIFIERS = [1, 255, 256, 32_767, 65_535]


def test_a_qos_0_publish_has_no_packet_identifier(broker: Broker, topic: str) -> None:
    """[MQTT-2.2.1-2] Read as one, two bytes would be missing from the payload."""
    client = broker.connect()
    client.subscribe(topic, qos=2)
    client.send(publish_packet(topic, b"\x00\x01\x00payload"))
    message = client.receive()
    assert (message.qos, message.payload) == (0, b"\x00\x01\x00payload")


def test_the_server_uses_different_identifiers_for_what_is_in_flight(broker: Broker, topic: str) -> None:
    """[MQTT-2.2.1-4] [MQTT-4.3.2-1] [MQTT-4.3.3-1] Non-zero, and unused: nothing here is acknowledged."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=2)
    for number in range(15):
        publisher.publish(topic, b"%d" % number, qos=1 + number % 2)
    identifiers = [subscriber.expect(PUBLISH).packet_id for _ in range(15)]
    assert 0 not in identifiers
    assert len(set(identifiers)) == 15


@pytest.mark.parametrize("packet_id", IDENTIFIERS)
def test_acknowledgements_carry_the_identifier_of_the_publish(
    broker: Broker, topic: str, packet_id: int
) -> None:
    """[MQTT-2.2.1-5] [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11]"""
    client = broker.connect()
    client.send(publish_packet(topic, qos=1, packet_id=packet_id))
    assert client.expect(PUBACK).packet_id == packet_id
    client.send(publish_packet(topic, qos=2, packet_id=packet_id))
    assert client.expect(PUBREC).packet_id == packet_id
    client.send(ack_packet(PUBREL, packet_id))
    assert client.expect(PUBCOMP).packet_id == packet_id


@pytest.mark.parametrize("packet_id", IDENTIFIERS)
def test_suback_and_unsuback_carry_the_identifier_of_the_request(
    broker: Broker, topic: str, packet_id: int
) -> None:
    """[MQTT-2.2.1-6] [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.10.4-4] [MQTT-3.10.4-5]"""
    client = broker.connect()
    client.send(subscribe_packet(packet_id, [(topic, 0)]))
    assert client.expect(SUBACK).packet_id == packet_id
    client.send(unsubscribe_packet(packet_id, [topic]))
    assert client.expect(UNSUBACK).packet_id == packet_id


def test_client_and_server_number_independently(broker: Broker, topic: str) -> None:
    """Section 2.2.1: the same identifier in both directions at once is two exchanges."""
    client = broker.connect()
    client.subscribe(topic, qos=1)
    client.publish(topic, b"first", qos=1)
    incoming = client.expect(PUBLISH)
    client.send(publish_packet(topic, b"second", qos=2, packet_id=incoming.packet_id))
    assert client.wait_for(PUBREC).packet_id == incoming.packet_id
    client.send(ack_packet(PUBACK, incoming.packet_id))
    client.send(ack_packet(PUBREL, incoming.packet_id))
    assert client.wait_for(PUBCOMP).reason == 0
    assert client.receive().payload == b"second"


def test_an_identifier_in_use_is_skipped_when_the_numbers_come_round(broker: Broker, topic: str) -> None:
    """[MQTT-2.2.1-4] [MQTT-4.3.2-1] One message stays unacknowledged while 66,000 others pass it."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"held", qos=1)
    held = subscriber.expect(PUBLISH).packet_id
    batch = 500
    data = b"".join(publish_packet(topic, qos=1, packet_id=number + 1) for number in range(batch))
    for _ in range(66_000 // batch):
        publisher.send(data)
        identifiers = [subscriber.expect(PUBLISH).packet_id for _ in range(batch)]
        assert held not in identifiers
        subscriber.send(b"".join(ack_packet(PUBACK, packet_id) for packet_id in identifiers))
        for _ in range(batch):
            publisher.expect(PUBACK)
