"""Many packets in one segment: a stream of bytes has no edges, so they count as if each had come alone.

A broker that handles a whole read at once has to give every subscriber, whatever it asked for, what it
would have got from one packet at a time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from .client import Client
from .conftest import Broker
from .reader import Packet
from .wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, ack_packet, packet, publish_packet

# (last level, payload, properties): runs of one topic, alternating topics, alternating sizes, odd ones out.
MESSAGES: list[tuple[str, bytes, dict[str, Any]]] = [
    *[("a", b"%d" % number, {}) for number in range(6)],
    *[("ab"[number % 2], b"%d" % number, {}) for number in range(6)],
    *[("a", b"x" * number, {}) for number in range(6)],
    *[("c" * number, b"y" * number, {}) for number in range(1, 6)],
    ("a", b"text", {"content_type": "text"}),
    ("a", b"text", {"content_type": "text"}),
    ("b", b"text", {"content_type": "text"}),
    ("a", b"more", {"user_property": [("k", "v")]}),
    ("a", b"plain", {}),
    ("b", b"large" * 60, {}),
    ("b", b"small", {}),
    ("a", b"large" * 60, {}),
    ("a", b"", {}),
    *[("d", b"same", {}) for _ in range(4)],
]


def publish_all(publisher: Client, topic: str, qos: int, **extra: Any) -> None:
    """Send all messages in one segment, and complete their exchanges, each step in one segment."""
    numbers = range(1, len(MESSAGES) + 1)
    publisher.send(
        b"".join(
            publish_packet(
                f"{topic}/{level}",
                payload,
                qos=qos,
                packet_id=number if qos else None,
                version=publisher.version,
                **({**values, **extra} if publisher.version == 5 else {}),
            )
            for number, (level, payload, values) in zip(numbers, MESSAGES, strict=True)
        )
    )
    if qos:
        first = [publisher.wait_for(PUBACK if qos == 1 else PUBREC).packet_id for _ in numbers]
        assert first == list(numbers)
    if qos == 2:
        publisher.send(b"".join(ack_packet(PUBREL, number) for number in numbers))
        assert [publisher.wait_for(PUBCOMP).packet_id for _ in numbers] == list(numbers)


def expect_all(messages: list[Packet], topic: str, qos: int, version: int = 5, **extra: Any) -> None:
    """Require these messages, in their order, with their properties and this QoS."""
    assert len(messages) == len(MESSAGES)
    known: dict[int, str] = {}
    for message, (level, payload, values) in zip(messages, MESSAGES, strict=True):
        properties = dict(message.properties)
        alias = properties.pop("topic_alias", 0)
        if alias and message.topic:
            known[alias] = message.topic
        assert (message.topic or known[alias]) == f"{topic}/{level}"
        assert (message.payload, message.qos, message.dup) == (payload, qos, False)
        assert properties == ({**values, **extra} if version == 5 else {})


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="plain"),
        pytest.param({"receive_maximum": 1}, id="receive maximum 1"),
        pytest.param({"receive_maximum": 4}, id="receive maximum 4"),
        pytest.param({"topic_alias_maximum": 1}, id="one alias"),
        pytest.param({"topic_alias_maximum": 20}, id="aliases"),
        pytest.param({"topic_alias_maximum": 3, "receive_maximum": 2}, id="aliases and receive maximum"),
    ],
)
def test_a_segment_reaches_every_kind_of_connection(
    broker: Broker, topic: str, qos: int, values: dict[str, Any]
) -> None:
    """[MQTT-4.2.0-1] [MQTT-4.6.0-5] [MQTT-3.3.4-9] [MQTT-3.1.2-26]"""
    subscriber, publisher = broker.connect(**values), broker.connect()
    subscriber.subscribe(f"{topic}/#", qos=qos)
    publish_all(publisher, topic, qos)
    expect_all([subscriber.receive() for _ in MESSAGES], topic, qos)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_segment_reaches_every_kind_of_subscription(
    broker: Broker, topic: str, qos: int, granted: int
) -> None:
    """[MQTT-3.8.4-8] [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-4.6.0-5] At the QoS granted, with identifiers."""
    plain, marked, twice, publisher = (broker.connect() for _ in range(4))
    plain.subscribe(f"{topic}/#", qos=granted)
    marked.subscribe(f"{topic}/+", qos=granted, subscription_identifier=300)
    twice.subscribe(f"{topic}/#", qos=0)
    twice.subscribe(f"{topic}/+", qos=granted, retain_as_published=True)
    publish_all(publisher, topic, qos)
    expected = min(qos, granted)
    expect_all([plain.receive() for _ in MESSAGES], topic, expected)
    expect_all([marked.receive() for _ in MESSAGES], topic, expected, subscription_identifier=[300])
    expect_all([twice.receive() for _ in MESSAGES], topic, expected)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("versions", [(4, 5), (5, 4), (4, 4)], ids=["old to new", "new to old", "old to old"])
def test_a_segment_passes_between_versions(
    broker: Broker, topic: str, qos: int, versions: tuple[int, int]
) -> None:
    """Properties exist where both sides are of version 5; all else is the same."""
    publisher, subscriber = (broker.connect(version=version) for version in versions)
    subscriber.subscribe(f"{topic}/#", qos=qos)
    publish_all(publisher, topic, qos)
    expect_all([subscriber.receive() for _ in MESSAGES], topic, qos, version=4)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("maximum", [3, 65_535])
def test_a_segment_waits_for_a_client_that_is_away(
    broker: Broker, topic: str, client_id: str, qos: int, maximum: int
) -> None:
    """[MQTT-4.5.0-1] [MQTT-4.6.0-5] [MQTT-3.1.2-5]"""
    subscriber, publisher = broker.connect(client_id, session_expiry_interval=60), broker.connect()
    subscriber.subscribe(f"{topic}/#", qos=qos)
    subscriber.disconnect()
    publish_all(publisher, topic, qos)
    subscriber = broker.connect(client_id, clean=False, receive_maximum=maximum)
    expect_all([subscriber.receive() for _ in MESSAGES], topic, qos)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_segment_is_sent_again_message_by_message(
    broker: Broker, topic: str, client_id: str, qos: int
) -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1] Every third was acknowledged; the others come again, with DUP."""
    subscriber, publisher = broker.connect(client_id, session_expiry_interval=60), broker.connect()
    subscriber.subscribe(f"{topic}/#", qos=qos)
    publish_all(publisher, topic, qos)
    first = [subscriber.expect(PUBLISH) for _ in MESSAGES]
    for message in first[::3]:
        subscriber.acknowledge(message)
    subscriber.ping()
    subscriber.close()
    subscriber = broker.connect(client_id, clean=False, session_expiry_interval=60)
    left = [message for number, message in enumerate(first) if number % 3]
    again = [subscriber.expect(PUBLISH) for _ in left]
    assert all(message.dup for message in again)
    assert [(each.packet_id, each.topic, each.payload, each.properties) for each in again] == [
        (each.packet_id, each.topic, each.payload, each.properties) for each in left
    ]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_segment_too_large_in_parts_is_sent_in_parts(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25] The large ones are left out, and nothing else."""
    small, publisher = broker.connect(maximum_packet_size=200, receive_maximum=2), broker.connect()
    small.subscribe(f"{topic}/#", qos=qos)
    publish_all(publisher, topic, qos)
    fitting = [payload for _, payload, _ in MESSAGES if len(payload) < 100]
    assert [small.receive().payload for _ in fitting] == fitting
    assert small.received_before_fence(publisher) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_segment_is_dealt_to_a_group_once(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-3] Each message to one member."""
    members, publisher = [broker.connect() for _ in range(3)], broker.connect()
    for member in members:
        member.subscribe(f"$share/group/{topic}/#", qos=qos)
    publish_all(publisher, topic, qos)
    received: Counter[tuple[str, bytes]] = Counter()
    for member in members:
        for message in member.received_before_fence(publisher):
            assert message.qos == qos
            received[message.topic, message.payload] += 1
    assert received == Counter((f"{topic}/{level}", payload) for level, payload, _ in MESSAGES)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_segment_does_not_come_back_with_no_local(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-3.8.3-3] None of it."""
    client, other = broker.connect(), broker.connect()
    client.subscribe(f"{topic}/#", qos=qos, no_local=True)
    publish_all(client, topic, qos)
    assert client.received_before_fence(client) == []
    publish_all(other, topic, qos)
    expect_all([client.receive() for _ in MESSAGES], topic, qos)


def test_the_last_retained_message_of_a_segment_is_kept(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-7] For each topic, in the order of the segment; an empty one removes it."""
    publisher = broker.connect()
    publisher.send(
        b"".join(
            publish_packet(f"{topic}/{level}", payload, retain=retain, qos=1, packet_id=number)
            for number, (level, payload, retain) in enumerate(
                [
                    ("a", b"1", True), ("a", b"2", True), ("a", b"3", False), ("b", b"1", True),
                    ("b", b"", True), ("c", b"", True), ("c", b"9", True), ("b", b"", False),
                ],
                start=1,
            )
        )
    )  # fmt: skip
    for _ in range(8):
        publisher.expect(PUBACK)
    late = broker.connect()
    late.subscribe(f"{topic}/#")
    kept = {message.topic[-1]: message.payload for message in late.received_before_fence(publisher)}
    assert kept == {"a": b"2", "c": b"9"}


