"""A session against a simple model: whatever happens to its connection, no message is lost or duplicated.

One client with a persistent session subscribes, disconnects, reconnects and acknowledges at random while
messages are published. The model knows the subscriptions and the messages that the client must have received
in the end: QoS 1 at least once, QoS 2 exactly once, in the order of publishing for each topic.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import V5, V311, Ack, Publish
from pyrite.topics.filters import matches
from tests.support.core import Client, Core

TOPICS = ["t/0", "t/1", "t/2"]
FILTERS = ["t/0", "t/1", "t/#", "t/+"]
KEPT = ["r/0", "r/1"]
EXPIRY = 1_000


class SessionMachine(RuleBasedStateMachine):
    """Actions of the client and of a publisher, and what must hold after them."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(Limits(max_waiting_bytes=200))
        self.publisher = self.core.connect("publisher")
        self.client: Client | None = None
        self.lasts = float(EXPIRY)
        self.away = 0.0
        self.number = 0
        # What the model knows.
        self.subscriptions: dict[str, int] = {}
        self.retained: dict[str, bytes] = {}
        self.expected: dict[int, tuple[str, int]] = {}
        """By number: topic and quality of service of what the client must get."""
        self.allowed: set[int] = set()
        """Numbers that the client may get with QoS 0, or may not."""
        # What the client has.
        self.got: list[tuple[str, int, int]] = []
        self.count: Counter[int] = Counter()
        self.unfinished: list[tuple[int, int]] = []
        """Packets to acknowledge: the type of the acknowledgement, and the id."""
        self.half_received: set[int] = set()

    @initialize(version=st.sampled_from([V5, V311]))
    def begin(self, version: int) -> None:
        self.connect(version, False, None)

    def connect(self, version: int, clean: bool, window: int | None) -> None:
        wishes: dict[str, Any] = {}
        if version == V5:
            wishes = {"session_expiry": EXPIRY}
            if window is not None:
                wishes["receive_maximum"] = window
        known = self.known()
        self.client = self.core.connect("client", version, clean_start=clean, **wishes)
        assert self.client.connack is not None
        present = self.client.connack.session_present
        assert present is (known and not clean)
        self.unfinished = []
        if not present:
            self.forget()
        if version == V311 and clean:
            self.lasts = 0.0
        else:
            self.lasts = float(EXPIRY) if version == V5 else float("inf")
        self.away = 0.0
        self.receive()
        if not present:
            self.subscribe("t/#", 2)

    def known(self) -> bool:
        """Whether the broker must still have the client's session."""
        if self.client is not None:
            return self.lasts > 0
        return "client" in self.core.broker.sessions.by_id

    def forget(self) -> None:
        """Drop the expectations of a session that has ended."""
        self.subscriptions.clear()
        for number in list(self.expected):
            if not self.count[number]:
                del self.expected[number]
        self.half_received.clear()

    def receive(self) -> None:
        """Receive as a client must: a QoS 2 message whose packet id is not released is a duplicate."""
        if self.client is None:
            return
        for packet in self.client.received():
            if isinstance(packet, Publish):
                number = int(packet.payload)
                fresh = not self.count[number]
                if packet.qos == 2:
                    if packet.packet_id in self.half_received:
                        assert packet.dup
                    else:
                        self.half_received.add(packet.packet_id)
                        self.count[number] += 1
                    self.unfinished.append((fields.PUBREC, packet.packet_id))
                else:
                    self.count[number] += 1
                    if packet.qos == 1:
                        assert packet.dup or fresh
                        self.unfinished.append((fields.PUBACK, packet.packet_id))
                if fresh:
                    self.got.append((packet.topic.decode(), number, packet.qos))
            elif isinstance(packet, Ack):
                assert packet.type == fields.PUBREL
                assert packet.reason == 0
                self.half_received.discard(packet.packet_id)
                self.unfinished.append((fields.PUBCOMP, packet.packet_id))

    # What may happen

    @rule(
        messages=st.lists(
            st.tuples(st.sampled_from(TOPICS), st.integers(0, 2), st.sampled_from([0, 0, 60])),
            min_size=1,
            max_size=6,
        )
    )
    def publish(self, messages: list[tuple[str, int, int]]) -> None:
        packets = []
        for topic, qos, padding in messages:
            self.number += 1
            payload = b"%d" % self.number + b" " * padding
            packet_id = self.publisher.packet_id() if qos else 0
            packets.append(Publish(topic.encode(), payload, qos, packet_id=packet_id))
            granted = [q for f, q in self.subscriptions.items() if matches(f.encode(), topic.encode())]
            if not granted:
                continue
            quality = min(qos, max(granted))
            if quality:
                self.expected[self.number] = (topic, quality)
            elif self.client is not None:
                self.allowed.add(self.number)
                if not self.client.transport.slow:
                    self.expected[self.number] = (topic, 0)
        self.publisher.send(*packets)
        self.publisher.send(*(Ack(fields.PUBREL, packet.packet_id) for packet in packets if packet.qos == 2))
        self.publisher.received()
        self.receive()

    @rule(
        messages=st.lists(st.tuples(st.sampled_from(KEPT), st.sampled_from([b"", b"x", b"y"])), max_size=4),
        qos=st.integers(0, 2),
    )
    def retain(self, messages: list[tuple[str, bytes]], qos: int) -> None:
        packets = []
        for topic, payload in messages:
            packet_id = self.publisher.packet_id() if qos else 0
            packets.append(Publish(topic.encode(), payload, qos, True, packet_id=packet_id))
            self.retained.pop(topic, None)
            if payload:
                self.retained[topic] = payload
        self.publisher.send(*packets)
        self.publisher.received()

    @precondition(lambda self: self.client is not None)
    @rule(topic_filter=st.sampled_from(FILTERS), qos=st.integers(0, 2))
    def subscribe(self, topic_filter: str, qos: int) -> None:
        assert self.client is not None
        assert self.client.subscribe(topic_filter, qos=qos) == [qos]
        self.subscriptions[topic_filter] = qos

    @precondition(lambda self: self.client is not None)
    @rule(topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, topic_filter: str) -> None:
        assert self.client is not None
        reasons = self.client.unsubscribe(topic_filter)
        if self.client.version == V5:
            assert reasons == [0 if topic_filter in self.subscriptions else 0x11]
        self.subscriptions.pop(topic_filter, None)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def acknowledge_some(self, data: st.DataObject) -> None:
        chosen = data.draw(
            st.lists(st.integers(0, len(self.unfinished) - 1), min_size=1, max_size=4, unique=True)
        )
        packets = [self.unfinished[index] for index in chosen]
        self.unfinished = [one for index, one in enumerate(self.unfinished) if index not in chosen]
        assert self.client is not None
        self.client.send(*(Ack(kind, packet_id) for kind, packet_id in packets))
        self.receive()

    @precondition(lambda self: self.client is not None)
    @rule(cleanly=st.booleans())
    def leave(self, cleanly: bool) -> None:
        assert self.client is not None
        if cleanly:
            self.client.disconnect()
        else:
            self.client.drop()
        self.client = None
        self.unfinished = []
        if self.lasts == 0:
            self.forget()

    @rule(
        version=st.sampled_from([V5, V311]),
        clean=st.sampled_from([False] * 7 + [True]),
        window=st.sampled_from([None, 1, 2, 5]),
    )
    def come_back_or_take_over(self, version: int, clean: bool, window: int | None) -> None:
        self.connect(version, clean, window)

    @precondition(lambda self: self.client is not None)
    @rule()
    def read_slowly(self) -> None:
        assert self.client is not None
        self.client.transport.slow = True

    @precondition(lambda self: self.client is not None)
    @rule()
    def read_all(self) -> None:
        assert self.client is not None
        self.client.take_all()
        self.receive()

    @rule(seconds=st.sampled_from([1, 100, 100, 2_000]))
    def time_passes(self, seconds: int) -> None:
        self.core.tick(seconds)
        if self.client is None:
            self.away += seconds
            if self.away > self.lasts:
                assert "client" not in self.core.broker.sessions.by_id
                self.forget()

    # What must hold

    @invariant()
    def retained_messages_are_those_of_the_model(self) -> None:
        kept = {topic.decode(): batch.payload() for topic, batch in self.core.broker.retained.values.items()}
        assert kept == self.retained

    @invariant()
    def nothing_comes_that_no_one_asked_for(self) -> None:
        for _, number, qos in self.got:
            assert number in self.expected or number in self.allowed
            if number in self.expected:
                assert qos == self.expected[number][1]

    def teardown(self) -> None:
        """Reconnect, receive everything, and require every expected message."""
        self.connect(V5, False, 5)
        while self.unfinished:
            packets, self.unfinished = self.unfinished, []
            assert self.client is not None
            self.client.send(*(Ack(kind, packet_id) for kind, packet_id in packets))
            self.receive()
        for number, (_, quality) in self.expected.items():
            if quality == 1:
                assert self.count[number] >= 1, f"{number} is lost"
            else:
                assert self.count[number] == 1, f"{number} came {self.count[number]} times"
        for topic in TOPICS:
            for quality in range(3):
                numbers = [number for t, number, qos in self.got if (t, qos) == (topic, quality)]
                assert numbers == sorted(numbers), f"out of order: {numbers}"
        assert self.core.broker.figures.messages_stored == 0
        assert self.core.broker.sessions.by_id["client"].inflight_messages == 0


SessionMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestSession = SessionMachine.TestCase
