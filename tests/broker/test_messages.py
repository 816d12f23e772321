"""Retained messages, subscription options, shared subscriptions and topic aliases (3.3, 3.8, 4.7, 4.8)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.protocols.mqtt.packets import Ack, Disconnect, Publish, Wish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V5, V311, Client, Core

# Retained messages


def test_a_new_subscriber_gets_what_was_retained(core: Core) -> None:
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


def test_an_empty_message_removes_what_was_retained(core: Core) -> None:
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


def test_retained_messages_of_topics_with_a_dollar_in_a_lower_level_are_found(core: Core) -> None:
    """[MQTT-4.7.2-1] is about topics that begin with $."""
    core.connect("writer").publish("a/$b", b"x", retain=True)
    reader = core.connect("reader")
    reader.subscribe("#")
    assert reader.payloads() == [b"x"]


def test_a_subscriber_to_everything_gets_topics_with_a_dollar_in_a_lower_level(core: Core) -> None:
    writer = core.connect("writer")
    writer.publish("a/$b", b"before")
    reader = core.connect("reader")
    reader.subscribe("#")
    writer.publish("a/$b", b"after")
    assert reader.payloads() == [b"after"]


@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling_says_when_retained_messages_are_sent(
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


def test_no_more_retained_messages_than_the_limit() -> None:
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


def test_a_message_is_acknowledged_by_what_is_true_now_not_by_what_was_true_of_the_last_one() -> None:
    """The way in remembers how the last packet looked; what else happens in between counts all the same."""
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


def test_retained_messages_do_not_grow_with_those_who_ask_for_them(core: Core) -> None:
    """Each asks with another identifier, so that each gets bytes of their own."""
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


# Subscriptions


def test_no_local_keeps_a_client_from_its_own_messages(core: Core) -> None:
    """[MQTT-3.8.3-3]"""
    client, other = core.connect("c"), core.connect("other")
    client.subscribe("a", no_local=True)
    other.subscribe("a", no_local=True)
    client.publish("a", b"x")
    assert client.received() == []
    assert other.payloads() == [b"x"]


def test_no_local_holds_for_its_own_subscription_only(core: Core) -> None:
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


def test_no_local_goes_by_the_client_id_also_for_retained_messages(core: Core) -> None:
    """[MQTT-3.8.3-3]: "a connection with a ClientID equal to the ClientID of the publishing connection"."""
    client = core.connect("c")
    client.publish("a", b"x", retain=True)
    client.drop()
    client = core.connect("c")
    client.subscribe("a", no_local=True)
    assert client.received() == []


def test_overlapping_subscriptions_give_one_message_with_all_identifiers(core: Core) -> None:
    """[MQTT-3.3.4-2] to [MQTT-3.3.4-5]"""
    reader = core.connect("reader")
    reader.subscribe("a/#", qos=0, subscription_identifier=1)
    reader.subscribe("a/+", qos=2, subscription_identifier=200)
    reader.subscribe("a/b", qos=1)
    core.connect("writer").publish("a/b", b"x", qos=2)
    message = reader.only(Publish)
    assert message.qos == 2
    assert sorted(message.properties["subscription_identifier"]) == [1, 200]


def test_a_subscription_that_is_made_again_replaces_the_first(core: Core) -> None:
    """[MQTT-3.8.4-3]"""
    reader = core.connect("reader")
    reader.subscribe("a", qos=2, subscription_identifier=1)
    reader.subscribe("a", qos=0)
    core.connect("writer").publish("a", b"x", qos=2)
    assert reader.only(Publish) == Publish(b"a", b"x")
    assert core.broker.subscriptions.count == 1


def test_unsubscribing_ends_deliveries_and_says_whether_there_was_a_subscription(core: Core) -> None:
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


def test_a_wrong_filter_is_refused_and_the_others_are_granted(core: Core) -> None:
    reader = core.connect("reader")
    assert reader.subscribe("a/#/b", "ok", "", "$share/g", qos=1) == [0x8F, 1, 0x8F, 0x8F]
    old = core.connect("old", V311)
    assert old.subscribe("a/#/b", "ok", qos=1) == [0x80, 1]


def test_no_more_subscriptions_than_the_limit() -> None:
    core = Core(Limits(max_subscriptions_per_client=2))
    reader = core.connect("reader")
    assert reader.subscribe("a", "b", "c", "a") == [0, 0, Reason.QUOTA_EXCEEDED, 0]
    reader.unsubscribe("a")
    assert reader.subscribe("c") == [0]
    assert core.connect("old", V311).subscribe("a", "b", "c") == [0, 0, 0x80]


def test_no_more_levels_than_the_limit() -> None:
    core = Core(Limits(max_topic_levels=3))
    client = core.connect("c")
    assert client.subscribe("a/b/c", "a/b/c/d", "$share/g/a/b/c") == [0, Reason.TOPIC_FILTER_INVALID, 0]
    client.publish("a/b/c", b"x")
    assert client.payloads() != []
    client.publish("a/b/c/d", b"x")
    assert client.only(Disconnect).reason == Reason.TOPIC_NAME_INVALID


def test_no_packet_is_larger_than_the_limit() -> None:
    core = Core(Limits(max_packet_size=100))
    for version in (V5, V311):
        client = core.connect("c", version)
        client.subscribe("a/#")
        size = len(client.encoded(Publish(b"a/b", b"")))
        client.publish("a/b", b"x" * (100 - size))
        assert len(client.messages()) == 1
        client.publish("a/b", b"x" * (101 - size))
        assert client.closed


def test_no_packet_in_a_run_is_larger_than_the_limit() -> None:
    core = Core(Limits(max_packet_size=100))
    client = core.connect("c")
    client.subscribe("a/#")
    client.send(Publish(b"a/b", b"x"), Publish(b"a/b", b"y"), Publish(b"a/b", b"x" * 200))
    packets = client.received()
    assert [packet.payload for packet in packets if isinstance(packet, Publish)] == [b"x", b"y"]
    assert isinstance(packets[-1], Disconnect)
    assert packets[-1].reason == Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize("version", [V5, V311])
def test_no_packet_in_a_run_of_alternating_sizes_is_larger_than_the_limit(version: int) -> None:
    core = Core(Limits(max_packet_size=100))
    reader = core.connect("reader")
    reader.subscribe("a/#")
    client = core.connect("c", version)
    client.send(*(Publish(b"a/b", b"x" * size) for size in (1, 2, 3, 200, 4)))
    assert client.closed
    assert [len(payload) for payload in reader.payloads()] == [1, 2, 3]


# Shared subscriptions


def group(core: Core, count: int, qos: int = 1, **wishes: int) -> list[Client]:
    members = []
    for number in range(count):
        member = core.connect(f"member{number}", **wishes)
        member.subscribe("$share/g/a/#", qos=qos)
        members.append(member)
    return members


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_and_all_get_their_share(
    core: Core, qos: int, together: bool
) -> None:
    """[MQTT-4.8.2-4]"""
    members = group(core, 3, qos)
    writer = core.connect("writer")
    packets = [Publish(b"a/b", b"%02d" % n, qos, packet_id=n + 1 if qos else 0) for n in range(30)]
    if together:
        writer.send(*packets)
    else:
        for packet in packets:
            writer.send(packet)
    shares = [member.payloads() for member in members]
    assert sorted(payload for share in shares for payload in share) == [b"%02d" % n for n in range(30)]
    assert [len(share) for share in shares] == [10, 10, 10]
    assert all(share == sorted(share) for share in shares)


def test_a_member_that_is_away_gets_nothing_while_others_are_here(core: Core) -> None:
    members = group(core, 2, session_expiry=100)
    members[0].drop()
    writer = core.connect("writer")
    for number in range(4):
        writer.publish("a/b", b"%d" % number, qos=1)
    assert len(members[1].finish()) == 4
    assert core.connect("member0", clean_start=False).messages() == []


def test_messages_wait_for_a_group_that_is_all_away(core: Core) -> None:
    for member in group(core, 2, session_expiry=100):
        member.drop()
    core.connect("writer").publish("a/b", b"x", qos=1)
    arrived: list[bytes] = []
    for number in range(2):
        arrived += core.connect(f"member{number}", clean_start=False, session_expiry=100).payloads()
    assert arrived == [b"x"]


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_messages_of_a_member_that_leaves_go_to_another(
    core: Core, lasting: bool, qos: int
) -> None:
    """[MQTT-4.8.2-5]: with QoS 2 the server waits for the client if its session lasts."""
    members = group(core, 2, qos, receive_maximum=2, session_expiry=100 if lasting else 0)
    writer = core.connect("writer")
    for number in range(10):
        writer.publish("a/b", b"%d" % number, qos=qos)
    left = members[0].payloads()
    assert len(left) == 2
    members[0].drop()
    got: list[bytes] = []
    while messages := members[1].finish():
        got += [message.payload for message in messages]
    if qos == 1:
        assert sorted(got) == [b"%d" % number for number in range(10)]
    elif lasting:
        assert sorted(got + left) == [b"%d" % number for number in range(10)]
        again = core.connect("member0", clean_start=False, session_expiry=100)
        assert again.payloads() == left
    else:
        assert set(got).isdisjoint(left), "another may not have what was sent with QoS 2"
        assert sorted(got + left) == [b"%d" % number for number in range(10)]


def test_a_message_that_has_expired_is_not_handed_over(core: Core) -> None:
    """[MQTT-3.3.2-5]"""
    members = group(core, 1, receive_maximum=1)
    writer = core.connect("writer")
    writer.publish("a/b", b"first", qos=1)
    writer.publish("a/b", b"second", qos=1, message_expiry=10)
    core.tick(20)
    other = core.connect("other")
    other.subscribe("$share/g/a/#", qos=1)
    members[0].drop()
    assert other.payloads() == [b"first"]


def test_a_shared_and_another_subscription_of_one_client_are_two(core: Core) -> None:
    reader = core.connect("reader")
    reader.subscribe("a/b", "$share/g/a/b")
    core.connect("writer").publish("a/b", b"x")
    assert reader.payloads() == [b"x", b"x"]


def test_a_shared_subscription_gets_no_retained_messages(core: Core) -> None:
    core.connect("writer").publish("a", b"x", retain=True)
    reader = core.connect("reader")
    reader.subscribe("$share/g/a")
    assert reader.received() == []


def test_groups_of_other_names_get_their_own_copies(core: Core) -> None:
    first, second = core.connect("first"), core.connect("second")
    first.subscribe("$share/g/a")
    second.subscribe("$share/h/a")
    core.connect("writer").publish("a", b"x")
    assert first.payloads() == second.payloads() == [b"x"]
    assert core.broker.subscriptions.shared_count == 2


# Topic aliases


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


def test_the_broker_uses_topic_aliases_towards_a_client_that_allows_them(core: Core) -> None:
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
def test_the_broker_uses_no_topic_aliases_towards_others(core: Core, maximum: int | None) -> None:
    reader = core.connect("reader", **({} if maximum is None else {"topic_alias_maximum": maximum}))
    reader.subscribe("#")
    writer = core.connect("writer")
    writer.publish("a", b"x")
    writer.publish("a", b"x")
    assert reader.messages() == [Publish(b"a", b"x")] * 2


# Properties


def test_all_properties_of_a_message_are_passed_on(core: Core) -> None:
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


def test_a_subscriber_of_3_1_1_gets_a_message_of_5_0_without_properties(core: Core) -> None:
    reader = core.connect("reader", V311)
    reader.subscribe("a", qos=1)
    core.connect("writer").publish("a", b"x", content_type="x", message_expiry=5)
    assert reader.only(Publish) == Publish(b"a", b"x")


def test_several_wishes_in_one_subscribe_are_answered_in_their_order(core: Core) -> None:
    """[MQTT-3.8.4-6]"""
    client = core.connect("c")
    assert client.subscribe(Wish(b"a", 2), Wish(b"b", 0), Wish(b"c", 1)) == [2, 0, 1]


def test_the_answer_to_a_packet_comes_before_what_it_causes(core: Core) -> None:
    client = core.connect("c")
    client.publish("a", b"x", retain=True)
    client.send(b"\x82\x07\x00\x05\x00\x00\x01a\x00")
    first, second = client.received()
    assert getattr(first, "type", None) == fields.SUBACK
    assert isinstance(second, Publish)
