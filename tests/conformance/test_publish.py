"""Section 3.3: PUBLISH, its properties, and what subscribers receive."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Closed
from .conftest import Broker, let_a_second_expire
from .wire import PUBACK, PUBLISH, PUBREC, publish_packet


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_the_qos_is_the_lesser_of_published_and_granted(
    broker: Broker, topic: str, published: int, granted: int
) -> None:
    """[MQTT-3.8.4-8] [MQTT-4.3.1-1] [MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT-3.3.2-3] And DUP is 0 at first."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=granted)
    publisher.publish(topic, b"message", qos=published)
    message = subscriber.receive()
    assert (message.topic, message.payload) == (topic, b"message")
    assert message.qos == min(published, granted)
    assert not message.dup


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_the_answer_to_a_publish_depends_on_its_qos(broker: Broker, topic: str, qos: int, kind: int) -> None:
    """[MQTT-3.3.4-1] PUBACK for 1, PUBREC for 2."""
    client = broker.connect()
    client.send(publish_packet(topic, qos=qos, packet_id=9))
    assert client.expect(kind).packet_id == 9


def test_a_qos_0_publish_has_no_answer(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.4-1] The next packet answers the next request."""
    client = broker.connect()
    client.publish(topic, b"nothing")
    assert client.received_before_fence(client) == []


def test_dup_of_the_publisher_is_not_forwarded(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-3] The subscriber's copy is sent for the first time, whatever the publisher's was."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=2)
    for qos in (1, 2):
        publisher.publish(topic, b"again", qos=qos, dup=True)
        assert not subscriber.receive().dup


def test_dup_never_accompanies_qos_0(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-2] A client that sends it breaks the protocol; forwarded or not, DUP goes no further."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic)
    publisher.send(publish_packet(topic, dup=True))
    try:
        publisher.ping()
    except Closed:
        pass
    for message in subscriber.received_before_fence(broker.connect()):
        assert not message.dup


def test_every_property_is_forwarded_unaltered(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain; charset=utf-8",
        "response_topic": "answers/$here/ /ü",
        "correlation_data": bytes(range(256)),
        "user_property": [("z", "1"), ("a", "2"), ("z", "1"), ("", ""), ("a", "0"), ("ü", "\ufeff")],
    }
    subscribers = [broker.connect(), broker.connect()]
    for subscriber in subscribers:
        subscriber.subscribe(topic, qos=2)
    publisher = broker.connect()
    for qos in (0, 1, 2):
        publisher.publish(topic, b"text", qos=qos, **properties)
        for subscriber in subscribers:
            assert subscriber.receive().properties == properties


@pytest.mark.parametrize("values", [{}, {"payload_format_indicator": 0}, {"correlation_data": b""}])
def test_absent_and_empty_properties_stay_so(broker: Broker, topic: str, values: dict[str, Any]) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-16] Neither is made of the other."""
    client = broker.connect()
    client.subscribe(topic)
    client.publish(topic, b"x", **values)
    assert client.receive().properties == values


def test_retained_and_waiting_messages_keep_their_properties(
    broker: Broker, topic: str, client_id: str
) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    properties = {
        "payload_format_indicator": 1,
        "content_type": "t",
        "response_topic": "r",
        "correlation_data": b"c",
        "user_property": [("b", "1"), ("a", "2"), ("b", "3")],
    }
    away = broker.connect(client_id, session_expiry_interval=60)
    away.subscribe(topic, qos=1)
    away.disconnect()
    broker.connect().publish(topic, b"kept", qos=1, retain=True, **properties)
    late = broker.connect()
    late.subscribe(topic)
    assert late.receive().properties == properties
    assert broker.connect(client_id, clean=False).receive().properties == properties


def test_the_payload_is_any_bytes(broker: Broker, topic: str) -> None:
    """Section 3.3.3: application-specific, zero length included."""
    client = broker.connect()
    client.subscribe(topic)
    for payload in (b"", bytes(range(256)), bytes(70_000)):
        client.publish(topic, payload)
        assert client.receive().payload == payload


