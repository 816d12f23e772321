"""Messages of all nodes have one order, and reach the subscribers of every node."""

from __future__ import annotations

from typing import Any

import pytest

from pyrite.protocols.mqtt.packets import Ack, Disconnect, Publish
from tests.cluster.harness import cluster_of


def test_a_message_reaches_the_subscribers_of_every_node_at_the_same_offset() -> None:
    with cluster_of() as cluster:
        subscribers = [cluster[name].core.connect(f"subscriber-{name}") for name in "abc"]
        for one in subscribers:
            one.subscribe("t/#", qos=1)
        publisher = cluster["a"].core.connect("publisher")
        publisher.publish("t/1", b"zero", qos=0)
        publisher.publish("t/1", b"one", qos=1)
        cluster["b"].core.connect("other").publish("t/2", b"two", qos=2)
        for one in subscribers:
            assert one.payloads() == [b"zero", b"one", b"two"]
        cluster.check()
        assert [row["offset"] for row in cluster["c"].log("default")] == [0, 1, 2]


def test_a_message_is_acknowledged_when_the_order_has_it_and_this_node_has_written_it() -> None:
    with cluster_of() as cluster:
        publisher = cluster["a"].core.connect("publisher")
        cluster.is_automatic = False
        publisher.publish("t", b"x", qos=1)
        node = cluster["a"]
        assert node.order.take()
        node.core.flush()
        assert publisher.received() == []
        assert cluster["b"].order.step()
        assert cluster["b"].log("default") == []
        cluster["b"].core.flush()
        assert len(cluster["b"].log("default")) == 1
        assert publisher.received() == []
        assert node.order.step()
        node.core.flush()
        assert publisher.only(Ack).packet_id == 1


def test_a_retained_message_is_on_every_node() -> None:
    with cluster_of() as cluster:
        publisher = cluster["a"].core.connect("publisher")
        publisher.publish("k/1", b"old", retain=True)
        publisher.publish("k/1", b"new", qos=1, retain=True)
        publisher.publish("k/2", b"x", qos=1, retain=True)
        cluster["b"].core.connect("other").publish("k/2", b"", retain=True)
        subscriber = cluster["c"].core.connect("subscriber")
        subscriber.subscribe("k/#")
        assert subscriber.payloads() == [b"new"]
        cluster.check()
        assert [row[0] for row in cluster["c"].state()["retained"]] == [b"k/1"]


def test_topics_that_no_stream_captures_reach_all_nodes_too() -> None:
    from pyrite.storage.options import StreamOptions

    with cluster_of(streams=[StreamOptions("a", ["a/#"])]) as cluster:
        subscriber = cluster["b"].core.connect("subscriber")
        subscriber.subscribe("#", qos=1)
        publisher = cluster["a"].core.connect("publisher")
        publisher.publish("b", b"1", qos=1)
        publisher.publish("a/1", b"2", qos=1)
        assert subscriber.payloads() == [b"1", b"2"]
        assert [packet.packet_id for packet in publisher.received() if isinstance(packet, Ack)] == [1, 2]


def test_a_group_that_the_engine_lost_is_appended_again_with_those_after_it() -> None:
    with cluster_of() as cluster:
        node = cluster["a"]
        publisher = node.core.connect("publisher")
        subscriber = cluster["b"].core.connect("subscriber")
        subscriber.subscribe("t")
        cluster.is_automatic = False
        publisher.publish("t", b"1", qos=1)
        publisher.publish("t", b"2", qos=1)
        node.order.take(stored=False)
        node.order.take()
        cluster.is_automatic = True
        cluster.run()
        assert subscriber.payloads() == [b"1", b"2"]
        assert [packet.packet_id for packet in publisher.received() if isinstance(packet, Ack)] == [1, 2]
        cluster.check()


def test_a_group_that_the_engine_confirmed_and_lost_is_appended_again() -> None:
    with cluster_of() as cluster:
        node = cluster["a"]
        publisher = node.core.connect("publisher")
        other = cluster["b"].core.connect("other")
        cluster.is_automatic = False
        publisher.publish("t", b"1", qos=1)
        node.order.take(lies=True)
        cluster.is_automatic = True
        other.publish("t", b"2", qos=1)
        assert [row["payload"] for row in node.log("default")] == [b"2", b"1"]
        assert publisher.only(Ack).packet_id == 1
        cluster.check()


def test_a_group_that_the_engine_stored_twice_is_applied_once() -> None:
    with cluster_of() as cluster:
        node = cluster["a"]
        publisher = node.core.connect("publisher")
        cluster.is_automatic = False
        publisher.publish("t", b"1", qos=1)
        node.order.repeat()
        cluster.is_automatic = True
        cluster.run()
        assert len(cluster["b"].log("default")) == 1
        assert len(publisher.received()) == 1
        cluster.check()


def test_a_group_larger_than_the_engine_takes_is_split() -> None:
    with cluster_of(max_size=1_000) as cluster:
        payload = bytes(range(256)) * 20
        subscriber = cluster["b"].core.connect("subscriber")
        subscriber.subscribe("t")
        cluster["a"].core.connect("publisher").publish("t", payload, qos=1)
        assert subscriber.payloads() == [payload]
        cluster.check()


