"""Subscriptions: options, overlaps, identifiers, limits and UNSUBSCRIBE (3.8, 3.10)."""

from __future__ import annotations

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt.packets import Disconnect, Publish, WillMessage
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V311, Core


def test_no_local_excludes_the_clients_own_messages(core: Core) -> None:
    """[MQTT-3.8.3-3]"""
    client, other = core.connect("c"), core.connect("other")
    client.subscribe("a", no_local=True)
    other.subscribe("a", no_local=True)
    client.publish("a", b"x")
    assert client.received() == []
    assert other.payloads() == [b"x"]


def test_no_local_applies_to_its_subscription_only(core: Core) -> None:
    client = core.connect("c")
    client.subscribe("a/#", qos=2, no_local=True, subscription_identifier=1)
    client.subscribe("a/b", qos=1, subscription_identifier=2)
    client.publish("a/b", b"mine", qos=2)
    (mine,) = client.messages()
    assert (mine.qos, mine.properties) == (1, {"subscription_identifier": [2]})
    core.connect("other").publish("a/b", b"yours", qos=2)
    (yours,) = client.messages()
    assert yours.qos == 2
    assert sorted(yours.properties["subscription_identifier"]) == [1, 2]


def test_no_local_applies_to_retained_messages_by_client_id(core: Core) -> None:
    """[MQTT-3.8.3-3]: "a connection with a ClientID equal to the ClientID of the publishing connection"."""
    client = core.connect("c")
    client.publish("a", b"x", retain=True)
    client.drop()
    client = core.connect("c")
    client.subscribe("a", no_local=True)
    assert client.received() == []


def test_overlapping_subscriptions_deliver_one_message_with_all_identifiers(core: Core) -> None:
    """[MQTT-3.3.4-2] to [MQTT-3.3.4-5]"""
    reader = core.connect("reader")
    reader.subscribe("a/#", qos=0, subscription_identifier=1)
    reader.subscribe("a/+", qos=2, subscription_identifier=200)
    reader.subscribe("a/b", qos=1)
    core.connect("writer").publish("a/b", b"x", qos=2)
    message = reader.only(Publish)
    assert message.qos == 2
    assert sorted(message.properties["subscription_identifier"]) == [1, 200]


def test_subscribing_again_replaces_the_subscription(core: Core) -> None:
    """[MQTT-3.8.4-3]"""
    reader = core.connect("reader")
    reader.subscribe("a", qos=2, subscription_identifier=1)
    reader.subscribe("a", qos=0)
    core.connect("writer").publish("a", b"x", qos=2)
    assert reader.only(Publish) == Publish(b"a", b"x")
    assert core.broker.subscriptions.count == 1


def test_unsubscribe_ends_delivery_and_reports_missing_subscriptions(core: Core) -> None:
    """[MQTT-3.10.4-1] to [MQTT-3.10.4-5]"""
    reader = core.connect("reader")
    reader.subscribe("a", "b")
    assert reader.unsubscribe("a", "c", "b/#/x") == [
        Reason.SUCCESS,
        Reason.NO_SUBSCRIPTION_EXISTED,
        Reason.TOPIC_FILTER_INVALID,
    ]
    writer = core.connect("writer")
    writer.publish("a", b"x")
    writer.publish("b", b"y")
    assert reader.payloads() == [b"y"]


def test_an_invalid_filter_is_refused_and_the_others_are_granted(core: Core) -> None:
    reader = core.connect("reader")
    assert reader.subscribe("a/#/b", "ok", "", "$share/g", qos=1) == [0x8F, 1, 0x8F, 0x8F]
    old = core.connect("old", V311)
    assert old.subscribe("a/#/b", "ok", qos=1) == [0x80, 1]


def test_subscriptions_are_limited() -> None:
    core = Core(Limits(max_subscriptions_per_client=2))
    reader = core.connect("reader")
    assert reader.subscribe("a", "b", "c", "a") == [0, 0, Reason.QUOTA_EXCEEDED, 0]
    reader.unsubscribe("a")
    assert reader.subscribe("c") == [0]
    assert core.connect("old", V311).subscribe("a", "b", "c") == [0, 0, 0x80]
    assert reader.subscribe("b", qos=1) == [1], "a subscription may be replaced"
    core.connect("writer").publish("b", b"still there")
    assert reader.payloads() == [b"still there"]


def test_topic_levels_are_limited() -> None:
    core = Core(Limits(max_topic_levels=3))
    client = core.connect("c")
    assert client.subscribe("a/b/c", "a/b/c/d", "$share/g/a/b/c") == [0, Reason.TOPIC_FILTER_INVALID, 0]
    client.publish("a/b/c", b"x")
    assert client.payloads() != []
    client.publish("a/b/c/d", b"x")
    assert client.only(Disconnect).reason == Reason.TOPIC_NAME_INVALID
    assert core.wire().connect("w", will=WillMessage(b"a/b/c/d", b"")).reason == Reason.TOPIC_NAME_INVALID
