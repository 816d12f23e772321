"""Packets that differ in topic, size, properties or route are published together, and lose nothing by it."""

from __future__ import annotations

from typing import Any

import pytest

from pyrite.broker.access import Access, Credentials
from pyrite.broker.limits import Limits
from pyrite.broker.quotas import Quota, QuotaOptions
from pyrite.broker.routes import MAX_COVERED_ROUTES
from pyrite.protocols.mqtt.packets import V311, Ack, Publish, Wish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import Client, Core

COUNT = 40


class Rules(Access):
    """Allows every client its own topics, and counts how often it is asked."""

    checks_topics = True
    tells_of_changes = True

    def __init__(self) -> None:
        self.asked = 0
        self.denied = "t/denied"

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        self.asked += 1
        return topic.startswith("t/") and topic != self.denied


def send(client: Client, topics: list[str], qos: int = 0, retain: bool = False, **properties: Any) -> None:
    """Send messages of varying length in one read, without a flush."""
    packets = [
        Publish(
            topic.encode(), b"%d" % number + b"." * (number % 7), qos, retain, False, number + 1, properties
        )
        for number, topic in enumerate(topics)
    ]
    client.connection.feed(client.encoded(*packets))


def writes(client: Client) -> int:
    """Return how many pieces wait to be sent to a client."""
    return len(client.connection.chunks)


TOPICS = [f"t/{number}" for number in range(COUNT)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "properties", [{}, {"content_type": "text/plain", "user_property": [("trace", "x"), ("", "")]}]
)
@pytest.mark.parametrize("rules", [False, True])
def test_a_read_of_many_topics_is_one_batch(qos: int, properties: dict[str, Any], rules: bool) -> None:
    core = Core(access=Rules() if rules else None)
    subscriber = core.connect("subscriber")
    subscriber.subscribe("t/+", qos=qos)
    publisher = core.connect("publisher")
    send(publisher, TOPICS, qos, **properties)
    assert writes(subscriber) == 1
    core.flush()
    messages = subscriber.finish()
    assert [message.topic.decode() for message in messages] == TOPICS
    assert [message.payload[:2].rstrip(b".") for message in messages] == [b"%d" % n for n in range(COUNT)]
    assert all(message.properties == properties for message in messages)
    answers = [packet for packet in publisher.received() if isinstance(packet, Ack)]
    assert [answer.packet_id for answer in answers] == list(range(1, COUNT + 1) if qos else ())


def test_properties_reach_subscribers_of_other_versions_and_later_ones() -> None:
    core = Core()
    old = core.connect("old", V311)
    old.subscribe("t/+")
    numbered = core.connect("numbered")
    numbered.subscribe("t/+", subscription_identifier=7)
    send(core.connect("publisher"), TOPICS, retain=True, content_type="text/plain")
    core.flush()
    assert [message.topic.decode() for message in old.messages()] == TOPICS
    assert [message.properties for message in numbered.messages()] == [
        {"content_type": "text/plain", "subscription_identifier": [7]}
    ] * COUNT
    late = core.connect("late")
    late.subscribe("t/+")
    found = late.messages()
    assert sorted(message.topic.decode() for message in found) == sorted(TOPICS)
    assert all(message.retain and message.properties == {"content_type": "text/plain"} for message in found)


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x03\x00\x05ab",  # longer than the properties
        b"\x03\x00\x01a\x03\x00\x01a",  # twice
        b"\x26\x00\x01a",  # half a user property
        b"\x26\x00\x01a\x00\x09b",
        b"\x03\x00\x01\x00",  # a null character
        b"\x03\x00\x01\xff",  # not UTF-8
        b"\x03\x00",
        b"\x0b\x07",  # a subscription identifier
        b"\x7f\x00\x01a",  # unknown
    ],
)
def test_wrong_properties_in_the_middle_end_the_connection(wrong: bytes) -> None:
    core = Core()
    subscriber = core.connect("subscriber")
    subscriber.subscribe("#")
    publisher = core.connect("publisher")
    body = b"\x00\x01x" + bytes((len(wrong),)) + wrong + b"payload"
    packet = bytes((0x30, len(body))) + body
    good = Publish(b"t/1", b"good")
    publisher.send(Publish(b"t/0", b"goo"), good, packet, good)
    assert publisher.closed
    assert subscriber.payloads() == [b"goo", b"good"]


@pytest.mark.parametrize("wrong", [b"t/+", b"#", b"t\x00", b"t/\xff", b"t" + b"/" * 200])
def test_a_wrong_topic_in_the_middle_ends_the_connection(wrong: bytes) -> None:
    core = Core()
    subscriber = core.connect("subscriber")
    subscriber.subscribe("t/+")
    publisher = core.connect("publisher")
    publisher.send(
        Publish(b"t/0", b"1"), Publish(b"t/1", b"22"), Publish(wrong, b"333"), Publish(b"t/2", b"4")
    )
    assert publisher.closed
    assert subscriber.payloads() == [b"1", b"22"]


