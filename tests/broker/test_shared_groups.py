"""Shared subscriptions: each message goes to one member of the group (4.8.2)."""

from __future__ import annotations

import pytest

from pyrite.protocols.mqtt.packets import Publish
from tests.support.core import Client, Core


def group(core: Core, count: int, qos: int = 1, **wishes: int) -> list[Client]:
    members = []
    for number in range(count):
        member = core.connect(f"member{number}", **wishes)
        member.subscribe("$share/g/a/#", qos=qos)
        members.append(member)
    return members


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_and_every_member_gets_some(
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


def test_a_disconnected_member_gets_nothing_while_others_are_connected(core: Core) -> None:
    members = group(core, 2, session_expiry=100)
    members[0].drop()
    writer = core.connect("writer")
    for number in range(4):
        writer.publish("a/b", b"%d" % number, qos=1)
    assert len(members[1].finish()) == 4
    assert core.connect("member0", clean_start=False).messages() == []


def test_messages_wait_for_a_group_without_connected_members(core: Core) -> None:
    for member in group(core, 2, session_expiry=100):
        member.drop()
    core.connect("writer").publish("a/b", b"x", qos=1)
    arrived: list[bytes] = []
    for number in range(2):
        arrived += core.connect(f"member{number}", clean_start=False, session_expiry=100).payloads()
    assert arrived == [b"x"]


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_messages_of_a_leaving_member_go_to_another(
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


def test_an_expired_message_does_not_go_to_another_member(core: Core) -> None:
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


def test_a_shared_and_an_ordinary_subscription_are_independent(core: Core) -> None:
    reader = core.connect("reader")
    reader.subscribe("a/b", "$share/g/a/b")
    core.connect("writer").publish("a/b", b"x")
    assert reader.payloads() == [b"x", b"x"]


def test_a_shared_subscription_gets_no_retained_messages(core: Core) -> None:
    core.connect("writer").publish("a", b"x", retain=True)
    reader = core.connect("reader")
    reader.subscribe("$share/g/a")
    assert reader.received() == []


def test_every_group_gets_its_own_copy(core: Core) -> None:
    first, second = core.connect("first"), core.connect("second")
    first.subscribe("$share/g/a")
    second.subscribe("$share/h/a")
    core.connect("writer").publish("a", b"x")
    assert first.payloads() == second.payloads() == [b"x"]
    assert core.broker.subscriptions.shared_count == 2
