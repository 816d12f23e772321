"""Sections 3.8 to 3.11: SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK."""

from __future__ import annotations

import pytest

from .conftest import Broker
from .wire import (
    PUBACK,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    ack_packet,
    subscribe_packet,
    unsubscribe_packet,
)

WRONG_FILTERS = ["a/#/b", "#/a", "a#", "a/b#", "+a", "a+", "a/+b", "a/b+/c", "##", "++", "a/##", ""]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_qos_asked_for_is_granted(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-3.8.4-1] [MQTT-3.8.4-7] [MQTT-3.9.3-2]"""
    assert broker.connect().subscribe(topic, qos=qos).reasons == (qos,)


def test_each_filter_gets_its_reason_in_order(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-3.9.3-2] One SUBACK; a wrong filter
    fails alone.
    """
    client = broker.connect()
    filters = [(f"{topic}/2", 2), ("a/#/b", 0), (f"{topic}/0", 0), (f"{topic}/1", 1), ("b+", 2)]
    client.send(subscribe_packet(12, filters))
    suback = client.expect(SUBACK)
    assert (suback.packet_id, suback.reasons) == (12, (2, 0x8F, 0, 1, 0x8F))
    for number in (2, 0, 1):
        client.publish(f"{topic}/{number}", b"here", qos=2)
        message = client.receive()
        assert (message.topic, message.qos) == (f"{topic}/{number}", number)


def test_the_same_filter_twice_in_one_packet_is_a_replacement(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.4-5] [MQTT-3.8.4-3] As if in two packets, one after the other."""
    client = broker.connect()
    client.send(subscribe_packet(1, [(topic, 2), (topic, 0)]))
    assert client.expect(SUBACK).reasons == (2, 0)
    client.publish(topic, b"once", qos=2)
    assert client.receive().qos == 0
    assert client.received_before_fence(client) == []


@pytest.mark.parametrize("topic_filter", WRONG_FILTERS)
def test_a_wrong_filter_is_refused_in_suback(broker: Broker, topic_filter: str) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] Topic Filter invalid; the connection goes on."""
    client = broker.connect()
    assert client.subscribe(topic_filter).reasons == (0x8F,)
    client.ping()


@pytest.mark.parametrize(
    "topic_filter",
    ["$share/", "$share/g", "$share//t", "$share/g/", "$share/a+b/t", "$share/#/t", "$share/+/t"],
)
def test_a_wrong_shared_filter_is_refused_in_suback(broker: Broker, topic_filter: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2] A share name of one character or more, a slash, and a filter."""
    client = broker.connect()
    assert client.subscribe(topic_filter).reasons == (0x8F,)
    client.ping()


def test_subscribing_again_replaces_the_subscription(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.4-3] QoS, options and identifier are those of the later one."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=0, subscription_identifier=1)
    subscriber.subscribe(topic, qos=2, subscription_identifier=2, retain_as_published=True)
    publisher.publish(topic, b"message", qos=2, retain=True)
    message = subscriber.receive()
    assert (message.qos, message.retain) == (2, True)
    assert message.properties == {"subscription_identifier": [2]}
    subscriber.subscribe(topic, qos=1, retain_handling=2)
    publisher.publish(topic, b"message", qos=2, retain=True)
    message = subscriber.receive()
    assert (message.qos, message.retain, message.properties) == (1, False, {})


def test_replacing_a_subscription_loses_nothing(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.4-4] Messages flow in while the subscription is replaced again and again."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=1)
    for number in range(15):
        publisher.publish(topic, b"%d" % number, qos=1)
        subscriber.send(subscribe_packet(1000 + number, [(topic, 1)]))
        assert subscriber.wait_for(SUBACK).packet_id == 1000 + number
    packets = subscriber.received_before_fence(publisher)
    received = [each.payload for each in packets if each.kind == PUBLISH]
    assert received == [b"%d" % number for number in range(15)]


def test_no_local_keeps_own_messages_away(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.8.3-3] Own is decided by the client identifier, across connections too."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(topic, qos=1, no_local=True)
    client.publish(topic, b"own", qos=1)
    broker.connect().publish(topic, b"foreign", qos=1)
    assert client.receive().payload == b"foreign"
    client.disconnect()
    client = broker.connect(client_id, clean=False)
    client.publish(topic, b"own again", qos=1)
    assert client.received_before_fence(client) == []


def test_without_no_local_own_messages_come_back(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.3-3] The option is 0."""
    client = broker.connect()
    client.subscribe(topic)
    client.publish(topic, b"own")
    assert client.receive().payload == b"own"


