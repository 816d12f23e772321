"""Packets handled in a batch have the same effect as the same packets handled one by one.

A connection gathers similar PUBLISH packets into batches, caches the header of the last one, and forwards
bytes unchanged. Whatever it gathers, every client must receive what it would have received had each packet
come alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker.access import Access, Credentials
from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.protocols.mqtt.packets import V5, V311, Ack, Packet, Ping, Publish, Wish, encode
from tests.support.core import Client, Core

TOPICS = ["a", "a/b", "a/bb", "b", "no", "$d/x", "a/$s"]
FILTERS = ["#", "a/#", "+", "a/+", "a", "b", "a/b", "no", "$d/#", "+/+"]


@dataclass
class Reader:
    """Settings of one subscriber."""

    version: int
    wishes: list[Wish]
    subscribing: dict[str, Any] = field(default_factory=dict)
    connecting: dict[str, Any] = field(default_factory=dict)
    away: bool = False
    """Whether it is not connected while the messages come."""
    returns_as: int = V5


@dataclass
class Setting:
    """A broker and its clients."""

    publisher: int
    publisher_wishes: list[Wish]
    readers: list[Reader]
    members: list[int]
    """The versions of the members of one shared subscription."""
    member_qos: int
    max_retained: int = 1_000
    check_payload_format: bool = False
    deny: bool = False


class Denies(Access):
    """Allows no one to publish on "no"."""

    checks_topics = True

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        return topic != "no"


FLAGS = st.booleans()


@st.composite
def wishes(draw: st.DrawFn, version: int) -> Wish:
    flags = FLAGS if version == V5 else st.just(False)
    return Wish(draw(st.sampled_from(FILTERS)).encode(), draw(st.integers(0, 2)), draw(flags), draw(flags), 0)


@st.composite
def readers(draw: st.DrawFn) -> Reader:
    version = draw(st.sampled_from([V5, V311]))
    reader = Reader(version, draw(st.lists(wishes(version), min_size=1, max_size=3)))
    if version == V5:
        reader.subscribing = draw(
            st.fixed_dictionaries({}, optional={"subscription_identifier": st.sampled_from([1, 200])})
        )
        reader.connecting = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "topic_alias_maximum": st.sampled_from([1, 2, 10]),
                    "maximum_packet_size": st.sampled_from([40, 60, 200]),
                    "receive_maximum": st.sampled_from([1, 2, 5]),
                },
            )
        )
    reader.away = draw(st.sampled_from([False, False, True]))
    reader.returns_as = draw(st.sampled_from([V5, V311]))
    return reader


@st.composite
def settings_of_brokers(draw: st.DrawFn) -> Setting:
    publisher = draw(st.sampled_from([V5, V311]))
    return Setting(
        publisher,
        draw(st.lists(wishes(publisher), max_size=2)),
        draw(st.lists(readers(), min_size=1, max_size=4)),
        draw(st.lists(st.sampled_from([V5, V311]), max_size=3)),
        draw(st.integers(0, 2)),
        draw(st.sampled_from([1_000, 2])),
        draw(FLAGS),
        draw(FLAGS),
    )


@st.composite
def traffic(draw: st.DrawFn, version: int) -> list[Packet]:
    """Return what a publisher sends: runs of similar packets with other packets in between."""
    packets: list[Packet] = []
    aliases: dict[int, bytes] = {}
    for _ in range(draw(st.integers(1, 6))):
        topic = draw(st.sampled_from(TOPICS)).encode()
        qos = draw(st.integers(0, 2))
        retain = draw(st.sampled_from([False, False, True]))
        dup = draw(FLAGS) if qos else False
        properties: dict[str, Any] = {}
        if version == V5:
            properties = draw(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "message_expiry": st.sampled_from([1, 100]),
                        "user_property": st.just([("k", "v")]),
                        "payload_format": st.integers(0, 1),
                        "content_type": st.sampled_from(["x", "y", "text/plain"]),
                    },
                )
                if draw(FLAGS)
                else st.just({})
            )
            if draw(st.sampled_from([False, False, True])):
                alias = draw(st.integers(1, 2))
                if alias in aliases and draw(FLAGS):
                    topic = b""
                else:
                    aliases[alias] = topic
                properties = {**properties, "topic_alias": alias}
        same_topic = draw(FLAGS)
        for _ in range(draw(st.integers(1, 6))):
            if not same_topic and "topic_alias" not in properties:
                topic = draw(st.sampled_from(TOPICS)).encode()
            # Differ from the last packet in one respect, which a fast path might miss.
            match draw(st.sampled_from([None, None, None, "content type", "expiry", "retain", "dup"])):
                case "content type" if "content_type" in properties:
                    properties = {**properties, "content_type": draw(st.sampled_from(["x", "y"]))}
                case "expiry" if "message_expiry" in properties:
                    properties = {**properties, "message_expiry": draw(st.integers(1, 3))}
                case "retain":
                    retain = not retain
                case "dup":
                    dup = bool(qos) and not dup
            size = draw(st.sampled_from([0, 3, 3, 3, 30, 125, 20_000]))
            payload = b"%03d" % len(packets) + b"." * (size - 3) if size else b""
            if size and draw(st.sampled_from([False, False, False, True])):
                payload = payload + b"\xff"
            packet_id = draw(st.integers(1, 12) | st.integers(250, 260)) if qos else 0
            packets.append(Publish(topic, payload, qos, retain, dup, packet_id, dict(properties)))
        if draw(st.sampled_from([False, False, True])):
            others: list[Packet] = [Ping(fields.PINGREQ), *(Ack(fields.PUBREL, n) for n in range(1, 6))]
            packets.append(draw(st.sampled_from(others)))
    return packets


Seen = tuple[bytes, bytes, int, bool, dict[str, Any]]


def drain(client: Client, allowed: dict[str, Any]) -> list[Seen]:
    """Receive and acknowledge until nothing more comes; check packet ids, aliases and sizes."""
    aliases: dict[int, bytes] = {}
    seen: list[Seen] = []
    while True:
        messages = client.messages()
        if not messages:
            return seen
        in_flight = [message.packet_id for message in messages if message.qos]
        assert 0 not in in_flight
        assert len(set(in_flight)) == len(in_flight)
        assert len(in_flight) <= allowed.get("receive_maximum", 65_535)
        for message in messages:
            size = len(encode(message, client.version))
            assert size <= allowed.get("maximum_packet_size", size)
            properties = dict(message.properties)
            alias = properties.pop("topic_alias", None)
            topic = message.topic
            if alias is not None:
                assert 1 <= alias <= allowed["topic_alias_maximum"]
                topic = topic or aliases[alias]
                aliases[alias] = topic
            assert topic
            if not message.qos:
                assert message.packet_id == 0
                assert not message.dup
            seen.append((topic, message.payload, message.qos, message.retain, properties))
        client.finish(messages)


def effects(setting: Setting, packets: list[Packet], pieces: list[int] | None) -> dict[str, Any]:
    """Set up clients, send the packets one by one or in pieces, and return everything that clients see."""
    core = Core(
        Limits(max_retained_messages=setting.max_retained),
        Denies() if setting.deny else None,
        MqttOptions(check_payload_format=setting.check_payload_format),
    )
    clients: list[Client] = []
    for number, reader in enumerate(setting.readers):
        lasting = {"session_expiry": 100} if reader.version == V5 else {}
        client = core.connect(
            f"reader{number}", reader.version, clean_start=False, **lasting, **reader.connecting
        )
        client.subscribe(*reader.wishes, **reader.subscribing)
        clients.append(client)
        if reader.away:
            client.drop()
    members = [core.connect(f"member{n}", version) for n, version in enumerate(setting.members)]
    for member in members:
        member.subscribe("$share/g/#", qos=setting.member_qos)
    publisher = core.connect("publisher", setting.publisher)
    if setting.publisher_wishes:
        publisher.subscribe(*setting.publisher_wishes)
    core.broker.output.flush()

    encoded = [encode(packet, setting.publisher) for packet in packets]
    if pieces is None:
        for data in encoded:
            publisher.send(data)
    else:
        whole = b"".join(encoded)
        cuts = [0, *sorted({cut % (len(whole) + 1) for cut in pieces}), len(whole)]
        for start, stop in pairwise(cuts):
            if start < stop:
                publisher.send(whole[start:stop])
    assert not publisher.closed

    answers = []
    own: list[Seen] = []
    for packet in publisher.received():
        if isinstance(packet, Publish):
            own.append((packet.topic, packet.payload, packet.qos, packet.retain, packet.properties))
        elif isinstance(packet, Ack):
            # A server MAY answer "no matching subscribers" (3.5.2.1); for a duplicate either answer is right.
            reason = 0 if packet.type == fields.PUBREC and packet.reason == 0x10 else packet.reason
            answers.append((packet.type, packet.packet_id, reason))
        else:
            answers.append((-1, 0, 0))
    seen: dict[str, Any] = {"answers": answers, "own": own}
    for number, (reader, client) in enumerate(zip(setting.readers, clients, strict=True)):
        allowed = reader.connecting
        if reader.away:
            lasting = {"session_expiry": 100} if reader.returns_as == V5 else {}
            allowed = reader.connecting if reader.returns_as == V5 else {}
            client = core.connect(
                f"reader{number}", reader.returns_as, clean_start=False, **lasting, **allowed
            )
            assert client.connack is not None
            assert client.connack.session_present
        seen[f"reader{number}"] = drain(client, allowed)
    shared: Counter[tuple[bytes, bytes, int]] = Counter()
    for member in members:
        taken = drain(member, {})
        # The broker chooses the member of a group; the order of each topic must hold.
        shared.update((topic, payload, qos) for topic, payload, qos, _, _ in taken)
        for topic in TOPICS:
            numbers = [p[:3] for t, p, _, _, _ in taken if t == topic.encode() and p]
            assert numbers == sorted(numbers)
    seen["shared"] = shared
    seen["retained"] = {
        topic: (batch.payload(0), batch.qos, batch.properties and batch.properties.content_type)
        for topic, batch in core.broker.retained.values.items()
    }
    figures = core.broker.figures
    seen["figures"] = (
        figures.packets_received,
        figures.publish_received,
        figures.publish_bytes_received,
        figures.messages_stored,
    )
    return seen


@settings(max_examples=200, deadline=None)
@given(settings_of_brokers(), st.data())
def test_packets_in_one_piece_have_the_same_effect_as_one_by_one(
    setting: Setting, data: st.DataObject
) -> None:
    packets = data.draw(traffic(setting.publisher))
    assert effects(setting, packets, []) == effects(setting, packets, None)


@settings(max_examples=120, deadline=None)
@given(settings_of_brokers(), st.lists(st.integers(0, 100_000), max_size=8), st.data())
def test_packets_cut_anywhere_have_the_same_effect_as_one_by_one(
    setting: Setting, pieces: list[int], data: st.DataObject
) -> None:
    packets = data.draw(traffic(setting.publisher))
    assert effects(setting, packets, pieces) == effects(setting, packets, None)


def alternating(topics: list[str], version: int, qos: int, count: int) -> list[Packet]:
    return [
        Publish(
            topics[n % len(topics)].encode(), b"%03d" % n + b"." * (n % 3), qos, packet_id=n + 1 if qos else 0
        )
        for n in range(count)
    ]


def test_a_long_run_of_alternating_topics_is_delivered_in_order() -> None:
    for version in (V5, V311):
        for qos in (0, 1, 2):
            setting = Setting(
                version,
                [],
                [
                    Reader(V5, [Wish(b"#", 2)]),
                    Reader(V311, [Wish(b"#", 1)]),
                    Reader(V5, [Wish(b"a/#", 2)], {"subscription_identifier": 7}),
                    Reader(V5, [Wish(b"#", 1)], {}, {"topic_alias_maximum": 2, "receive_maximum": 3}),
                    Reader(V311, [Wish(b"+/+", 2)], away=True, returns_as=V311),
                ],
                [V5, V311],
                1,
            )
            packets = alternating(["a", "a/b", "b", "a/bb"], version, qos, 120)
            assert effects(setting, packets, []) == effects(setting, packets, None)


READERS = [
    Reader(V5, [Wish(b"#", 2)]),
    Reader(V5, [Wish(b"#", 0)]),
    Reader(V5, [Wish(b"#", 1, False, True)], {"subscription_identifier": 7}),
    Reader(V5, [Wish(b"#", 2)], {}, {"topic_alias_maximum": 1, "receive_maximum": 2}),
    Reader(V311, [Wish(b"#", 1)]),
    Reader(V5, [Wish(b"#", 2)], away=True),
]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"content_type": "x"}, {"content_type": "y"}),
        ({"content_type": "xy"}, {"response_topic": "xy"}),
        ({"message_expiry": 1}, {"message_expiry": 2}),
        ({"user_property": [("k", "v")]}, {"user_property": [("k", "w")]}),
        ({"payload_format": 0}, {"payload_format": 1}),
        ({"correlation_data": b"1"}, {"content_type": "1"}),
        ({}, {"content_type": "x"}),
        ({"topic_alias": 1}, {"topic_alias": 2}),
    ],
)
def test_packets_that_differ_in_one_property_keep_their_properties(
    one: dict[str, Any], other: dict[str, Any], qos: int
) -> None:
    setting = Setting(V5, [], READERS, [V5], qos)
    for pattern in ("ab", "aabb", "abab", "aaba", "baab"):
        packets: list[Packet] = [
            Publish(
                b"t",
                b"%03d" % number,
                qos,
                packet_id=number + 1 if qos else 0,
                properties=dict(one if letter == "a" else other),
            )
            for number, letter in enumerate(pattern)
        ]
        assert effects(setting, packets, []) == effects(setting, packets, None)


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize(
    ("one", "other"), [(0x30, 0x31), (0x32, 0x33), (0x32, 0x34), (0x32, 0x3A), (0x34, 0x3C)]
)
def test_packets_that_differ_in_their_flags_keep_their_flags(version: int, one: int, other: int) -> None:
    setting = Setting(version, [], READERS, [V5], 2)
    for pattern in ("ab", "aabb", "abab", "aaba", "baab"):
        packets: list[Packet] = []
        for number, letter in enumerate(pattern):
            flags = one if letter == "a" else other
            qos = flags >> 1 & 3
            packet_id = number + 1 if qos else 0
            packets.append(Publish(b"t", b"%03d" % number, qos, bool(flags & 1), bool(flags & 8), packet_id))
        assert effects(setting, packets, []) == effects(setting, packets, None)


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_duplicate_in_the_same_piece_has_the_same_effect_as_alone(version: int, qos: int) -> None:
    setting = Setting(version, [], READERS, [V5], 2)
    for ids in ([1, 1], [1, 2, 1], [1, 2, 3, 2, 4], [5, 5, 5]):
        for topics in ([b"t"], [b"t", b"uu"]):
            packets: list[Packet] = [
                Publish(topics[number % len(topics)], b"%03d" % number, qos, packet_id=packet_id)
                for number, packet_id in enumerate(ids)
            ]
            seen = effects(setting, packets, [])
            assert seen == effects(setting, packets, None)
            assert len(seen["reader0"]) == (len(ids) if qos == 1 else len(set(ids)))
