"""Section 4.8.2: shared subscriptions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from .client import Client
from .conftest import Broker
from .wire import PUBACK, PUBLISH, PUBREC, PUBREL, ack_packet


def group(broker: Broker, topic: str, *granted: int, **values: Any) -> list[Client]:
    """Return one member of a shared subscription for each QoS given."""
    members = [broker.connect(**values) for _ in granted]
    for member, qos in zip(members, granted, strict=True):
        assert member.subscribe(f"$share/group/{topic}", qos=qos).reasons == (qos,)
    return members


def taken(members: list[Client], publisher: Client) -> list[list[bytes]]:
    """Return what each member has received."""
    return [
        [each.payload for each in member.received_before_fence(publisher) if each.kind == PUBLISH]
        for member in members
    ]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-4.8.2-1] Exactly one; and no member is starved."""
    members, publisher = group(broker, topic, qos, qos, qos), broker.connect()
    payloads = [b"%d" % number for number in range(30)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=qos)
    received = taken(members, publisher)
    assert Counter(payload for each in received for payload in each) == Counter(payloads)
    assert all(received)


def test_groups_and_ordinary_subscriptions_are_independent(broker: Broker, topic: str) -> None:
    """[MQTT-4.8.2-1] Each share name is a subscription of its own; others get their own copy."""
    one, two, plain, publisher = (broker.connect() for _ in range(4))
    one.subscribe(f"$share/one/{topic}")
    two.subscribe(f"$share/two/{topic}")
    plain.subscribe(topic)
    publisher.publish(topic, b"message")
    for client in (one, two, plain):
        assert client.receive().payload == b"message"


def test_a_session_may_subscribe_both_ways(broker: Broker, topic: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-3.3.4-5] Two deliveries, each with the identifier of its own subscription."""
    client = broker.connect()
    client.subscribe(topic, subscription_identifier=1)
    client.subscribe(f"$share/group/{topic}", subscription_identifier=2)
    client.publish(topic, b"message")
    received = [client.receive() for _ in range(2)]
    assert sorted(each.properties["subscription_identifier"] for each in received) == [[1], [2]]


def test_a_shared_filter_may_hold_wildcards(broker: Broker, topic: str) -> None:
    """[MQTT-4.8.2-2] After the share name comes any topic filter."""
    client = broker.connect()
    client.subscribe(f"$share/group/{topic}/+/#")
    client.publish(f"{topic}/a/b", b"message")
    assert client.receive().topic == f"{topic}/a/b"


def test_the_granted_qos_of_the_chosen_member_counts(broker: Broker, topic: str) -> None:
    """[MQTT-4.8.2-3] Each of the three gets its messages at its own QoS."""
    members, publisher = group(broker, topic, 0, 1, 2), broker.connect()
    for _ in range(30):
        publisher.publish(topic, b"message", qos=2)
    for qos, member in enumerate(members):
        messages = [each for each in member.received_before_fence(publisher) if each.kind == PUBLISH]
        assert {message.qos for message in messages} == {qos}


def test_a_qos_2_delivery_is_completed_with_the_same_client(
    broker: Broker, topic: str, client_id: str
) -> None:
    """[MQTT-4.8.2-4] When it reconnects; nobody else gets the message in between."""
    first = broker.connect(client_id, session_expiry_interval=60)
    first.subscribe(f"$share/group/{topic}", qos=2)
    publisher = broker.connect()
    publisher.publish(topic, b"begun", qos=2)
    message = first.expect(PUBLISH)
    [other] = group(broker, topic, 2)
    first.close()
    assert taken([other], publisher) == [[]]
    first = broker.connect(client_id, clean=False, session_expiry_interval=60)
    again = first.receive()
    assert (again.packet_id, again.payload, again.dup) == (message.packet_id, b"begun", True)
    assert taken([other], publisher) == [[]]


def test_a_qos_2_delivery_dies_with_its_session(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-4.8.2-5] The message is not given to another member."""
    first = broker.connect(client_id, session_expiry_interval=60)
    first.subscribe(f"$share/group/{topic}", qos=2)
    publisher = broker.connect()
    publisher.publish(topic, b"begun", qos=2)
    message = first.expect(PUBLISH)
    first.send(ack_packet(PUBREC, message.packet_id))
    first.expect(PUBREL)
    [other] = group(broker, topic, 2)
    first.disconnect(0, session_expiry_interval=0)
    assert taken([other], publisher) == [[]]


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_a_refused_message_is_discarded(broker: Broker, topic: str, qos: int, kind: int) -> None:
    """[MQTT-4.8.2-6] Not offered to another member, nor again to the same."""
    first, publisher = broker.connect(), broker.connect()
    first.subscribe(f"$share/group/{topic}", qos=qos)
    publisher.publish(topic, b"refused", qos=qos)
    message = first.expect(PUBLISH)
    [other] = group(broker, topic, qos)
    first.send(ack_packet(kind, message.packet_id, 0x83))
    first.ping()
    assert taken([first, other], publisher) == [[], []]


def test_unsubscribe_names_the_whole_shared_filter(broker: Broker, topic: str) -> None:
    """[MQTT-3.10.4-1] The filter without its share is another subscription."""
    client = broker.connect()
    client.subscribe(f"$share/group/{topic}")
    assert client.unsubscribe(topic).reasons == (0x11,)
    assert client.unsubscribe(f"$share/group/{topic}").reasons == (0x00,)
    client.publish(topic, b"late")
    assert client.received_before_fence(client) == []


def test_a_member_that_left_gets_nothing(broker: Broker, topic: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.1.0-2] Its session has ended with its connection; the rest take over."""
    stays, leaves = group(broker, topic, 1, 1)
    leaves.disconnect()
    publisher = broker.connect()
    payloads = [b"%d" % number for number in range(10)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    assert taken([stays], publisher) == [payloads]


def test_retained_messages_are_not_sent_to_shared_subscriptions(broker: Broker, topic: str) -> None:
    """Section 4.8.2: no retained message is sent when a shared subscription is made."""
    client = broker.connect()
    client.publish(topic, b"kept", qos=1, retain=True)
    client.subscribe(f"$share/group/{topic}", qos=1)
    assert client.received_before_fence(client) == []