def test_many_topics_in_one_read_come_over_as_they_were() -> None:
    with cluster_of() as cluster:
        subscriber = cluster["b"].core.connect("subscriber")
        subscriber.subscribe("#", qos=1)
        publisher = cluster["a"].core.connect("publisher")
        packets = [
            Publish(b"t/%d" % (one % 7), b"%d" % one * (one + 1), 1, packet_id=one) for one in range(1, 60)
        ]
        publisher.send(*packets)
        expected = [(packet.topic, packet.payload) for packet in packets]
        assert [(one.topic, one.payload) for one in subscriber.messages()] == expected
        cluster.check()


def test_properties_come_over() -> None:
    with cluster_of() as cluster:
        subscriber = cluster["b"].core.connect("subscriber")
        subscriber.subscribe("t", qos=1)
        properties: dict[str, Any] = {
            "content_type": "x",
            "response_topic": "r",
            "correlation_data": b"\0\1",
            "message_expiry": 100,
            "user_property": [("a", "b"), ("a", "c")],
        }
        cluster["a"].core.connect("publisher").publish("t", b"1", qos=1, **properties)
        assert subscriber.messages()[0].properties == properties
        cluster.check()


def test_a_node_that_was_down_catches_up() -> None:
    with cluster_of() as cluster:
        publisher = cluster["a"].core.connect("publisher")
        publisher.publish("t", b"1", qos=1)
        cluster["c"].crash()
        publisher.publish("t", b"2", qos=1, retain=True)
        cluster["c"].start()
        cluster.run()
        cluster.check()
        assert cluster["c"].journal.is_ready
        publisher.publish("t", b"3", qos=1)
        cluster.check()


def test_messages_written_before_a_crash_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_of() as cluster:
        publisher = cluster["a"].core.connect("publisher")
        for number in range(5):
            publisher.publish("t", b"%d" % number, qos=1, retain=True)
        cluster["c"].crash()
        cluster["c"].start()
        end = {stream.name: stream.next_offset for stream in cluster["c"].journal.streams}["default"]
        assert end < 5, "the state was committed with the messages: nothing is applied again"
        monkeypatch.setattr(cluster["c"].files, "write", lambda *_: pytest.fail("written again"))
        cluster.run()
        monkeypatch.undo()
        cluster.check()
        assert len(cluster["c"].log("default")) == 5


def test_without_a_quorum_messages_are_refused_and_it_recovers() -> None:
    with cluster_of() as cluster:
        publisher = cluster["a"].core.connect("publisher")
        cluster["a"].order.reachable = False
        publisher.publish("t", b"1", qos=1)
        refusal = publisher.only(Ack)
        assert refusal.reason >= 0x80
        assert "quorum" in refusal.properties["reason_string"]
        assert cluster["a"].journal.fault is not None
        cluster["a"].order.reachable = True
        publisher.publish("t", b"2", qos=1)
        assert publisher.only(Ack).reason < 0x80
        assert [row["payload"] for row in cluster["b"].log("default")] == [b"2"]
        cluster.check()


def test_a_session_is_taken_over_by_another_node() -> None:
    with cluster_of() as cluster:
        first = cluster["a"].core.connect("client", session_expiry=1_000)
        first.subscribe("t", qos=2)
        publisher = cluster["c"].core.connect("publisher")
        publisher.publish("t", b"1", qos=1)
        publisher.publish("t", b"2", qos=2)
        second = cluster["b"].core.wire()
        assert second.connect("client", clean_start=False, session_expiry=1_000).session_present
        assert first.closed
        reasons = [packet.reason for packet in first.received() if isinstance(packet, Disconnect)]
        assert reasons == [0x8E]
        assert "client" not in cluster["a"].core.broker.sessions.by_id
        publisher.publish("t", b"3", qos=1)
        messages = second.finish()
        assert [one.payload for one in messages] == [b"1", b"2", b"3"]
        cluster.tick()
        cluster.check()


def test_a_shared_subscription_is_refused_rather_than_served_by_every_node() -> None:
    with cluster_of() as cluster:
        client = cluster["a"].core.connect("client")
        assert client.connack is not None
        assert client.connack.properties["shared_subscription_available"] == 0
        assert client.subscribe("$share/g/t/#", qos=1) == [0x9E]


def test_topics_are_created_and_deleted_on_all_nodes() -> None:
    with cluster_of() as cluster:
        catalog = {name: cluster[name].core.broker.catalog for name in "abc"}
        assert catalog["a"].create(b"t/1") == catalog["b"].create(b"t/2") == ""
        cluster["c"].core.connect("publisher").publish("t/2", b"kept", qos=1, retain=True)
        cluster.tick()
        for one in catalog.values():
            assert [found[0] for found in one.each(b"t/#") if found is not None] == [b"t/1", b"t/2"]
        assert catalog["c"].delete(b"t/2") == ""
        cluster.tick()
        for one in catalog.values():
            assert [found[0] for found in one.each(b"#") if found is not None] == [b"t/1"]
        cluster["b"].crash()
        cluster["b"].start()
        cluster.run()
        assert list(cluster["b"].core.broker.catalog.created.values) == [b"t/1"]
        cluster.check()


def test_a_replay_starts_at_the_same_offset_on_every_node() -> None:
    with cluster_of() as cluster:
        publisher = cluster["a"].core.connect("publisher")
        for number in range(5):
            publisher.publish("t/1", b"%d" % number, qos=1)
        for name in "abc":
            client = cluster[name].core.connect(f"client-{name}")
            client.subscribe("t/#", qos=1, user_property=[("pyrite-from", "2")])
            assert client.payloads() == [b"2", b"3", b"4"]
