"""Replay: SUBSCRIBE with `pyrite-from`, and QoS 0 without loss with `pyrite-lossless`."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from tests.conformance.client import Client
from tests.conformance.reader import Packet
from tests.conformance.wire import PUBACK, PUBLISH, PUBREC, PUBREL, ack_packet, publish_packet
from tests.support.waiting import let_pass, wait_until

from . import bulk
from .broker import ONE_SEGMENT, THREE_STREAMS, Broker, receive_until
from .bulk import numbers
from .peers import Peer, Publisher, Subscriber, drive

MB = 1_000_000


def since(position: str) -> dict[str, Any]:
    """Return the property that requests a replay."""
    return {"user_property": [("pyrite-from", position)]}


LOSSLESS: dict[str, Any] = {"user_property": [("pyrite-lossless", "true")]}


def payloads(messages: list[Packet]) -> list[bytes]:
    return [message.payload for message in messages]


@pytest.fixture
def client(broker: Broker) -> Client:
    return broker.client("reader")


def fill(broker: Broker) -> None:
    """Publish 300 numbers on `a` with every QoS, and as many on `b`."""
    for qos in (0, 1, 2):
        bulk.publish(broker.port, "a", numbers(100 * qos, 100 * qos + 100), qos)
        bulk.publish(broker.port, "b", numbers(100 * qos, 100 * qos + 100), qos)


# Where to begin


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_replay_from_earliest_is_everything(broker: Broker, client: Client, qos: int) -> None:
    fill(broker)
    suback = client.subscribe("a", qos=qos, **since("earliest"))
    assert suback.reasons == (qos,)
    messages = [client.receive() for _ in range(300)]
    assert payloads(messages) == numbers(0, 300)
    assert [one.qos for one in messages] == [min(qos, level) for level in (0, 1, 2) for _ in range(100)]
    assert not any(one.dup or one.retain for one in messages)
    broker.client().publish("a", b"live", qos=2)
    assert client.receive().payload == b"live"


def test_replay_from_an_offset(broker: Broker, client: Client) -> None:
    fill(broker)
    offsets = [
        offset.as_py()
        for rows in broker.rows()
        for offset, topic in zip(rows.column("offset"), rows.column("topic"), strict=True)
        if topic.as_py() == "a"
    ]
    for start in (0, 150, 299):
        client.subscribe("a", qos=1, **since(str(offsets[start])))
        assert payloads([client.receive() for _ in range(300 - start)]) == numbers(start, 300)
    client.subscribe("a", qos=1, **since("1000000"))
    broker.client().publish("a", b"live", qos=1)
    assert client.receive().payload == b"live"


def test_replay_from_latest_is_nothing(broker: Broker, client: Client) -> None:
    fill(broker)
    broker.client().publish("a", b"kept", qos=1, retain=True)
    client.subscribe("a", qos=1, **since("latest"))
    broker.client().publish("a", b"live", qos=1)
    assert client.receive().payload == b"live"


def test_replay_from_a_time_and_from_an_age(broker: Broker, client: Client) -> None:
    publisher = broker.client()
    publisher.publish("a", b"long ago", qos=1)
    let_pass(2.1, "the first message is older than two seconds")
    middle = datetime.now(UTC)
    publisher.publish("a", b"just now", qos=1)
    for position, expected in (
        ("-2s", [b"just now"]),
        ("-1h", [b"long ago", b"just now"]),
        (middle.isoformat(), [b"just now"]),
        (middle.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), [b"just now"]),
        ("1970-01-01T00:00:00Z", [b"long ago", b"just now"]),
    ):
        client.subscribe("a", qos=1, **since(position))
        assert payloads([client.receive() for _ in expected]) == expected, position
        assert client.received_before_fence(publisher) == []
    client.subscribe("a", qos=1, **since("2999-01-01T00:00:00Z"))
    publisher.publish("a", b"live", qos=1)
    assert client.receive().payload == b"live"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([("pyrite-from", "0"), ("pyrite-from", "earliest")], "pyrite-from: expected once"),
        ([("pyrite-lossless", "perhaps")], "pyrite-lossless: expected true or false"),
    ],
)
def test_an_ambiguous_replay_is_refused_with_the_reason(
    broker: Broker, client: Client, asked: list[tuple[str, str]], said: str
) -> None:
    fill(broker)
    suback = client.subscribe("a", qos=0, user_property=asked)
    assert suback.reasons == (0x83,)
    assert suback.properties["reason_string"] == said
    assert client.received_before_fence(broker.client()) == []


@pytest.mark.parametrize(
    "position", ["", "yesterday", "-1", "-5x", "1.5", "99999999999999999999", "2026-13-01"]
)
def test_an_invalid_position_is_refused_with_the_reason(
    broker: Broker, client: Client, position: str
) -> None:
    fill(broker)
    suback = client.subscribe("a", "b", qos=1, **since(position))
    assert suback.reasons == (0x83, 0x83)
    assert "pyrite-from" in suback.properties["reason_string"]
    assert client.received_before_fence(broker.client()) == []
    broker.client().publish("a", b"live", qos=1)
    assert client.received_before_fence(broker.client()) == []


def test_a_shared_subscription_has_no_replay(broker: Broker, client: Client) -> None:
    fill(broker)
    suback = client.subscribe("$share/team/a", qos=1, **since("earliest"))
    assert suback.reasons == (0x83,)
    assert "shared subscription" in suback.properties["reason_string"]


def test_replay_of_a_wildcard_keeps_properties(broker: Broker, client: Client) -> None:
    values = {"content_type": "text/plain", "user_property": [("a", "1"), ("a", "2")]}
    publisher = broker.client("bob")
    publisher.publish("x/1", b"one", qos=1, **values)
    publisher.publish("y/1", b"other", qos=1)
    publisher.publish("x/2", b"two", qos=2, retain=True, response_topic="r")
    client.subscribe("x/#", qos=2, retain_as_published=True, subscription_identifier=4, **since("earliest"))
    one, two = client.receive(), client.receive()
    assert (one.topic, one.payload, one.qos) == ("x/1", b"one", 1)
    assert one.properties == values | {"subscription_identifier": [4]}
    assert (two.topic, two.payload, two.qos, two.retain) == ("x/2", b"two", 2, True)
    assert two.properties == {"response_topic": "r", "subscription_identifier": [4]}
    assert client.received_before_fence(publisher) == []  # not once more as a retained message


def test_replay_skips_expired_and_own_messages(broker: Broker) -> None:
    client = broker.client("reader")
    publisher = broker.client("bob")
    for number in range(10):
        publisher.publish("a", b"%d" % number, qos=1, message_expiry_interval=1 if number % 2 else 1000)
    client.publish("a", b"own", qos=1)
    let_pass(1.2, "messages expire")
    client.subscribe("a", qos=1, no_local=True, **since("earliest"))
    assert payloads([client.receive() for _ in range(5)]) == [b"0", b"2", b"4", b"6", b"8"]
    assert client.received_before_fence(publisher) == []


def test_several_filters_are_replayed_at_once(broker: Broker, client: Client) -> None:
    fill(broker)
    client.subscribe("a", "b", qos=1, **since("earliest"))
    found: dict[str, list[bytes]] = {"a": [], "b": []}
    for _ in range(600):
        message = client.receive()
        found[message.topic].append(message.payload)
    assert found == {"a": numbers(0, 300), "b": numbers(0, 300)}
    assert client.received_before_fence(broker.client()) == []


def test_replay_includes_messages_from_before_a_restart(broker: Broker) -> None:
    fill(broker)
    broker.client().publish("a", b"end", qos=1)
    for how in ("stop", "kill"):
        broker.restart(how)
        client = broker.client()
        client.subscribe("a", qos=1, **since("earliest"))
        assert payloads(receive_until(client, b"end")) == [*numbers(0, 300), b"end"]


def test_mqtt_3_has_no_replay_and_other_properties_are_ignored(broker: Broker, client: Client) -> None:
    fill(broker)
    suback = client.subscribe("a", qos=1, user_property=[("pyrite", "earliest"), ("x", "pyrite-from")])
    assert suback.reasons == (1,)
    assert client.received_before_fence(broker.client()) == []


# The past and the present meet


@pytest.mark.parametrize(
    ("qos", "config"),
    [(0, ""), (1, THREE_STREAMS), (2, "")],
    ids=["QoS 0, one stream", "QoS 1, three streams", "QoS 2, one stream"],
)
def test_no_gap_and_no_duplicate_while_others_publish(stopped_broker: Broker, qos: int, config: str) -> None:
    """Readers replay from the beginning while publishers of every QoS continue."""
    broker, source = stopped_broker, Random(qos)
    broker.configure(config)
    broker.start()
    readers: list[Subscriber] = []
    with ExitStack() as stack:
        flows = {
            f"flow/{level}": stack.enter_context(bulk.Stream(broker.port, f"flow/{level}", level, 0.01))
            for level in (0, 1, 2)
        }
        for number in range(5):
            reader = Subscriber(f"reader-{number}", "flow/#", qos, source, receive_maximum=number % 2 * 20)
            reader.properties = since("earliest")
            reader.dial(broker.port)
            readers.append(reader)
            drive(readers, 0.2)  # so that each finds another point to go live
        counts = {topic: flow.stop() for topic, flow in flows.items()}
    assert all(count > 100 for count in counts.values())
    drive(readers, 30, lambda: all(one.count(topic) >= counts[topic] for one in readers for topic in counts))
    drive(readers, 0.2)
    for reader in readers:
        reader.drop()
        for topic, count in counts.items():
            assert reader.firsts(topic) == list(range(count)), (reader.client_id, topic)
            assert not reader.repetitions(topic), (reader.client_id, topic)


@pytest.mark.timeout(180)
def test_replay_continues_across_reconnects_and_crashes(broker: Broker) -> None:
    """A persistent session resumes its replay where it was."""
    source = Random(5)
    publishers = [
        Publisher("one", "flow/1", 1, 50, source),
        Publisher("two", "flow/2", 2, 50, source),
    ]
    for publisher in publishers:
        publisher.limit = 4_000
        publisher.dial(broker.port)
    assert drive(publishers, 60, lambda: all(one.finished for one in publishers))
    readers = [
        Subscriber("level-1", "flow/#", 1, source, receive_maximum=100),
        Subscriber("level-2", "flow/#", 2, source, receive_maximum=100),
        Subscriber("both", "flow/#", 2, source, receive_maximum=100),
    ]
    for reader in readers:
        reader.properties = since("earliest")
    everyone: list[Peer] = [*publishers, *readers]
    for reader in readers:
        reader.dial(broker.port)
    assert drive(everyone, 10, lambda: all(one.subscribed for one in readers))
    for number in range(15):
        for publisher in publishers:
            publisher.limit = publisher.published + 100
        drive(everyone, source.uniform(0.02, 0.3))
        if number % 5 == 4:
            broker.kill()
            for peer in everyone:
                peer.hang_up()
            broker.start()
        for peer in everyone:
            if peer.socket is not None and isinstance(peer, Subscriber) and source.random() < 0.5:
                peer.drop()
            if peer.socket is None:
                peer.dial(broker.port)

    def complete() -> bool:
        return all(one.finished for one in publishers) and all(
            one.count(publisher.topic) >= publisher.published for one in readers for publisher in publishers
        )

    drive(everyone, 60, complete)
    drive(everyone, 0.3)
    for reader in readers:
        for publisher in publishers:
            where = f"{reader.client_id}, {publisher.topic}"
            assert reader.firsts(publisher.topic) == list(range(publisher.published)), where
            if min(reader.qos, publisher.qos) == 2:
                assert not reader.repetitions(publisher.topic), where
    for peer in everyone:
        peer.drop()


def test_replay_does_not_delay_other_subscriptions(broker: Broker) -> None:
    """Another subscription of the session is served during the replay, and each message arrives once."""
    bulk.publish(broker.port, "a", numbers(0, 20_000))
    client = broker.client("reader", receive_maximum=50)
    client.subscribe("b", qos=1)
    client.subscribe("a", qos=1, **since("earliest"))
    broker.client().publish("b", b"in between", qos=1)
    found: dict[str, list[bytes]] = {"a": [], "b": []}
    for _ in range(20_001):
        message = client.wait_for(PUBLISH)
        client.acknowledge(message)
        found[message.topic].append(message.payload)
    assert found == {"a": numbers(0, 20_000), "b": [b"in between"]}


def test_catch_up_and_replay_cause_no_duplicates(broker: Broker) -> None:
    """A session catches up while one of its subscriptions is replayed; they reach the end separately."""
    client = broker.lasting("ann")
    client.subscribe("missed", qos=2)
    client.close()
    bulk.publish(broker.port, "a", numbers(0, 50), 2)
    bulk.publish(broker.port, "missed", numbers(0, 800, 5_000), 2)
    bulk.publish(broker.port, "a", numbers(50, 100), 2)
    client = broker.returning("ann", receive_maximum=20)
    client.subscribe("a", qos=2, **since("earliest"))
    bulk.publish(broker.port, "a", numbers(100, 200), 2)
    found: dict[str, list[bytes]] = {"a": [], "missed": []}
    for _ in range(1_000):
        message = client.wait_for(PUBLISH)
        client.acknowledge(message)
        found[message.topic].append(message.payload[:8])
    assert found == {"a": numbers(0, 200), "missed": numbers(0, 800)}
    assert client.received_before_fence(broker.client()) == []


@pytest.mark.parametrize("how", ["drop", "kill"])
def test_an_interrupted_replay_does_not_repeat_other_subscriptions(broker: Broker, how: str) -> None:
    """Messages that another subscription delivered are not sent again."""
    client = broker.lasting("ann")
    client.subscribe("b", qos=2)
    for start in range(0, 1_000, 100):
        bulk.publish(broker.port, "a", numbers(start, start + 100), 2)
        bulk.publish(broker.port, "b", numbers(start, start + 100), 2)
    assert payloads([client.receive() for _ in range(1_000)]) == numbers(0, 1_000)
    client.disconnect()
    source = Random(4)
    reader = Subscriber("ann", "a", 2, source, receive_maximum=20)
    reader.properties = since("earliest")
    reader.dial(broker.port)
    assert drive([reader], 10, lambda: reader.count("a") >= 100)
    if how != "drop":
        broker.end(how)
        reader.hang_up()
        broker.start()
    reader.drop()
    reader.dial(broker.port)
    drive([reader], 20, lambda: reader.count("a") >= 1_000)
    drive([reader], 0.2)
    reader.drop()
    assert reader.arrived == {"a": dict.fromkeys(range(1_000), 1)}


def test_unsubscribe_ends_a_replay(broker: Broker) -> None:
    bulk.publish(broker.port, "a", numbers(0, 50_000))
    client = broker.client("reader", receive_maximum=10)
    client.subscribe("a", qos=1, **since("earliest"))
    assert client.unsubscribe("a").reasons == (0,)
    for _ in range(100):
        if not client._inbox:
            break
        client.acknowledge(client.wait_for(PUBLISH))
    came = len(client.received_before_fence(broker.client()))
    assert came < 20_000


def test_subscribing_again_replays_again(broker: Broker, client: Client) -> None:
    fill(broker)
    for _ in range(3):
        client.subscribe("a", qos=1, **since("earliest"))
        assert payloads([client.receive() for _ in range(300)]) == numbers(0, 300)
    client.subscribe("a", qos=1)
    assert client.received_before_fence(broker.client()) == []


def test_subscribing_again_without_a_position_continues_the_replay(broker: Broker) -> None:
    """The requested messages and those since then arrive once, in order."""
    bulk.publish(broker.port, "a", numbers(0, 2_000), 1)
    client = broker.client("reader", receive_maximum=10)
    client.subscribe("a", qos=1, **since("earliest"))
    first = client.receive()
    bulk.publish(broker.port, "a", numbers(2_000, 2_100), 1)
    client.subscribe("a", qos=1)
    broker.client().publish("a", b"end", qos=1)
    came = [first, *receive_until(client, b"end")]
    assert payloads(came) == [*numbers(0, 2_100), b"end"]


def test_replay_takes_little_memory(stopped_broker: Broker) -> None:
    """Ten slow readers of 100 MB."""
    broker = stopped_broker
    broker.configure(ONE_SEGMENT)
    broker.start()
    bulk.publish(broker.port, "a", numbers(0, 10_000, 10_000), 1, 200)
    before = broker.memory()
    readers = [broker.client(f"reader-{number}", receive_maximum=10) for number in range(10)]
    for reader in readers:
        reader.subscribe("a", qos=1, **since("earliest"))
        assert reader.receive().payload[:8] == b"00000000"
    grown = broker.memory() - before
    assert grown < 100 * MB, f"{grown / MB:.0f} MB more"


# QoS 0 without loss


def test_a_slow_reader_of_qos_0_loses_nothing(broker: Broker) -> None:
    slow = broker.client("slow")
    lossy = broker.client("lossy")
    suback = slow.subscribe("a", qos=0, **LOSSLESS)
    assert suback.reasons == (0,)
    lossy.subscribe("a", qos=0)
    for qos in (0, 1):
        bulk.publish(broker.port, "a", numbers(5_000 * qos, 5_000 * (qos + 1), 10_000), qos)
    broker.client().publish("a", b"end", qos=1)
    assert payloads(receive_until(slow, b"end")) == [*numbers(0, 10_000, 10_000), b"end"]
    assert len(receive_until(lossy, b"end")) < 10_001  # so there was more than there was room for


def test_a_slow_reader_of_qos_0_falls_behind_again_and_again(stopped_broker: Broker) -> None:
    """It catches up in between while others publish; the messages of each publisher arrive once, in order."""
    broker = stopped_broker
    broker.configure("[limits]\nmax_waiting_bytes = 20000\n")
    broker.start()
    reader = Subscriber("slow", "flow/#", 0, Random(6))
    reader.properties = LOSSLESS
    reader.dial(broker.port)
    assert drive([reader], 10, lambda: reader.subscribed)
    with ExitStack() as stack:
        flows = {
            topic: stack.enter_context(bulk.Stream(broker.port, topic, level, 0.005, 3_000))
            for level, topic in enumerate(("flow/0", "flow/1", "flow/2"))
        }
        for _ in range(6):
            so_far = sum(flow.count for flow in flows.values())
            wait_until(lambda: sum(flow.count for flow in flows.values()) > so_far + 60, "much waits")  # noqa: B023
            drive([reader], 0.2)
        counts = {topic: flow.stop() for topic, flow in flows.items()}
    drive([reader], 15, lambda: all(reader.count(topic) >= count for topic, count in counts.items()))
    drive([reader], 0.2)
    assert reader.arrived == {topic: dict.fromkeys(range(count), 1) for topic, count in counts.items()}
    assert all(reader.firsts(topic) == list(range(count)) for topic, count in counts.items())


def test_a_slow_reader_of_several_topics_loses_nothing(stopped_broker: Broker) -> None:
    """Its messages arrive in one piece that only partly fits."""
    broker = stopped_broker
    broker.configure("[limits]\nmax_waiting_bytes = 20000\n")
    broker.start()
    slow = broker.client("slow")
    slow.subscribe("flow/#", qos=0, **LOSSLESS)
    writer = broker.client("writer", version=4)
    sent = [(f"flow/{number % 3}", b"%05d" % number + b"." * (number % 7 * 50)) for number in range(9_000)]
    for start in range(0, len(sent), 500):
        writer.send(
            b"".join(
                publish_packet(topic, payload, version=4) for topic, payload in sent[start : start + 500]
            )
        )
    writer.publish("flow/0", b"end", qos=1)
    came = receive_until(slow, b"end")
    assert payloads(came) == [*(payload for _, payload in sent), b"end"]


# A replay is a delivery like others


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_unacknowledged_replayed_messages_are_redelivered(broker: Broker, how: str) -> None:
    bulk.publish(broker.port, "a", numbers(0, 100), 2)
    client = broker.lasting("ann", receive_maximum=10)
    client.subscribe("a", qos=2, **since("earliest"))
    first = [client.wait_for(PUBLISH) for _ in range(10)]
    client.send(ack_packet(PUBREC, first[0].packet_id))
    assert client.wait_for(PUBREL).packet_id == first[0].packet_id
    broker.settle()
    broker.restart(how)
    client = broker.returning("ann", receive_maximum=10)
    packets = [client.read() for _ in range(10)]
    again = [one for one in packets if one.kind == PUBLISH]
    assert [(one.packet_id, one.payload, one.dup) for one in again] == [
        (one.packet_id, one.payload, True) for one in first[1:]
    ]
    (release,) = [one for one in packets if one.kind == PUBREL]
    assert release.packet_id == first[0].packet_id
    client.send(ack_packet(7, release.packet_id))
    found = payloads(first[:1])
    for message in again:
        client.acknowledge(message)
        found.append(message.payload)
    while len(found) < 100:
        message = client.wait_for(PUBLISH)
        assert not message.dup
        client.acknowledge(message)
        found.append(message.payload)
    assert found == numbers(0, 100)
    assert PUBACK not in {one.kind for one in client._inbox}