def test_no_local_applies_to_each_subscription_alone(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.3-3] An overlapping subscription without it still matches."""
    client = broker.connect()
    client.subscribe(topic, qos=2, no_local=True, subscription_identifier=1)
    client.subscribe(f"{topic}/#", qos=1, subscription_identifier=2)
    client.publish(topic, b"own", qos=2)
    message = client.receive()
    assert (message.qos, message.properties) == (1, {"subscription_identifier": [2]})


@pytest.mark.parametrize("identifier", [1, 127, 128, 16_383, 16_384, 2_097_152, 268_435_455])
def test_a_subscription_identifier_comes_with_every_message(
    broker: Broker, topic: str, identifier: int
) -> None:
    """[MQTT-3.3.4-3] [MQTT-1.5.5-1]"""
    client = broker.connect()
    client.subscribe(topic, f"{topic}/+", subscription_identifier=identifier)
    for name in (topic, f"{topic}/a"):
        client.publish(name, b"message")
        assert client.receive().properties == {"subscription_identifier": [identifier]}


def test_an_identifier_belongs_to_the_session_that_set_it(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.4-3] Other subscribers to the same topic do not see it."""
    marked, plain = broker.connect(), broker.connect()
    marked.subscribe(topic, subscription_identifier=5)
    plain.subscribe(topic)
    plain.publish(topic, b"message")
    assert marked.receive().properties == {"subscription_identifier": [5]}
    assert plain.receive().properties == {}


def test_unsubscribe_deletes_the_subscription(broker: Broker, topic: str) -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-4] [MQTT-3.11.3-2]"""
    client = broker.connect()
    client.subscribe(topic, qos=1)
    assert client.unsubscribe(topic).reasons == (0x00,)
    client.publish(topic, b"late", qos=1)
    assert client.received_before_fence(client) == []


def test_unsubscribe_compares_filters_as_text(broker: Broker, topic: str) -> None:
    """[MQTT-3.10.4-1] Character by character: a wildcard in UNSUBSCRIBE matches only itself."""
    client = broker.connect()
    client.subscribe(f"{topic}/a", f"{topic}/+", f"{topic}/#")
    assert client.unsubscribe(f"{topic}/b", f"{topic}/A", f"{topic}/+").reasons == (0x11, 0x11, 0x00)
    assert client.unsubscribe(f"{topic}/#").reasons == (0x00,)
    client.publish(f"{topic}/b", b"unmatched")
    client.publish(f"{topic}/a", b"matched")
    assert client.receive().payload == b"matched"


def test_unsubscribe_answers_also_when_nothing_is_deleted(broker: Broker, topic: str) -> None:
    """[MQTT-3.10.4-5] [MQTT-3.11.3-2] No subscription existed."""
    assert broker.connect().unsubscribe(topic).reasons == (0x11,)


def test_unsubscribe_reasons_come_in_order(broker: Broker, topic: str) -> None:
    """[MQTT-3.10.4-6] [MQTT-3.11.3-1] One UNSUBACK, as if each filter had come alone."""
    client = broker.connect()
    client.subscribe(f"{topic}/a", f"{topic}/b")
    client.send(unsubscribe_packet(44, [f"{topic}/b", f"{topic}/x", f"{topic}/a", f"{topic}/b"]))
    unsuback = client.expect(UNSUBACK)
    assert (unsuback.packet_id, unsuback.reasons) == (44, (0x00, 0x11, 0x00, 0x11))


@pytest.mark.parametrize("qos", [1, 2])
def test_unsubscribe_completes_what_was_begun(broker: Broker, topic: str, client_id: str, qos: int) -> None:
    """[MQTT-3.10.4-3] The message already sent goes through its exchange, over a reconnect as well."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(topic, qos=qos)
    broker.connect().publish(topic, b"begun", qos=qos)
    message = client.expect(PUBLISH)
    assert client.unsubscribe(topic).reasons == (0,)
    client.close()
    client = broker.connect(client_id, clean=False)
    again = client.expect(PUBLISH)
    assert (again.packet_id, again.dup, again.payload) == (message.packet_id, True, b"begun")
    client.send(ack_packet(PUBACK if qos == 1 else PUBREC, again.packet_id))
    if qos == 2:
        assert client.expect(PUBREL).packet_id == again.packet_id
    client.ping()


def test_unsubscribing_one_of_two_leaves_the_other(broker: Broker, topic: str) -> None:
    """[MQTT-3.10.4-1] Overlapping subscriptions are separate."""
    client = broker.connect()
    client.subscribe(topic, qos=2)
    client.subscribe(f"{topic}/#", qos=1)
    client.unsubscribe(topic)
    client.publish(topic, b"message", qos=2)
    assert client.receive().qos == 1
