"""Section 4.9 and 3.3.4: Receive Maximum; and Maximum Packet Size of the client."""

from __future__ import annotations

import pytest

from .client import Client, Closed
from .conftest import Broker
from .reader import Packet
from .wire import (
    CONNACK,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    ack_packet,
    connect_packet,
    packet,
    publish_packet,
    subscribe_packet,
)


def flooded(broker: Broker, topic: str, *, maximum: int, messages: int, qos: int) -> tuple[Client, Client]:
    """Return a subscriber with this receive maximum, and a publisher that sent it more than that."""
    subscriber, publisher = broker.connect(receive_maximum=maximum), broker.connect()
    subscriber.subscribe(topic, qos=qos)
    for number in range(messages):
        publisher.publish(topic, b"%d" % number, qos=qos)
    return subscriber, publisher


def payloads(messages: list[Packet]) -> list[bytes]:
    return [message.payload for message in messages]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("maximum", [1, 3])
def test_no_more_than_receive_maximum_are_in_flight(
    broker: Broker, topic: str, qos: int, maximum: int
) -> None:
    """[MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]"""
    subscriber, publisher = flooded(broker, topic, maximum=maximum, messages=5, qos=qos)
    assert payloads(subscriber.received_before_fence(publisher)) == [b"%d" % n for n in range(maximum)]


def test_puback_makes_room_for_one_more(broker: Broker, topic: str) -> None:
    """[MQTT-4.9.0-2] [MQTT-3.3.4-9]"""
    subscriber, publisher = flooded(broker, topic, maximum=2, messages=4, qos=1)
    first, second = subscriber.received_before_fence(publisher)
    subscriber.send(ack_packet(PUBACK, first.packet_id))
    assert payloads(subscriber.received_before_fence(publisher)) == [b"2"]
    subscriber.send(ack_packet(PUBACK, second.packet_id, 0x97))
    assert payloads(subscriber.received_before_fence(publisher)) == [b"3"]


def test_pubcomp_makes_room_and_pubrec_does_not(broker: Broker, topic: str) -> None:
    """[MQTT-4.9.0-2] [MQTT-3.3.4-9] A QoS 2 message is in flight until its exchange is complete."""
    subscriber, publisher = flooded(broker, topic, maximum=1, messages=2, qos=2)
    [first] = subscriber.received_before_fence(publisher)
    subscriber.send(ack_packet(PUBREC, first.packet_id))
    assert [each.kind for each in subscriber.received_before_fence(publisher)] == [PUBREL]
    subscriber.send(ack_packet(PUBCOMP, first.packet_id))
    assert payloads(subscriber.received_before_fence(publisher)) == [b"1"]


def test_a_failing_pubrec_makes_room(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.4-9] The exchange is over."""
    subscriber, publisher = flooded(broker, topic, maximum=1, messages=2, qos=2)
    [first] = subscriber.received_before_fence(publisher)
    subscriber.send(ack_packet(PUBREC, first.packet_id, 0x80))
    assert payloads(subscriber.received_before_fence(publisher)) == [b"1"]


def test_an_exhausted_quota_delays_nothing_else(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.4-10] [MQTT-4.9.0-3] Requests are answered, PUBREL is sent, QoS 0 messages come through."""
    subscriber, _ = flooded(broker, topic, maximum=1, messages=3, qos=2)
    message = subscriber.read()
    subscriber.send(packet(PINGREQ, 0))
    subscriber.expect(PINGRESP)
    subscriber.send(subscribe_packet(70, [(f"{topic}/other", 2)]))
    subscriber.expect(SUBACK)
    subscriber.send(publish_packet(f"{topic}/nobody", qos=1, packet_id=71))
    subscriber.expect(PUBACK)
    subscriber.send(publish_packet(f"{topic}/other", b"qos 0"))
    assert subscriber.read().payload == b"qos 0"
    subscriber.send(ack_packet(PUBREC, message.packet_id))
    subscriber.expect(PUBREL)


def test_every_message_arrives_through_a_small_window(broker: Broker, topic: str) -> None:
    """[MQTT-4.9.0-2] [MQTT-4.6.0-5] A receive maximum of 1 makes it slow, not lossy."""
    subscriber, publisher = broker.connect(receive_maximum=1), broker.connect()
    subscriber.subscribe(topic, qos=2)
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=1 + number % 2)
    assert [subscriber.receive().payload for _ in range(20)] == [b"%d" % number for number in range(20)]