def test_a_repeated_identifier_within_a_segment_is_one_message(broker: Broker, topic: str) -> None:
    """[MQTT-4.3.3-10] [MQTT-4.3.3-12] The same QoS 2 message three times, and again after its PUBREL."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(f"{topic}/#", qos=2)
    one = publish_packet(f"{topic}/a", b"one", qos=2, packet_id=1)
    two = publish_packet(f"{topic}/bb", b"two", qos=2, packet_id=2)
    publisher.send(one + one + two + one + two + ack_packet(PUBREL, 1) + one)
    for packet_id in (1, 1, 2, 1, 2):
        assert publisher.expect(PUBREC).packet_id == packet_id
    assert publisher.expect(PUBCOMP).packet_id == 1
    assert publisher.expect(PUBREC).packet_id == 1
    received = [message.payload for message in subscriber.received_before_fence(broker.connect())]
    assert received == [b"one", b"two", b"one"]


def test_aliases_within_a_segment_follow_its_order(broker: Broker, topic: str) -> None:
    """[MQTT-3.3.2-12] Set, used, set anew, used again, at each QoS."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(f"{topic}/#")
    names = ["a", "", "", "b", "", "a", ""]
    for qos in (0, 1):
        publisher.send(
            b"".join(
                publish_packet(
                    name and f"{topic}/{name}",
                    b"x",
                    qos=qos,
                    packet_id=number if qos else None,
                    topic_alias=1,
                )
                for number, name in enumerate(names, start=1)
            )
        )
        assert "".join(subscriber.receive().topic[-1] for _ in names) == "aaabbaa"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_came_before_an_error_in_a_segment_counts(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-4.13.1-1] The messages before the wrong packet are published, those after it are not."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(topic, qos=qos)
    before = [
        publish_packet(topic, b"%d" % number, qos=qos, packet_id=number if qos else None)
        for number in range(1, 4)
    ]
    publisher.send(b"".join(before) + packet(0, 0) + publish_packet(topic, b"after"))
    publisher.expect_disconnect(0x81, 0x82)
    received = [message.payload for message in subscriber.received_before_fence(broker.connect())]
    assert received == [b"1", b"2", b"3"]


@pytest.mark.parametrize("size", [1, 3, 7, 64, 333])
def test_a_stream_may_be_cut_anywhere(broker: Broker, topic: str, size: int) -> None:
    """[MQTT-4.2.0-1] Segments of a few bytes, and some more, with packets lying across their edges."""
    subscriber, publisher = broker.connect(), broker.connect()
    subscriber.subscribe(f"{topic}/#", qos=1)
    messages = MESSAGES[:12]
    stream = b"".join(
        publish_packet(f"{topic}/{level}", payload, qos=1, packet_id=number)
        for number, (level, payload, _) in enumerate(messages, start=1)
    )
    for at in range(0, len(stream), size):
        publisher.send(stream[at : at + size])
    received = [subscriber.receive() for _ in messages]
    assert [(each.topic[-1], each.payload) for each in received] == [(each[0], each[1]) for each in messages]
