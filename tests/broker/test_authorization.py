"""Authorization: which topics a client may publish to, subscribe to and name in its will."""

from __future__ import annotations

from itertools import count

import pytest

from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import Ack, Publish, WillMessage
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.access import Guard, answer, let_in
from tests.support.core import V5, V311, Core


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def core(guard: Guard) -> Core:
    return Core(access=guard)


def test_publishing_without_permission_is_refused(core: Core) -> None:
    reader = core.connect("reader")
    reader.subscribe("#")
    for version in (V5, V311):
        client = core.connect("c", version)
        client.publish("closed/x", b"x", qos=0, retain=True)
        assert client.received() == []
        client.publish("closed/x", b"x", qos=1, packet_id=1)
        assert client.only(Ack).reason == (0x87 if version == V5 else 0)
        client.publish("closed/x", b"x", qos=2, packet_id=2)
        ack = client.only(Ack)
        assert (ack.type, ack.reason) == (fields.PUBREC, 0x87 if version == V5 else 0)
        client.publish("open", b"y")
        assert not client.closed
    assert core.broker.figures.messages_dropped == 6, "QoS 0 and 3.1.1 cannot be told, but are counted"
    assert reader.payloads() == [b"y", b"y"]
    assert len(core.broker.retained) == 0


def test_a_withdrawn_permission_applies_to_the_next_message(core: Core, guard: Guard) -> None:
    client = core.connect("c")
    for closed, reason in (("closed", 0x10), ("a", 0x87), ("closed", 0x10)):
        guard.closed = closed
        client.publish("a", b"x", qos=1)
        assert client.only(Ack).reason == reason


def test_a_topic_alias_does_not_bypass_authorization(core: Core) -> None:
    client = core.connect("c")
    client.publish("closed/x", b"x", qos=1, packet_id=1, topic_alias=1)
    assert client.only(Ack).reason == 0x87
    client.publish("", b"x", qos=1, packet_id=1, topic_alias=1)
    assert client.only(Ack).reason == 0x87


def test_the_packet_id_of_a_refused_qos_2_message_is_free_again(core: Core) -> None:
    """4.3.3: a PUBREC with a failure code ends the exchange."""
    reader = core.connect("reader")
    reader.subscribe("#")
    client = core.connect("c")
    client.publish("closed/x", b"x", qos=2, packet_id=1)
    client.publish("open", b"y", qos=2, packet_id=1)
    assert reader.payloads() == [b"y"]


def test_reauthentication_as_another_user_applies_that_users_permissions(core: Core) -> None:
    client, publisher = let_in(core), core.connect("publisher")
    assert client.subscribe("caller 1", "open") == [0, 0]
    client.send(answer(b"hello", 0x19), answer(b"2"))
    client.received()
    publisher.publish("caller 1", b"x")
    publisher.publish("open", b"y")
    assert client.payloads() == [b"y"]


def test_delivery_of_retained_messages_ends_when_permission_is_withdrawn(guard: Guard) -> None:
    core = Core(access=guard, clock=count().__next__)  # every look at the clock ends a turn
    core.connect("publisher").send(*(Publish(b"a/%d" % n, b"x", retain=True) for n in range(1_000)))
    while core.broker.turns.has_work:
        core.broker.turns.take()
    client = core.connect("c")
    client.subscribe("a/#")
    assert len(client.payloads()) < 100
    guard.closed_to_readers = "a"
    session = core.broker.sessions.by_id["c"]
    core.broker.subscribing.prune_at_once(session, client.connection.credentials)
    for _ in range(100):
        core.broker.turns.take()
    core.flush()
    assert client.payloads() == []


def test_subscribing_without_permission_is_refused(core: Core) -> None:
    client = core.connect("c")
    assert client.subscribe("closed/#", "open", "$share/g/closed/#") == [0x87, 0, 0x87]
    assert core.connect("old", V311).subscribe("closed/#", "open") == [0x80, 0]


def test_a_will_on_a_topic_without_permission_is_refused(core: Core) -> None:
    assert core.wire().connect("c", will=WillMessage(b"closed/x", b"")).reason == 0x87
    assert core.wire(V311).connect("c", will=WillMessage(b"closed/x", b"")).reason == 5
    assert core.broker.sessions.by_id == {}


def test_permissions_belong_to_the_authenticated_user_name(core: Core, guard: Guard) -> None:
    client = let_in(core)
    client.publish("a", b"x")
    assert guard.published_by[-1] == "caller 1"
    client.send(answer(b"hello", 0x19), answer(b"2"))
    client.publish("a", b"x")
    client.publish("b", b"x")
    assert guard.published_by[-1] == "caller 2", "after it has authenticated again"


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$SYS/x"])
def test_publishing_to_sys_topics_is_refused(topic: str) -> None:
    core = Core()
    reader = core.connect("reader")
    reader.subscribe("$SYS/#")
    client = core.connect("c")
    client.publish(topic, b"x", qos=1)
    assert client.only(Ack).reason == Reason.NOT_AUTHORIZED
    assert reader.received() == []
    assert core.wire().connect("d", will=WillMessage(topic.encode(), b"")).reason == Reason.NOT_AUTHORIZED