def test_the_rules_are_asked_once_for_each_topic_until_they_change() -> None:
    rules = Rules()
    core = Core(access=rules)
    subscriber = core.connect("subscriber")
    subscriber.subscribe("#")
    publisher = core.connect("publisher")
    for _ in range(3):
        send(publisher, TOPICS)
        core.flush()
    assert rules.asked == COUNT
    rules.denied = "t/3"
    core.broker.access_changed()
    publisher.connection.rights_changed()
    subscriber.received()
    send(publisher, TOPICS)
    core.flush()
    assert [message.topic.decode() for message in subscriber.messages()] == [t for t in TOPICS if t != "t/3"]


def test_a_forbidden_topic_in_the_middle_is_refused_in_its_place() -> None:
    core = Core(access=Rules())
    subscriber = core.connect("subscriber")
    subscriber.subscribe("#")
    publisher = core.connect("publisher")
    send(publisher, ["t/1", "t/2", "t/denied", "t/3"], qos=1)
    core.flush()
    answers = [(one.packet_id, one.reason) for one in publisher.received() if isinstance(one, Ack)]
    assert answers == [(1, 0), (2, 0), (3, Reason.NOT_AUTHORIZED), (4, 0)]
    assert [message.topic for message in subscriber.messages()] == [b"t/1", b"t/2", b"t/3"]


@pytest.mark.parametrize("qos", [0, 1])
def test_topics_of_several_routes_reach_each_subscriber_in_one_piece_and_in_order(qos: int) -> None:
    core = Core()
    everything = core.connect("everything")
    everything.subscribe("t/#", qos=qos)
    own = [core.connect(f"own{number}") for number in range(4)]
    for number, client in enumerate(own):
        client.subscribe(f"t/{number}", qos=qos)
    topics = [f"t/{number % 4}" for number in range(COUNT)]
    send(core.connect("publisher"), topics, qos)
    assert [writes(client) for client in (everything, *own)] == [1] * 5
    core.flush()
    assert [message.topic.decode() for message in everything.messages()] == topics
    for number, client in enumerate(own):
        assert [message.payload.rstrip(b".") for message in client.messages()] == [
            b"%d" % at for at in range(number, COUNT, 4)
        ]


def test_a_session_with_two_subscriptions_gets_messages_of_both_in_their_order() -> None:
    core = Core()
    subscriber = core.connect("subscriber")
    subscriber.subscribe(Wish(b"t/+", 0), Wish(b"t/1", 1))
    send(core.connect("publisher"), ["t/0", "t/1", "t/2", "t/1", "t/3"], qos=1)
    core.flush()
    messages = subscriber.messages()
    assert [message.topic for message in messages] == [b"t/0", b"t/1", b"t/2", b"t/1", b"t/3"]
    assert [message.qos for message in messages] == [0, 1, 0, 1, 0]


def test_a_retained_message_that_exceeds_a_quota_is_refused() -> None:
    core = Core(quotas=QuotaOptions(default=Quota(retained_messages=3)))
    publisher = core.connect("publisher")
    send(publisher, TOPICS[:5], qos=1, retain=True)
    core.flush()
    reasons = [packet.reason for packet in publisher.received() if isinstance(packet, Ack)]
    assert reasons == [Reason.NO_MATCHING_SUBSCRIBERS] * 3 + [Reason.QUOTA_EXCEEDED] * 2
    assert len([topic for topic in core.broker.retained.values if topic.startswith(b"t/")]) == 3


def test_retained_messages_that_are_replaced_together_are_counted_once() -> None:
    core = Core(limits=Limits(max_retained_messages=2_000))
    publisher = core.connect("publisher")
    for topics in ([TOPICS[0], *TOPICS], TOPICS):  # of other lengths the second time
        send(publisher, topics, retain=True)
        core.flush()
    assert publisher.connection.session is not None
    account = publisher.connection.session.account
    assert account is not None
    assert account.retained_messages == core.broker.retained.messages == COUNT
    sizes = [len(topic) + len(b"%d" % n + b"." * (n % 7)) for n, topic in enumerate(TOPICS)]
    assert account.retained_bytes == core.broker.retained.bytes == sum(sizes)


@pytest.mark.parametrize("topic_filter", ["t/#", "+/+", "t/+", "#"])
def test_more_topics_than_the_cache_holds_take_no_more_memory(topic_filter: str) -> None:
    core = Core(clock=lambda: 0.0)
    subscriber = core.connect("subscriber")
    subscriber.subscribe(topic_filter)
    publisher = core.connect("publisher")
    topics = [f"t/{number}" for number in range(MAX_COVERED_ROUTES + 5_000)]
    for at in range(0, len(topics), 500):
        send(publisher, topics[at : at + 500])
        core.flush()
    assert len(subscriber.messages()) == len(topics)
    assert len(core.broker.subscriptions.cache.routes) <= MAX_COVERED_ROUTES + 10
    other = core.connect("other")
    other.subscribe(topics[-1])
    send(publisher, topics[-3:])
    core.flush()
    assert [message.topic.decode() for message in other.messages()] == topics[-1:]