def test_messages_go_only_where_the_filter_matches(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-3]"""
    client = broker.connect()
    client.subscribe(f"{topic}/+/c")
    client.publish(f"{topic}/b/d", b"no")
    client.publish(f"{topic}/b/c", b"yes")
    assert client.receive().topic == f"{topic}/b/c"


def test_overlapping_subscriptions_deliver_the_highest_qos(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.4-2] Pyrite sends one copy."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(f"{topic}/#", qos=0)
    subscriber.subscribe(f"{topic}/+", qos=2)
    subscriber.subscribe(f"{topic}/a", qos=1)
    publisher.publish(f"{topic}/a", b"once", qos=2)
    assert subscriber.receive().qos == 2
    assert subscriber.received_before_fence(publisher) == []


def test_overlapping_subscriptions_deliver_all_identifiers(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.4-3] [MQTT-3.3.4-4] In one copy, in any order; the same identifier twice is twice there."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(f"{topic}/#", subscription_identifier=1)
    subscriber.subscribe(f"{topic}/+", subscription_identifier=268_435_455)
    subscriber.subscribe(f"{topic}/a")
    subscriber.subscribe("+/+/a", subscription_identifier=1)
    publisher.publish(f"{topic}/a", b"once")
    message = subscriber.receive()
    assert sorted(message.properties["subscription_identifier"]) == [1, 1, 268_435_455]
    assert subscriber.received_before_fence(publisher) == []


def test_a_message_expires_before_it_is_delivered(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.3.2-5] One waits for a client that is away, one is retained; both for longer than a second."""
    subscriber, publisher = broker.connect(client_id, session_expiry_interval=60), broker.connect()
    subscriber.subscribe(topic, qos=1)
    subscriber.disconnect()
    publisher.publish(topic, b"short", qos=1, message_expiry_interval=1, retain=True)
    publisher.publish(topic, b"long", qos=1)
    let_a_second_expire()
    subscriber = broker.connect(client_id, clean=False)
    assert subscriber.read().payload == b"long"
    assert subscriber.received_before_fence(publisher) == []
    late = broker.connect()
    late.subscribe(topic)
    assert late.received_before_fence(late) == []


def test_the_remaining_expiry_is_forwarded(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.3.2-6] The received value minus the seconds spent in the server."""
    subscriber, publisher = broker.connect(client_id, session_expiry_interval=60), broker.connect()
    watcher = broker.connect()
    subscriber.subscribe(topic, qos=1)
    watcher.subscribe(topic)
    subscriber.disconnect()
    publisher.publish(topic, b"message", qos=1, retain=True, message_expiry_interval=100)
    assert watcher.receive().properties["message_expiry_interval"] in (99, 100)
    let_a_second_expire()
    subscriber = broker.connect(client_id, clean=False)
    assert 90 <= subscriber.expect(PUBLISH).properties["message_expiry_interval"] <= 99
    late = broker.connect()
    late.subscribe(topic)
    assert 90 <= late.receive().properties["message_expiry_interval"] <= 99


def test_a_message_without_expiry_gets_none(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-6]"""
    client = broker.connect()
    client.subscribe(topic)
    client.publish(topic, b"message")
    assert "message_expiry_interval" not in client.receive().properties


def test_a_message_expires_while_it_waits_for_its_turn(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-5] The client is there, but its receive maximum is taken for more than a second."""
    subscriber, publisher = broker.connect(receive_maximum=1), broker.connect()
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"first", qos=1)
    publisher.publish(topic, b"short", qos=1, message_expiry_interval=1)
    publisher.publish(topic, b"last", qos=1, message_expiry_interval=100)
    first = subscriber.expect(PUBLISH)
    let_a_second_expire()
    subscriber.acknowledge(first)
    last = subscriber.receive()
    assert last.payload == b"last"
    assert 90 <= last.properties["message_expiry_interval"] <= 99
