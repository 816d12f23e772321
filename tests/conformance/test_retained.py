"""Section 3.3.1.3: retained messages, and the subscription options about them."""

from __future__ import annotations

from .client import Client
from .conftest import Broker


def retained(broker: Broker, topic_filter: str) -> list[bytes]:
    """Return the payloads that a new subscriber gets."""
    client = broker.connect()
    client.subscribe(topic_filter, qos=2)
    messages = client.received_before_fence(broker.connect())
    assert all(message.retain for message in messages)
    return [message.payload for message in messages]


def test_a_retained_message_is_stored_and_replaced(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-9]"""
    publisher = broker.connect()
    for qos in (0, 1, 2):
        publisher.publish(topic, b"qos %d" % qos, qos=qos, retain=True)
        assert retained(broker, topic) == [b"qos %d" % qos]


def test_a_retained_message_outlives_its_publisher(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-5] Section 4.1: retained messages are no part of the session state."""
    publisher = broker.connect()
    publisher.publish(topic, b"kept", qos=1, retain=True)
    publisher.disconnect()
    assert retained(broker, topic) == [b"kept"]


def test_an_empty_retained_message_removes_the_stored_one(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-6] [MQTT-3.3.1-7] Present subscribers receive it as a message like any other."""
    watcher, publisher = broker.connect(), broker.connect()
    publisher.publish(topic, b"kept", retain=True)
    watcher.subscribe(topic, retain_handling=2)
    publisher.publish(topic, b"", retain=True)
    assert watcher.receive().payload == b""
    assert retained(broker, topic) == []


def test_an_empty_retained_message_is_not_stored(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-7] Also where nothing was stored before."""
    broker.connect().publish(topic, b"", qos=1, retain=True)
    assert retained(broker, topic) == []


def test_a_message_without_retain_leaves_the_stored_one_alone(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-8] Neither stored, nor removing, nor replacing; an empty one included."""
    publisher = broker.connect()
    publisher.publish(f"{topic}/none", b"passing", qos=1)
    publisher.publish(f"{topic}/some", b"kept", qos=1, retain=True)
    publisher.publish(f"{topic}/some", b"passing", qos=1)
    publisher.publish(f"{topic}/some", b"", qos=1)
    assert retained(broker, f"{topic}/#") == [b"kept"]


def test_a_new_subscription_gets_every_retained_message_that_matches(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.2-3]"""
    publisher = broker.connect()
    for name in ("a", "b", "a/b", "c/d/e"):
        publisher.publish(f"{topic}/{name}", name.encode(), qos=1, retain=True)
    assert sorted(retained(broker, f"{topic}/+")) == [b"a", b"b"]
    assert sorted(retained(broker, f"{topic}/#")) == [b"a", b"a/b", b"b", b"c/d/e"]


def test_the_qos_of_a_retained_message_is_limited_by_the_subscription(broker: Broker, topic: str) -> None:
    """[MQTT-3.8.4-8]"""
    broker.connect().publish(topic, b"kept", qos=2, retain=True)
    for granted in (0, 1, 2):
        client = broker.connect()
        client.subscribe(topic, qos=granted)
        assert client.receive().qos == granted


def _subscribe_twice(client: Client, topic: str, handling: int) -> tuple[int, int]:
    counts = []
    for _ in range(2):
        client.subscribe(topic, retain_handling=handling)
        counts.append(len(client.received_before_fence(client)))
    return counts[0], counts[1]


def test_retain_handling_0_sends_at_every_subscribe(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.8.4-4]"""
    client = broker.connect()
    client.publish(topic, b"kept", retain=True)
    assert _subscribe_twice(client, topic, 0) == (1, 1)


def test_retain_handling_1_sends_to_a_new_subscription_only(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-10] After an UNSUBSCRIBE it is new again."""
    client = broker.connect()
    client.publish(topic, b"kept", retain=True)
    assert _subscribe_twice(client, topic, 1) == (1, 0)
    client.unsubscribe(topic)
    assert _subscribe_twice(client, topic, 1) == (1, 0)


def test_retain_handling_1_knows_the_subscriptions_of_a_resumed_session(
    broker: Broker, topic: str, client_id: str
) -> None:
    """[MQTT-3.3.1-10] The subscription existed before this connection."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(topic)
    client.disconnect()
    broker.connect().publish(topic, b"kept", qos=1, retain=True)
    client = broker.connect(client_id, clean=False)
    client.received_before_fence(client)
    client.subscribe(topic, retain_handling=1)
    assert client.received_before_fence(client) == []


def test_retain_handling_2_sends_nothing(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-11]"""
    client = broker.connect()
    client.publish(topic, b"kept", retain=True)
    assert _subscribe_twice(client, topic, 2) == (0, 0)


def test_without_retain_as_published_the_flag_is_cleared(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-12]"""
    client = broker.connect()
    client.subscribe(topic)
    for retain in (False, True):
        client.publish(topic, b"live", retain=retain)
        assert not client.receive().retain


def test_with_retain_as_published_the_flag_is_kept(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-13]"""
    client = broker.connect()
    client.subscribe(topic, retain_as_published=True)
    for retain in (False, True):
        client.publish(topic, b"live", retain=retain)
        assert client.receive().retain is retain


def test_retain_as_published_is_kept_for_a_client_that_is_away(
    broker: Broker, topic: str, client_id: str
) -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13] Whether a message waits makes no difference."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(f"{topic}/kept", qos=1, retain_as_published=True)
    client.subscribe(f"{topic}/cleared", qos=1)
    client.disconnect()
    publisher = broker.connect()
    for name in ("kept", "cleared"):
        publisher.publish(f"{topic}/{name}", b"message", qos=1, retain=True)
    client = broker.connect(client_id, clean=False)
    flags = {}
    for _ in range(2):
        message = client.receive()
        flags[message.topic.rpartition("/")[2]] = message.retain
    assert flags == {"kept": True, "cleared": False}


def test_a_retained_message_carries_the_subscription_identifier(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.4-3] It is published as the result of that subscription."""
    client = broker.connect()
    client.publish(topic, b"kept", retain=True)
    client.subscribe(topic, subscription_identifier=300)
    assert client.receive().properties == {"subscription_identifier": [300]}
