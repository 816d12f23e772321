"""Section 3.3.2.3.4: topic aliases, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Client
from .conftest import Broker
from .reader import Packet
from .wire import PUBLISH, publish_packet


def alias_maximum(client: Client) -> int:
    assert client.connack is not None
    return int(client.connack.properties.get("topic_alias_maximum", 0))


def test_an_alias_stands_for_its_topic(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-12] The alias itself is not forwarded."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic)
    publisher.send(publish_packet(topic, b"with name", topic_alias=1))
    publisher.send(publish_packet("", b"with alias", topic_alias=1))
    for payload in (b"with name", b"with alias"):
        message = subscriber.receive()
        assert (message.topic, message.payload) == (topic, payload)
        assert "topic_alias" not in message.properties


def test_every_alias_up_to_the_maximum_is_accepted(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-12] 1, the maximum, and up to 200 between."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(f"{topic}/#")
    maximum = alias_maximum(publisher)
    aliases = sorted({1, maximum, *range(1, maximum + 1, max(1, maximum // 200))})
    for alias in aliases:
        publisher.send(publish_packet(f"{topic}/{alias}", topic_alias=alias))
    for alias in aliases:
        publisher.send(publish_packet("", topic_alias=alias))
    received = [subscriber.receive().topic for _ in range(2 * len(aliases))]
    assert received == [f"{topic}/{alias}" for alias in aliases] * 2


def test_an_alias_beyond_the_maximum_is_invalid(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-9] [MQTT-3.2.2-17] Topic Alias invalid, and the connection ends."""
    client = broker.connect()
    client.send(publish_packet(topic, topic_alias=alias_maximum(client) + 1))
    client.expect_disconnect(0x94)


def test_an_alias_can_be_set_anew(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-12] A topic name with a known alias replaces the mapping."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(f"{topic}/#")
    for name in ("a", "b"):
        publisher.send(publish_packet(f"{topic}/{name}", topic_alias=1))
        publisher.send(publish_packet("", topic_alias=1))
    assert [subscriber.receive().topic[-1] for _ in range(4)] == ["a", "a", "b", "b"]


def test_aliases_end_with_the_connection(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.3.2-7] Also when the session goes on."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.publish(topic, qos=1, topic_alias=1)
    client.disconnect()
    client = broker.connect(client_id, clean=False)
    client.send(publish_packet("", topic_alias=1))
    client.expect_disconnect(0x82)


def test_aliases_belong_to_one_connection(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-7] Another connection may use the same alias for another topic."""
    subscriber, one, two = broker.connect(), broker.connect(), broker.connect()
    subscriber.subscribe(f"{topic}/#")
    one.publish(f"{topic}/one", qos=1, topic_alias=1)
    two.publish(f"{topic}/two", qos=1, topic_alias=1)
    one.publish("", qos=1, topic_alias=1)
    assert [subscriber.receive().topic[-3:] for _ in range(3)] == ["one", "two", "one"]


@pytest.mark.parametrize("values", [{}, {"topic_alias_maximum": 0}], ids=["absent", "0"])
def test_no_alias_is_sent_to_a_client_that_wants_none(
    broker: Broker, topic: str, values: dict[str, Any]
) -> None:
    """[MQTT-3.1.2-27]"""
    subscriber, publisher = broker.connect(**values), broker.connect()
    subscriber.subscribe(topic)
    for _ in range(3):
        publisher.publish(topic, b"message")
        message = subscriber.receive()
        assert message.topic == topic
        assert "topic_alias" not in message.properties


def test_aliases_from_the_server_stay_within_the_clients_maximum(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-26] [MQTT-3.3.2-11] [MQTT-3.3.2-8] And resolve to the right topics, if there are any."""
    subscriber, publisher = broker.connect(topic_alias_maximum=2), broker.connect()
    subscriber.subscribe(f"{topic}/#")
    aliases = Aliases()
    for name in "abcabcaabbcc":
        publisher.publish(f"{topic}/{name}", name.encode())
        message = subscriber.expect(PUBLISH)
        assert message.properties.get("topic_alias", 0) <= 2
        assert aliases.resolve(message) == f"{topic}/{name}"


def test_aliases_from_the_server_end_with_the_connection(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.3.2-7] [MQTT-3.1.2-27] What is sent again, to a client without aliases, has its name."""
    client = broker.connect(client_id, session_expiry_interval=60, topic_alias_maximum=5)
    client.subscribe(topic, qos=1)
    publisher = broker.connect()
    for _ in range(3):
        publisher.publish(topic, b"message", qos=1)
        client.expect(PUBLISH)
    client.close()
    client = broker.connect(client_id, clean=False)
    for _ in range(3):
        message = client.expect(PUBLISH)
        assert message.topic == topic
        assert "topic_alias" not in message.properties


class Aliases:
    """Resolves the server's aliases, as a client does."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}

    def resolve(self, message: Packet) -> str:
        alias = message.properties.get("topic_alias", 0)
        if alias and message.topic:
            self.known[alias] = message.topic
        return message.topic or self.known[alias]


def test_an_alias_is_not_set_by_a_packet_that_was_not_sent(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-25] [MQTT-3.1.2-26] The client never saw the first message, which was too large."""
    subscriber, publisher = broker.connect(topic_alias_maximum=5, maximum_packet_size=200), broker.connect()
    subscriber.subscribe(topic)
    for payload in (bytes(300), b"one", b"two"):
        publisher.publish(topic, payload)
    aliases = Aliases()
    for payload in (b"one", b"two"):
        message = subscriber.expect(PUBLISH)
        assert (aliases.resolve(message), message.payload) == (topic, payload)


def test_aliases_resolve_in_the_order_of_the_wire(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-26] A QoS 0 message overtakes those that wait for the receive maximum."""
    subscriber, publisher = broker.connect(topic_alias_maximum=5, receive_maximum=1), broker.connect()
    subscriber.subscribe(f"{topic}/#", qos=1)
    for number in range(6):
        publisher.publish(f"{topic}/{number % 3}", b"%d" % number, qos=number % 2)
    aliases = Aliases()
    for _ in range(6):
        message = subscriber.expect(PUBLISH)
        subscriber.acknowledge(message)
        assert aliases.resolve(message) == f"{topic}/{int(message.payload) % 3}"


def test_what_is_sent_again_sets_its_alias_anew(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.3.2-7] [MQTT-4.4.0-1] The new connection knows no alias yet."""
    values = {"session_expiry_interval": 60, "topic_alias_maximum": 5}
    client = broker.connect(client_id, **values)
    client.subscribe(topic, qos=1)
    publisher = broker.connect()
    for _ in range(3):
        publisher.publish(topic, b"message", qos=1)
        client.expect(PUBLISH)
    client.close()
    client = broker.connect(client_id, clean=False, **values)
    aliases = Aliases()
    for _ in range(3):
        assert aliases.resolve(client.expect(PUBLISH)) == topic
