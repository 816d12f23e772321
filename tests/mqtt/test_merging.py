"""Packets of many connections that are merged into one batch have the same effect as one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker.access import Access, Credentials
from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import V5, V311, Ack, Disconnect, Publish, WillMessage, Wish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import Client, Core, no_internal_errors


def feed(client: Client, topic: str, payload: bytes, qos: int = 1, **properties: Any) -> None:
    """Send a message, and leave it to the next flush to publish it."""
    packet_id = client.packet_id() if qos else 0
    packet = Publish(topic.encode(), payload, qos, packet_id=packet_id, properties=properties)
    client.feed(client.encoded(packet))


def publishers(core: Core, count: int, version: int = V5) -> list[Client]:
    for number in range(count):  # packets on a topic that has a route can be merged
        core.broker.subscriptions.route(b"t/%d" % number)
    return [core.connect(f"publisher{number}", version) for number in range(count)]


def merged(core: Core, count: int, qos: int = 1, version: int = V5) -> list[Client]:
    """Have so many clients each send one message, all of which are merged."""
    clients = publishers(core, count, version)
    for number, client in enumerate(clients):
        feed(client, f"t/{number}", b"%d" % number, qos)
    assert not core.merger.is_empty
    return clients


def test_messages_of_many_publishers_reach_a_subscriber_in_one_piece_and_in_order() -> None:
    core = Core()
    subscriber = core.connect("subscriber", V311)
    subscriber.subscribe("t/+", qos=1)
    clients = merged(core, 40, version=V311)
    core.flush()
    messages = subscriber.finish()
    assert [one.payload for one in messages] == [b"%d" % number for number in range(40)]
    assert [one.topic for one in messages] == [b"t/%d" % number for number in range(40)]
    assert len({one.packet_id for one in messages}) == 40
    for client in clients:
        assert client.received() == [Ack(fields.PUBACK, 1, 0)]


def test_publishers_of_mqtt_5_are_told_that_no_one_subscribes() -> None:
    core = Core()
    clients = merged(core, 3)
    core.flush()
    for client in clients:
        assert client.received() == [Ack(fields.PUBACK, 1, Reason.NO_MATCHING_SUBSCRIBERS)]


def test_a_client_that_left_is_not_acknowledged_and_the_others_are() -> None:
    core = Core()
    clients = merged(core, 3)
    again = core.connect("publisher1")
    core.flush()
    assert [type(one) for one in clients[0].received()] == [Ack]
    assert [type(one) for one in clients[2].received()] == [Ack]
    assert again.received() == []


def test_no_local_keeps_the_subscribers_own_message_from_it() -> None:
    core = Core()
    clients = publishers(core, 3)
    clients[1].subscribe(Wish(b"t/+", 1, no_local=True))
    for number, client in enumerate(clients):
        feed(client, f"t/{number}", b"%d" % number)
    core.flush()
    assert clients[1].payloads() == [b"0", b"2"]


def test_one_read_with_topics_of_two_routes_is_acknowledged_in_order() -> None:
    core = Core()
    core.connect("reader").subscribe("a", qos=1)
    client = core.connect("publisher")
    for topic in (b"a", b"b"):
        core.broker.subscriptions.route(topic)
    client.feed(
        client.encoded(*[Publish(t, b"", 1, packet_id=n) for n, t in enumerate([b"a", b"b", b"a"], 1)])
    )
    core.flush()
    assert [one.packet_id for one in client.received() if isinstance(one, Ack)] == [1, 2, 3]


def test_a_packet_id_of_0_ends_the_connection_that_sent_it() -> None:
    core = Core()
    clients = publishers(core, 2)
    feed(clients[0], "t/0", b"")
    clients[1].feed(b"\x32\x08\x00\x03t/1\x00\x00\x00")
    core.flush()
    assert clients[1].closed
    assert not clients[0].closed
    assert [type(one) for one in clients[0].received()] == [Ack]


def test_messages_to_thousands_of_subscribers_are_not_merged() -> None:
    core = Core()
    readers = [core.connect(f"reader{number}") for number in range(2_000)]
    for reader in readers:
        reader.subscribe("t/0", qos=1)
    with no_internal_errors():
        for client in publishers(core, 2):
            feed(client, "t/0", b"x")
        core.flush()
        while core.broker.turns.has_work:
            core.broker.turns.take()
            core.flush()
    assert all(reader.payloads() == [b"x", b"x"] for reader in readers)


def test_a_packet_that_is_too_large_ends_the_connection_that_sent_it() -> None:
    core = Core(Limits(max_packet_size=100))
    clients = publishers(core, 2)
    feed(clients[0], "t/0", b"x" * 50)
    feed(clients[1], "t/0", b"x" * 100)
    core.flush()
    (disconnect,) = [one for one in clients[1].received() if isinstance(one, Disconnect)]
    assert disconnect.reason == Reason.PACKET_TOO_LARGE
    assert not clients[0].closed


def test_a_will_comes_after_the_messages_that_were_merged() -> None:
    core = Core()
    subscriber = core.connect("subscriber")
    subscriber.subscribe("t/+")
    clients = publishers(core, 2)
    last = core.wire(V5)
    last.connect("publisher2", will=WillMessage(b"t/0", b"will"))
    feed(last, "t/0", b"message", 0)
    feed(clients[0], "t/1", b"other", 0)
    last.feed(last.encoded(Disconnect(Reason.DISCONNECT_WITH_WILL, {})))
    core.flush()
    assert [one.payload for one in subscriber.messages() if one.topic == b"t/0"] == [b"message", b"will"]


def test_a_will_comes_after_messages_if_the_session_is_taken_over_in_the_same_wake_up() -> None:
    core = Core()
    subscriber = core.connect("subscriber")
    subscriber.subscribe("t/+")
    publishers(core, 1)
    last = core.wire(V5)
    last.connect("publisher2", will=WillMessage(b"t/0", b"will"))
    feed(last, "t/0", b"message", 0)
    core.wire(V5).connect("publisher2")
    core.flush()
    assert subscriber.payloads() == [b"message", b"will"]


def test_packets_of_one_client_with_other_first_bytes_stay_in_order() -> None:
    core = Core()
    subscriber = core.connect("subscriber")
    subscriber.subscribe("t/0")
    client = publishers(core, 1)[0]
    for number, qos in enumerate([0, 1, 0, 2, 1, 0]):
        feed(client, "t/0", b"%d" % number, qos)
    core.flush()
    assert [packet.packet_id for packet in client.received() if isinstance(packet, Ack)] == [1, 2, 3]
    assert subscriber.payloads() == [b"0", b"1", b"2", b"3", b"4", b"5"]


class Denies(Access):
    """Allows no one to publish."""

    checks_topics = True

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        return False


def test_a_message_that_the_rules_forbid_is_not_merged() -> None:
    core = Core(access=Denies())
    clients = publishers(core, 2)
    feed(clients[0], "t/0", b"")
    assert core.merger.is_empty


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_merged_packets_have_the_same_effect_as_one_by_one(data: st.DataObject) -> None:
    versions = data.draw(st.lists(st.sampled_from([V5, V311]), min_size=2, max_size=4))
    wishes = st.builds(
        Wish,
        st.sampled_from([b"#", b"a/+", b"a/b", b"c"]),
        st.integers(0, 2),
        st.booleans(),
    )
    readers = data.draw(st.lists(wishes, min_size=1, max_size=3))
    own = data.draw(st.none() | wishes)
    traffic = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, len(versions) - 1),
                st.sampled_from(["a/b", "a/c", "c", "d"]),
                st.sampled_from([0, 0, 1, 1, 1, 2]),
                st.sampled_from([0, 3, 150]),
                st.sampled_from([False, False, False, True]),
            ),
            max_size=30,
        )
    )

    def effects(together: bool) -> list[Any]:
        core = Core()
        subscribers = [core.connect(f"reader{number}") for number in range(len(readers))]
        for subscriber, wish in zip(subscribers, readers, strict=True):
            subscriber.subscribe(wish)
        clients = [core.connect(f"publisher{number}", version) for number, version in enumerate(versions)]
        if own is not None and clients[0].version == V5:
            clients[0].subscribe(own)
        for topic in ("a/b", "a/c", "c", "d"):
            core.broker.subscriptions.route(topic.encode())
        for number, (place, topic, qos, size, retain) in enumerate(traffic):
            client = clients[place]
            packet_id = client.packet_id() if qos else 0
            payload = b"%d %03d" % (place, number) + b"." * size
            client.feed(client.encoded(Publish(topic.encode(), payload, qos, retain, packet_id=packet_id)))
            if not together:
                core.flush()
        core.flush()
        seen: list[Any] = []
        for client in [*subscribers, *clients]:
            messages: dict[tuple[bytes, bytes, int], list[bytes]] = {}
            answers: list[tuple[int, int, int]] = []
            for packet in client.received():
                if isinstance(packet, Publish):
                    flow = packet.topic, packet.payload[:1], packet.qos
                    messages.setdefault(flow, []).append(packet.payload)
                elif isinstance(packet, Ack):
                    answers.append((packet.type, packet.packet_id, packet.reason))
            seen.append((messages, answers))
        figures = core.broker.figures
        seen.append((figures.publish_received, figures.publish_bytes_received, figures.bytes_received))
        seen.append({topic: batch.payload() for topic, batch in core.broker.retained.values.items()})
        return seen

    assert effects(together=True) == effects(together=False)


@pytest.mark.parametrize("size", [1, 3_000], ids=["merged", "mixed"])
@pytest.mark.parametrize("topic", ["$SYS/x", "$pyrite/consumers/c/create"])
def test_a_topic_of_the_broker_takes_no_part_in_a_batch_of_others(topic: str, size: int) -> None:
    """All have the same route: that to no subscriber."""
    core = Core()
    names = ["a", topic, "b"]
    routes = {core.broker.subscriptions.route(name.encode()) for name in names}
    assert len(routes) == 1
    client = core.connect("publisher")
    packets = [Publish(name.encode(), b"x" * size, 1, packet_id=1 + at) for at, name in enumerate(names)]
    client.feed(client.encoded(*packets))
    core.flush()
    reasons = {one.packet_id: one.reason for one in client.received() if isinstance(one, Ack)}
    expected = Reason.NOT_AUTHORIZED if topic == "$SYS/x" else Reason.SUCCESS
    assert reasons == {1: Reason.NO_MATCHING_SUBSCRIBERS, 2: expected, 3: Reason.NO_MATCHING_SUBSCRIBERS}
