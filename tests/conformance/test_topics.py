"""Section 4.7: topic names and topic filters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Broker
from .wire import SUBACK, publish_packet, subscribe_packet

MATCHES = [
    # filter, topic name, whether it matches; {} is a level of this test alone
    ("{}/a/b", "{}/a/b", True),
    ("{}/a/b", "{}/a", False),
    ("{}/a/b", "{}/a/b/c", False),
    ("{}/a", "{}/A", False),
    ("{}/#", "{}", True),
    ("{}/#", "{}/", True),
    ("{}/#", "{}/a", True),
    ("{}/#", "{}/a/b/c", True),
    ("{}/a/#", "{}/b/a", False),
    ("{}/+", "{}/a", True),
    ("{}/+", "{}/", True),
    ("{}/+", "{}", False),
    ("{}/+", "{}/a/b", False),
    ("{}/+/+", "{}/a/b", True),
    ("{}/+/c", "{}/b/c", True),
    ("{}/+/c", "{}//c", True),
    ("{}/+/c", "{}/b/d", False),
    ("+/{}", "a/{}", True),
    ("+/{}", "/{}", True),
    ("+/{}", "{}", False),
    ("/{}", "/{}", True),
    ("/{}", "{}", False),
    ("{}", "{}/", False),
    ("{}/", "{}", False),
    ("+/+/{}", "//{}", True),
    ("+/{}/#", "a/{}", True),
    ("+/{}/#", "a/{}/b/c", True),
    ("{}/+/#", "{}/a", True),
    ("{}/+/#", "{}", False),
    ("{}//#", "{}/", True),
    ("{}/ /b", "{}/ /b", True),
    ("{}/ /b", "{}//b", False),
    ("{}/$a", "{}/$a", True),
    ("{}/+", "{}/$a", True),
    ("{}/#", "{}/$SYS/a", True),
]  # fmt: skip


@pytest.mark.parametrize(("topic_filter", "name", "matches"), MATCHES)
def test_filters_match_level_by_level(
    broker: Broker, unique: Callable[[str], str], topic_filter: str, name: str, matches: bool
) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-3.3.2-3] Section 4.7.1 and its examples."""
    level = unique("level")
    client = broker.connect()
    assert client.subscribe(topic_filter.format(level)).reasons == (0,)
    client.publish(name.format(level), b"here")
    received = client.received_before_fence(client)
    assert [message.topic for message in received] == ([name.format(level)] if matches else [])


@pytest.mark.parametrize(("topic_filter", "name", "matches"), MATCHES)
def test_retained_messages_match_in_the_same_way(
    broker: Broker, unique: Callable[[str], str], topic_filter: str, name: str, matches: bool
) -> None:
    """[MQTT-3.3.1-9] [MQTT-4.7.1-1] [MQTT-4.7.1-2] The message is there before the subscription."""
    level = unique("level")
    client = broker.connect()
    client.publish(name.format(level), b"here", qos=1, retain=True)
    client.subscribe(topic_filter.format(level))
    received = client.received_before_fence(client)
    assert [message.topic for message in received] == ([name.format(level)] if matches else [])


@pytest.mark.parametrize("topic_filter", ["#", "+/{}", "+/#", "+/+"])
def test_a_leading_wildcard_does_not_match_a_dollar(
    broker: Broker, unique: Callable[[str], str], topic_filter: str
) -> None:
    """[MQTT-4.7.2-1] Neither live nor retained."""
    level = unique("level")
    client = broker.connect()
    publisher = broker.connect()
    client.subscribe(topic_filter.format(level), retain_handling=2)
    for retain in (False, True):
        publisher.send(publish_packet(f"$secret/{level}", b"hidden", retain=retain))
    late = broker.connect()
    late.subscribe(topic_filter.format(level))
    for subscriber in (client, late):
        received = subscriber.received_before_fence(broker.connect())
        assert not [message.topic for message in received if message.topic.startswith("$")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("\u00e9", "e\u0301", id="composed and decomposed"),
        pytest.param("\u212b", "\u00c5", id="Angstrom sign and A with ring"),
        pytest.param("\ufb01", "fi", id="ligature"),
        pytest.param("\u00df", "ss", id="sharp s"),
        pytest.param("A", "a", id="case"),
        pytest.param("a", "a ", id="trailing space"),
        pytest.param("\ufeffa", "a", id="byte order mark"),
    ],
)
def test_names_are_not_normalized(broker: Broker, topic: str, one: str, other: str) -> None:
    """[MQTT-4.7.3-4] Two spellings are two topics, and come back as they were sent."""
    client = broker.connect()
    client.subscribe(f"{topic}/{one}")
    client.publish(f"{topic}/{other}", b"other")
    client.publish(f"{topic}/{one}", b"one")
    message = client.receive()
    assert (message.topic, message.payload) == (f"{topic}/{one}", b"one")


def test_an_empty_topic_name_is_not_a_topic(broker: Broker) -> None:
    """[MQTT-4.7.3-1] [MQTT-3.3.2-1]"""
    client = broker.connect()
    client.send(publish_packet(""))
    client.expect_disconnect(0x82)


def test_a_topic_of_the_greatest_length_works(broker: Broker, topic: str) -> None:
    """[MQTT-4.7.3-3] 65,535 bytes are what a length of two bytes can say; more cannot be sent at all."""
    client = broker.connect()
    name = f"{topic}/".ljust(65_535, "x")
    client.subscribe(name)
    client.publish(name, b"long")
    assert client.receive().topic == name


def test_topic_levels_may_be_empty(broker: Broker, topic: str) -> None:
    """[MQTT-4.7.3-1] One character is enough, and that may be a slash."""
    client = broker.connect()
    client.send(subscribe_packet(1, [("/", 0), (f"{topic}///", 0)]))
    assert client.expect(SUBACK).reasons == (0, 0)
    for name in ("/", f"{topic}///"):
        client.publish(name, b"slash")
        assert client.receive().topic == name
