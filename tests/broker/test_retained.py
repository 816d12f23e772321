"""Retained messages: what a new subscriber is sent, and how they are bounded (3.3.1.3, 3.8.3.1)."""

from __future__ import annotations

import tracemalloc

import pytest

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt.packets import Ack, Publish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V5, V311, Core


def test_a_new_subscriber_gets_retained_messages(core: Core) -> None:
    """[MQTT-3.3.1-5], [MQTT-3.3.1-8]"""
    writer = core.connect("writer")
    writer.publish("a", b"old", retain=True)
    writer.publish("a", b"new", qos=1, retain=True, content_type="x")
    writer.publish("b", b"not retained")
    for version in (V5, V311):
        reader = core.connect("reader", version)
        reader.subscribe("#", qos=2)
        message = reader.only(Publish)
        assert (message.topic, message.payload, message.qos, message.retain) == (b"a", b"new", 1, True)
        assert message.properties == ({"content_type": "x"} if version == V5 else {})


def test_an_empty_retained_message_removes_the_retained_message(core: Core) -> None:
    """[MQTT-3.3.1-6], [MQTT-3.3.1-7]"""
    live = core.connect("live")
    live.subscribe("a")
    writer = core.connect("writer")
    writer.publish("a", b"x", retain=True)
    writer.publish("a", b"", retain=True)
    assert live.payloads() == [b"x", b""]
    reader = core.connect("reader")
    reader.subscribe("a")
    assert reader.received() == []
    assert len(core.broker.retained) == 0


def test_retained_messages_match_topics_with_a_dollar_in_a_lower_level(core: Core) -> None:
    """[MQTT-4.7.2-1] excludes only topics that begin with $."""
    core.connect("writer").publish("a/$b", b"x", retain=True)
    reader = core.connect("reader")
    reader.subscribe("#")
    assert reader.payloads() == [b"x"]


def test_a_wildcard_matches_topics_with_a_dollar_in_a_lower_level(core: Core) -> None:
    writer = core.connect("writer")
    writer.publish("a/$b", b"before")
    reader = core.connect("reader")
    reader.subscribe("#")
    writer.publish("a/$b", b"after")
    assert reader.payloads() == [b"after"]


@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling_decides_when_retained_messages_are_sent(
    core: Core, handling: int, first: int, second: int
) -> None:
    """[MQTT-3.3.1-9] to [MQTT-3.3.1-11]"""
    core.connect("writer").publish("a", b"x", retain=True)
    reader = core.connect("reader")
    reader.subscribe("a", retain_handling=handling)
    assert len(reader.messages()) == first
    reader.subscribe("a", retain_handling=handling)
    assert len(reader.messages()) == second


@pytest.mark.parametrize("as_published", [True, False])
@pytest.mark.parametrize("retained", [True, False])
def test_retain_as_published_keeps_the_flag(core: Core, as_published: bool, retained: bool) -> None:
    """[MQTT-3.3.1-12], [MQTT-3.3.1-13]"""
    reader = core.connect("reader")
    reader.subscribe("a", retain_as_published=as_published)
    core.connect("writer").publish("a", b"x", retain=retained)
    assert reader.only(Publish).retain is (as_published and retained)


def test_retained_messages_are_limited() -> None:
    core = Core(Limits(max_retained_messages=2))
    writer = core.connect("writer")
    for topic in ("a", "b", "c"):
        writer.publish(topic, topic.encode(), retain=True)
    writer.publish("a", b"other", retain=True)
    reader = core.connect("reader")
    reader.subscribe("#")
    assert sorted(reader.payloads()) == [b"b", b"other"]
    assert core.broker.figures.retained_refused == 1
    writer.received()
    writer.publish("d", b"x", qos=1, retain=True)
    assert writer.only(Ack).reason == Reason.QUOTA_EXCEEDED
    writer.publish("a", b"", retain=True)
    writer.publish("d", b"x", qos=1, retain=True)
    assert writer.only(Ack).reason == Reason.SUCCESS


def test_memory_of_retained_messages_does_not_grow_with_their_subscribers(core: Core) -> None:
    """Every subscription has another identifier, so every delivery has bytes of its own."""
    core.connect("writer").publish("a", b"x" * 50_000, retain=True, message_expiry=1_000)
    reader = core.connect("reader")
    tracemalloc.start()
    try:
        for number in range(200):
            reader.subscribe("a", subscription_identifier=number + 1)
            assert len(reader.messages()) == 1
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000
