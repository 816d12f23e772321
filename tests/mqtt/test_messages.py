"""PUBLISH on a connection: packet sizes, topic aliases and properties (3.3)."""

from __future__ import annotations

from typing import Any

import pytest

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.protocols.mqtt.packets import Ack, Disconnect, Publish, Wish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V5, V311, Core


def test_an_acknowledgement_does_not_repeat_the_reason_of_the_last_one() -> None:
    """The connection caches the header of the last packet, but not the outcome of publishing it."""
    core = Core(Limits(max_retained_messages=1))
    core.connect("reader").subscribe("#")
    writer, other = core.connect("writer"), core.connect("other")
    other.publish("a", b"x", retain=True)
    writer.publish("b", b"x", qos=1, retain=True)
    assert writer.only(Ack).reason == Reason.QUOTA_EXCEEDED
    other.publish("a", b"", retain=True)
    writer.publish("b", b"x", qos=1, retain=True)
    assert writer.only(Ack).reason == Reason.SUCCESS
    assert set(core.broker.retained.values) == {b"b"}


def test_a_packet_larger_than_the_limit_ends_the_connection() -> None:
    core = Core(Limits(max_packet_size=100))
    for version in (V5, V311):
        client = core.connect("c", version)
        client.subscribe("a/#")
        size = len(client.encoded(Publish(b"a/b", b"")))
        client.publish("a/b", b"x" * (100 - size))
        assert len(client.messages()) == 1
        client.publish("a/b", b"x" * (101 - size))
        assert client.closed


def test_a_packet_in_a_run_larger_than_the_limit_ends_the_connection() -> None:
    core = Core(Limits(max_packet_size=100))
    client = core.connect("c")
    client.subscribe("a/#")
    client.send(Publish(b"a/b", b"x"), Publish(b"a/b", b"y"), Publish(b"a/b", b"x" * 200))
    packets = client.received()
    assert [packet.payload for packet in packets if isinstance(packet, Publish)] == [b"x", b"y"]
    assert isinstance(packets[-1], Disconnect)
    assert packets[-1].reason == Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize("version", [V5, V311])
def test_a_packet_larger_than_the_limit_among_sizes_that_alternate_ends_the_connection(version: int) -> None:
    core = Core(Limits(max_packet_size=100))
    reader = core.connect("reader")
    reader.subscribe("a/#")
    client = core.connect("c", version)
    client.send(*(Publish(b"a/b", b"x" * size) for size in (1, 2, 3, 200, 4)))
    assert client.closed
    assert [len(payload) for payload in reader.payloads()] == [1, 2, 3]


def test_a_client_may_publish_by_topic_alias(core: Core) -> None:
    """3.3.2.3.4"""
    reader = core.connect("reader")
    reader.subscribe("#")
    writer = core.connect("writer")
    assert writer.connack is not None
    assert writer.connack.properties["topic_alias_maximum"] == 64
    writer.publish("a", b"1", topic_alias=64)
    writer.publish("", b"2", topic_alias=64)
    writer.publish("b", b"3", topic_alias=64)
    writer.publish("", b"4", topic_alias=64)
    writer.publish("", b"5", qos=1, topic_alias=64)
    assert [(m.topic, m.payload, m.properties) for m in reader.messages()] == [
        (b"a", b"1", {}),
        (b"a", b"2", {}),
        (b"b", b"3", {}),
        (b"b", b"4", {}),
        (b"b", b"5", {}),
    ]


def test_topic_aliases_end_with_the_connection(core: Core) -> None:
    """[MQTT-3.3.2-7]"""
    writer = core.connect("writer", session_expiry=100)
    writer.publish("a", b"1", topic_alias=1)
    writer.drop()
    writer = core.connect("writer", clean_start=False)
    writer.publish("", b"2", topic_alias=1)
    assert writer.only(Disconnect).reason == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("alias", [11, 65_535])
def test_a_topic_alias_above_the_maximum_is_refused(alias: int) -> None:
    """[MQTT-3.3.2-9]"""
    core = Core(options=MqttOptions(topic_alias_maximum=10))
    writer = core.connect("writer")
    writer.publish("a", b"1", topic_alias=alias)
    assert writer.only(Disconnect).reason == Reason.TOPIC_ALIAS_INVALID


def test_the_broker_uses_topic_aliases_if_the_client_allows_them(core: Core) -> None:
    """[MQTT-3.3.2-11], [MQTT-3.3.2-12]"""
    reader = core.connect("reader", topic_alias_maximum=2)
    reader.subscribe("#", qos=1)
    writer = core.connect("writer")
    for topic in ("a", "b", "c", "a", "b", "c"):
        writer.publish(topic, b"x", qos=1)
    assert [(m.topic, m.properties.get("topic_alias")) for m in reader.messages()] == [
        (b"a", 1),
        (b"b", 2),
        (b"c", None),
        (b"", 1),
        (b"", 2),
        (b"c", None),
    ]


@pytest.mark.parametrize("maximum", [None, 0])
def test_the_broker_uses_no_topic_aliases_unless_allowed(core: Core, maximum: int | None) -> None:
    reader = core.connect("reader", **({} if maximum is None else {"topic_alias_maximum": maximum}))
    reader.subscribe("#")
    writer = core.connect("writer")
    writer.publish("a", b"x")
    writer.publish("a", b"x")
    assert reader.messages() == [Publish(b"a", b"x")] * 2


def test_all_properties_of_a_message_are_forwarded(core: Core) -> None:
    """[MQTT-3.3.2-4], [MQTT-3.3.2-15] to [MQTT-3.3.2-20]"""
    properties: dict[str, Any] = {
        "payload_format": 1,
        "message_expiry": 60,
        "content_type": "text/plain",
        "response_topic": "r",
        "correlation_data": b"\0\1",
        "user_property": [("k", "1"), ("k", "2"), ("a", "3")],
    }
    plain, aliases, low = (
        core.connect("plain"),
        core.connect("aliases", topic_alias_maximum=5),
        core.connect("low"),
    )
    plain.subscribe("a", qos=1, subscription_identifier=3)
    aliases.subscribe("a", qos=1)
    low.subscribe("a", qos=0)
    core.connect("writer").publish("a", b"x", qos=1, **properties)
    assert plain.only(Publish).properties == {**properties, "subscription_identifier": [3]}
    assert aliases.only(Publish).properties == {**properties, "topic_alias": 1}
    assert low.only(Publish).properties == properties


def test_a_3_1_1_subscriber_gets_a_5_0_message_without_properties(core: Core) -> None:
    reader = core.connect("reader", V311)
    reader.subscribe("a", qos=1)
    core.connect("writer").publish("a", b"x", content_type="x", message_expiry=5)
    assert reader.only(Publish) == Publish(b"a", b"x")


def test_suback_lists_reasons_in_the_order_of_the_filters(core: Core) -> None:
    """[MQTT-3.8.4-6]"""
    client = core.connect("c")
    assert client.subscribe(Wish(b"a", 2), Wish(b"b", 0), Wish(b"c", 1)) == [2, 0, 1]


def test_suback_precedes_retained_messages(core: Core) -> None:
    client = core.connect("c")
    client.publish("a", b"x", retain=True)
    client.send(b"\x82\x07\x00\x05\x00\x00\x01a\x00")
    first, second = client.received()
    assert getattr(first, "type", None) == fields.SUBACK
    assert isinstance(second, Publish)