def test_the_default_receive_maximum_is_large(broker: Broker, topic: str) -> None:
    """[MQTT-4.9.0-1] Absent means 65,535; the initial quota is not zero."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"message", qos=1)
    assert subscriber.receive().payload == b"message"


def test_a_packet_larger_than_the_clients_maximum_is_not_sent(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25] Other subscribers get it."""
    small, large, publisher = broker.connect(maximum_packet_size=200), broker.connect(), broker.connect()
    for subscriber in (small, large):
        subscriber.subscribe(topic, qos=1)
    for payload in (bytes(300), b"fits"):
        publisher.publish(topic, payload, qos=1)
    assert small.receive().payload == b"fits"
    assert [large.receive().payload for _ in range(2)] == [bytes(300), b"fits"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_too_large_counts_as_delivered(
    broker: Broker, topic: str, client_id: str, qos: int
) -> None:
    """[MQTT-3.1.2-25] It neither holds up the messages behind it nor comes later to a larger connection."""
    subscriber, publisher = broker.connect(client_id, session_expiry_interval=60), broker.connect()
    subscriber.subscribe(topic, qos=qos)
    subscriber.disconnect()
    for payload in (bytes(300), bytes(300), b"fits"):
        publisher.publish(topic, payload, qos=qos)
    values = {"receive_maximum": 1, "maximum_packet_size": 200}
    subscriber = broker.connect(client_id, clean=False, session_expiry_interval=60, **values)
    assert subscriber.receive().payload == b"fits"
    subscriber.ping()
    subscriber.disconnect()
    subscriber = broker.connect(client_id, clean=False)
    assert subscriber.received_before_fence(publisher) == []


def test_a_retained_message_too_large_is_not_sent(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-24]"""
    publisher = broker.connect()
    publisher.publish(topic, bytes(300), qos=1, retain=True)
    client = broker.connect(maximum_packet_size=200)
    client.subscribe(topic)
    assert client.received_before_fence(publisher) == []


def test_the_size_of_a_packet_is_the_whole_packet(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-24] Header and properties included: one byte decides."""
    exact = len(publish_packet(topic, b"12345678", content_type="text"))
    fits, over, publisher = (
        broker.connect(maximum_packet_size=exact),
        broker.connect(maximum_packet_size=exact - 1),
        broker.connect(),
    )
    for subscriber in (fits, over):
        subscriber.subscribe(topic)
    publisher.publish(topic, b"12345678", content_type="text")
    publisher.publish(topic, b"1")
    assert fits.receive().size == exact
    assert over.receive().payload == b"1"


def test_reason_strings_are_omitted_for_a_small_packet_size(broker: Broker, topic: str) -> None:
    """[MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2] [MQTT-3.6.2-3]
    [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2]
    [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.1.2-24]
    A server would explain failures, but this client accepts no packet larger than its CONNACK.
    """
    connack = broker.connect().connack
    assert connack is not None
    client = broker.connect(maximum_packet_size=connack.size)
    answers = [client.subscribe("a/#/b"), client.unsubscribe("never/subscribed")]
    answers += [answer for qos in (1, 2) if (answer := client.publish(topic, qos=qos))]
    client.send(ack_packet(PUBREL, 99))
    answers.append(client.expect(PUBCOMP))
    client.send(ack_packet(PUBREC, 99))
    answers.append(client.expect(PUBREL))
    client.send(packet(0, 0))
    answers.append(client.expect_disconnect(0x81, 0x82))
    assert max(answer.size for answer in answers) <= connack.size


@pytest.mark.parametrize("size", [5, 10, 20, 40])
def test_the_reason_string_of_a_refusal_is_omitted(broker: Broker, size: int) -> None:
    """[MQTT-3.2.2-19] [MQTT-3.2.2-20] A CONNACK without reason string is five bytes."""
    client = broker.open()
    client.send(connect_packet("c", maximum_packet_size=size, authentication_data=b"without a method"))
    assert client.expect_refused(0x82).size <= size


@pytest.mark.parametrize("size", [1, 5, 8])
def test_nothing_is_sent_if_connack_exceeds_the_packet_size(broker: Broker, size: int) -> None:
    """[MQTT-3.2.0-1] [MQTT-3.1.2-24] A CONNACK that fits comes first, or nothing comes at all."""
    client = broker.open()
    client.send(connect_packet("", maximum_packet_size=size) + packet(PINGREQ, 0))
    try:
        first = client.read(2)
    except (Closed, TimeoutError):
        return
    assert first.kind == CONNACK
    assert first.size <= size
