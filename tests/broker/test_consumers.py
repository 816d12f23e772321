"""Consumers: every message is given out once, and again only if it was not acknowledged."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pyrite.broker import consumers, fetching
from pyrite.broker.consumers import Consumer
from pyrite.broker.journal import Stream
from pyrite.broker.message import Batch
from pyrite.broker.pending import BLOCK, Block, Pending, Place
from pyrite.broker.timers import TURN
from pyrite.journal.state import DROP_ALL_PENDING, SAVE_CONSUMER, State
from pyrite.protocols.mqtt.packets import Publish, encode
from pyrite.storage.folder import FORMAT
from pyrite.topics.filters import matches
from tests.support.durable import Deferred, Machine, default_streams, examples, quick_folder

WITHIN = 10.0

Fetched = list[tuple[Place, Batch]]


def create(machine: Machine, topic_filter: str = "#", name: str = "c", start: int = 0) -> Consumer:
    """Make a consumer that begins at an offset of each stream."""
    broker = machine.core.broker
    positions = dict.fromkeys(machine.journal.streams, start)
    consumer = Consumer(broker, name, topic_filter.encode(), positions, within=WITHIN)
    broker.consumers[name] = consumer
    machine.journal.state.save_consumer(consumer)
    machine.journal.after(lambda: None)
    machine.core.flush()
    machine.settle()
    return consumer


def publish(machine: Machine, *topics: str, qos: int = 1, prefix: str = "") -> None:
    """Publish a message on each topic that says which of them it is."""
    client = machine.core.connect("publisher")
    for number, topic in enumerate(topics):
        client.publish(topic, f"{prefix}{number}".encode(), qos=qos)


def fetch(consumer: Consumer, most: int = 1_000) -> Fetched:
    """Fetch messages; the answer comes at once."""
    answers: list[Fetched] = []
    ask(consumer, most, answers)
    assert len(answers) == 1
    return answers[0]


def ask(consumer: Consumer, most: int, answers: list[Fetched]) -> None:
    """Have messages fetched: all of them are an answer when there are no more."""
    found: Fetched = []

    def done(count: int) -> None:
        assert count == len(found)
        answers.append(found)

    consumer.fetch(most, lambda place, batch: found.append((place, batch)), done)


def payloads(fetched: Fetched) -> list[bytes]:
    return [batch.payload() for _, batch in fetched]


def acknowledge(consumer: Consumer, fetched: Fetched) -> int:
    """Acknowledge messages, and return how many the consumer knew."""
    answers: list[int] = []
    consumer.acknowledge([place for place, _ in fetched], answers.append)
    consumer.broker.output.flush()
    assert len(answers) == 1
    return answers[0]


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    machine = Machine(folder)
    yield machine
    machine.abandon()


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def test_each_message_is_delivered_once(machine: Machine) -> None:
    consumer = create(machine)
    publish(machine, *["b"] * 10)
    assert payloads(fetch(consumer, 3)) == numbers(0, 3)
    assert payloads(fetch(consumer, 1)) == numbers(3, 4)
    publish(machine, *["b"] * 2, prefix="later ")
    assert payloads(fetch(consumer, 100)) == [*numbers(4, 10), b"later 0", b"later 1"]
    assert fetch(consumer) == []
    publish(machine, "b", prefix="last ")
    assert payloads(fetch(consumer)) == [b"last 0"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_one_batch_are_delivered_one_by_one(machine: Machine, qos: int) -> None:
    consumer = create(machine)
    client = machine.core.connect("publisher")
    for number in range(10):
        client.feed(client.encoded(*_publish(qos, number)))
    machine.core.flush()
    found = [fetch(consumer, most) for most in (1, 2, 3, 100)]
    assert [len(one) for one in found] == [1, 2, 3, 4]
    assert [payload for one in found for payload in payloads(one)] == numbers(0, 10)
    assert [place.offset for one in found for place, _ in one] == list(range(10))
    assert all(batch.count == 1 and batch.qos == qos for one in found for _, batch in one)


def _publish(qos: int, number: int) -> list[bytes]:
    return [encode(Publish(b"b", b"%d" % number, qos, packet_id=number + 1 if qos else 0), 5)]


def test_a_filter_and_several_streams(machine: Machine) -> None:
    consumer = create(machine, "+/x")
    other = create(machine, "a/#", "other")
    topics = ["a/x", "a/y", "b/x", "b/y", "a/x", "b/x", "x"]
    publish(machine, *topics)
    wanted = [b"%d" % number for number, topic in enumerate(topics) if topic.endswith("/x")]
    found = [batch for _ in range(4) for _, batch in fetch(consumer, 1)]
    assert sorted(batch.payload() for batch in found) == wanted
    assert {batch.topic for batch in found} == {b"a/x", b"b/x"}
    assert fetch(consumer) == []
    places = [str(place) for place, _ in fetch(other)]
    assert places == ["a:0", "a:1", "a:2"]


def test_a_consumer_may_start_at_a_later_position(machine: Machine) -> None:
    publish(machine, *["b"] * 6)
    assert payloads(fetch(create(machine, start=4))) == numbers(4, 6)
    latest = create(machine, name="latest")
    latest.positions.update({stream: stream.routed for stream in machine.journal.streams})
    assert fetch(latest) == []
    publish(machine, "b", prefix="new ")
    assert payloads(fetch(latest)) == [b"new 0"]


def test_a_consumer_reads_a_new_stream_from_its_beginning(machine: Machine) -> None:
    consumer = create(machine)
    for stream in list(consumer.positions):
        if stream.name == "a":
            del consumer.positions[stream]
    publish(machine, "a/x", "b")
    assert sorted(payloads(fetch(consumer))) == numbers(0, 2)


def test_concurrent_fetches_never_get_the_same_message(folder: Path) -> None:
    machine = Machine(folder, reading=Deferred)
    consumer = create(machine)
    publish(machine, *["a/x", "b"] * 10)
    answers: list[Fetched] = []
    for most in (3, 4, 5, 100, 1):
        ask(consumer, most, answers)
    assert answers == []
    machine.settle()
    assert [len(one) for one in answers] == [3, 4, 5, 8, 0]
    places = [place for one in answers for place, _ in one]
    assert len(set(places)) == 20
    machine.abandon()


def test_a_message_may_be_acknowledged_while_it_is_fetched_again(folder: Path) -> None:
    machine = Machine(folder, reading=Deferred)
    consumer = create(machine)
    publish(machine, *["b"] * 3)
    answers: list[Fetched] = []
    ask(consumer, 10, answers)
    machine.settle()
    machine.tick(WITHIN + 1)
    ask(consumer, 10, answers)
    acknowledge(consumer, answers[0][:2])
    machine.settle()
    assert payloads(answers[1]) == [b"2"]
    machine.abandon()


def test_messages_not_acknowledged_in_time_are_delivered_again(machine: Machine) -> None:
    consumer = create(machine)
    publish(machine, *["a/x", "b"] * 3)
    first = fetch(consumer, 4)
    assert acknowledge(consumer, first[1:2]) == 1
    machine.tick(WITHIN - 1)
    assert [place for place, _ in fetch(consumer, 1)] not in [[place] for place, _ in first]
    machine.tick(2)
    again = fetch(consumer, 3)
    assert {place for place, _ in again} == {place for place, _ in first} - {first[1][0]}
    assert len(fetch(consumer)) == 1, "the last of the six"
    machine.tick(2 * WITHIN)
    publish(machine, "b", prefix="new ")
    assert payloads(fetch(consumer))[-1] == b"new 0", "those overdue come first"
    assert len(consumer.pending) == 6


def test_acknowledged_messages_are_not_delivered_again(machine: Machine) -> None:
    consumer = create(machine)
    publish(machine, *["b"] * 5)
    found = fetch(consumer)
    assert acknowledge(consumer, found[:3]) == 3
    assert acknowledge(consumer, found[:3]) == 0
    assert acknowledge(consumer, found[2:4]) == 1
    machine.tick(100)
    assert payloads(fetch(consumer)) == [b"4"]
    stream = found[0][0].stream
    answers: list[int] = []
    consumer.acknowledge([Place(stream, 999), Place(stream, -1)], answers.append)
    machine.core.flush()
    assert answers == [0]


def test_an_acknowledgement_is_answered_once_it_is_durable(folder: Path) -> None:
    machine = Machine(folder, writing=Deferred)
    consumer = create(machine)
    publish(machine, "b", "b")
    machine.settle()
    answers: list[int] = []
    consumer.acknowledge([place for place, _ in fetch(consumer)], answers.append)
    machine.core.flush()
    assert answers == []
    machine.settle()
    assert answers == [2]
    machine.crash()
    machine.start()
    assert fetch(machine.core.broker.consumers["c"]) == []
    machine.abandon()


@pytest.mark.parametrize("crash", [False, True])
def test_unacknowledged_messages_are_delivered_again_after_a_restart(machine: Machine, crash: bool) -> None:
    consumer = create(machine, "+/#")
    publish(machine, *["a/x", "b"] * 5)
    found = fetch(consumer, 6)
    assert acknowledge(consumer, found[::2]) == 3
    if crash:
        machine.crash()
        machine.start()
    else:
        machine.restart()
    consumer = machine.core.broker.consumers["c"]
    assert (consumer.topic_filter, consumer.within) == (b"+/#", WITHIN)
    again = fetch(consumer)
    known = {str(place) for place, _ in found}
    acknowledged = {str(place) for place, _ in found[::2]}
    places = [str(place) for place, _ in again]
    assert len(places) == len(set(places)) == 7
    assert set(places[:3]) == known - acknowledged, "those given out before come first"
    assert not set(places) & acknowledged
    assert acknowledge(consumer, again) == 7
    machine.tick(100)
    assert fetch(consumer) == []


def test_fetches_not_recorded_before_a_crash_are_delivered_again(machine: Machine) -> None:
    consumer = create(machine)
    publish(machine, *["b"] * 4)
    found = payloads(fetch(consumer))
    machine.crash()
    machine.start()
    assert payloads(fetch(machine.core.broker.consumers["c"])) == found


def test_a_deleted_consumer_does_not_reappear(machine: Machine) -> None:
    create(machine)
    machine.tick(2)
    del machine.core.broker.consumers["c"]
    machine.journal.state.drop_consumer("c")
    machine.restart()
    assert machine.core.broker.consumers == {}


def test_expired_messages_are_skipped(machine: Machine) -> None:
    consumer = create(machine)
    client = machine.core.connect("publisher")
    client.publish("b", b"short", qos=1, message_expiry=5)
    client.publish("b", b"long", qos=1, message_expiry=500)
    machine.tick(20)
    assert payloads(fetch(consumer)) == [b"long"]
    assert len(consumer.pending) == 1


def test_pending_messages_dropped_by_retention_are_forgotten(folder: Path) -> None:
    machine = Machine(folder, default_streams(fsync="never", segment_bytes=1_000_000))
    consumer = create(machine)
    publish(machine, *["b"] * 3)
    fetch(consumer)
    machine.tick(2)
    machine.crash()  # the disk has lost the messages, and not that they were given out
    machine.start()
    consumer = machine.core.broker.consumers["c"]
    assert len(consumer.pending) == 3
    assert fetch(consumer) == []
    assert list(consumer.pending) == []
    publish(machine, "b", prefix="new ")
    assert payloads(fetch(consumer)) == [b"new 0"]
    machine.abandon()


def test_a_fetch_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MAX_FETCH", 3)
    consumer = create(machine)
    publish(machine, *["b"] * 5)
    assert [len(fetch(consumer, 100)) for _ in range(3)] == [3, 2, 0]


def test_the_number_of_pending_messages_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MAX_PENDING", 4)
    consumer = create(machine)
    publish(machine, *["b"] * 10)
    found = fetch(consumer)
    assert payloads(found) == numbers(0, 4)
    assert fetch(consumer) == []
    assert acknowledge(consumer, found[:1]) == 1
    assert payloads(fetch(consumer)) == numbers(4, 5)


def test_concurrent_fetches_share_one_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MAX_PENDING", 4)
    machine = Machine(folder, reading=Deferred)
    consumer = create(machine)
    publish(machine, *["b"] * 10)
    answers: list[Fetched] = []
    for _ in range(3):
        ask(consumer, 3, answers)
    machine.settle()
    assert [len(one) for one in answers] == [3, 1, 0]
    assert len(consumer.pending) == 4
    machine.abandon()


def test_a_consumer_at_its_bound_still_gets_redeliveries(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever fetched it may have lost it, and could never acknowledge it."""
    monkeypatch.setattr(fetching, "MAX_PENDING", 4)
    consumer = create(machine)
    publish(machine, *["b"] * 10)
    assert len(fetch(consumer)) == 4
    machine.tick(WITHIN + 1)
    assert payloads(fetch(consumer, 3)) == numbers(0, 3)
    assert payloads(fetch(consumer, 3)) == numbers(3, 4)
    assert fetch(consumer) == []
    assert len(consumer.pending) == 4


# What is noted, and when


class SlowClock:
    """A clock by which every look at it is the end of a turn."""

    def __init__(self) -> None:
        self._now = 0.0
        self.step = 2 * TURN

    def __call__(self) -> float:
        self._now += self.step
        return self._now


def waiting(machine: Machine) -> tuple[int, int]:
    """Return how many changes of the state wait to be written, and their size."""
    changes = list(machine.journal.state._changes)
    return len(changes), sum(len(str(values)) for _, values in changes)


def flood(machine: Machine, count: int) -> None:
    """Publish many messages, each its number."""
    client = machine.core.connect("publisher")
    client.feed(b"".join(encode(Publish(b"b", b"%d" % number), 5) for number in range(count)))
    machine.core.flush()
    machine.tick(1)
    machine.settle()


def test_the_size_of_a_record_does_not_depend_on_pending_messages(folder: Path) -> None:
    machine = Machine(folder, writing=Deferred)
    consumer = create(machine)
    flood(machine, 20_000)
    many = [*fetch(consumer, 10_000), *fetch(consumer, 9_000)]
    machine.tick(2)
    machine.settle()
    assert waiting(machine) == (0, 0)
    one = fetch(consumer, 1)
    assert len(one) == 1
    noted, size = waiting(machine)
    assert noted <= 2, "how far it has come, and a block"
    assert size < 1_000
    acknowledged: list[int] = []
    consumer.acknowledge([many[5_000][0], one[0][0]], acknowledged.append)
    noted, size = waiting(machine)
    assert noted <= 3
    assert size < 1_500
    machine.core.flush()
    machine.settle()
    assert acknowledged == [2]
    machine.crash(keep=True)
    machine.start()
    consumer = machine.core.broker.consumers["c"]
    pending = {place.offset for place in consumer.pending}
    assert pending == set(range(19_000)) - {5_000}
    machine.abandon()


def test_a_long_fetch_takes_turns_with_other_work(folder: Path) -> None:
    machine = Machine(folder, clock=SlowClock())
    consumer = create(machine)
    flood(machine, 100)
    broker = machine.core.broker
    answers: list[Fetched] = []
    ask(consumer, 60, answers)
    turns = 1
    while not answers:
        assert broker.turns.has_work
        broker.turns.take()
        turns += 1
        assert turns < 100, "it never ends"
    assert turns >= 60 // fetching.CHUNK_MESSAGES
    assert payloads(answers[0]) == numbers(0, 60)
    acknowledged: list[int] = []
    consumer.acknowledge([place for place, _ in answers[0]] + [answers[0][0][0]] * 100, acknowledged.append)
    assert broker.turns.has_work
    machine.core.flush()
    assert acknowledged == [60]
    assert not consumer.pending
    machine.abandon()


def test_a_crash_during_a_fetch_neither_loses_nor_duplicates_messages(folder: Path) -> None:
    clock = SlowClock()
    machine = Machine(folder, clock=clock)
    consumer = create(machine)
    flood(machine, 100)
    given: Fetched = []
    consumer.fetch(60, lambda place, batch: given.append((place, batch)), lambda count: None)
    machine.core.broker.turns.take()
    assert 0 < len(given) < 60
    acknowledged: list[int] = []
    clock.step = 0.0
    consumer.acknowledge([place for place, _ in given[::2]], acknowledged.append)
    machine.journal.kick()  # what was noted so far is written, and no more is given out
    assert acknowledged == [len(given[::2])]
    machine.crash(keep=True)
    machine.start()
    answers: list[Fetched] = []
    ask(machine.core.broker.consumers["c"], 1_000, answers)
    machine.core.flush()
    dealt_with = {int(batch.payload()) for _, batch in given[::2]}
    again = [int(one) for one in payloads(answers[0])]
    assert sorted(again) == sorted(set(range(100)) - dealt_with)
    machine.abandon()


def test_a_fetch_waits_while_too_many_state_changes_wait(folder: Path) -> None:
    machine = Machine(folder, writing=Deferred)
    consumer = create(machine, "w")
    client = machine.core.connect("publisher")
    far = BLOCK * 5_000
    client.feed(
        b"".join(
            encode(Publish(b"w", b"1"), 5) + encode(Publish(b"b", b""), 5) * (BLOCK - 1)
            for _ in range(far // BLOCK)
        )
    )
    machine.core.flush()
    machine.tick(1)
    machine.settle()
    answers: list[Fetched] = []
    ask(consumer, 10_000, answers)
    assert answers == []
    assert waiting(machine)[0] < 4_200
    assert not machine.journal.full, "no one else waits for it"
    machine.tick(1)
    machine.settle()
    assert [len(one) for one in answers] == [5_000]
    machine.abandon()


@pytest.mark.parametrize("action", ["fetch", "acknowledge"])
def test_a_consumer_deleted_while_in_use_does_not_reappear(folder: Path, action: str) -> None:
    machine = Machine(folder, reading=Deferred)
    consumer = create(machine)
    publish(machine, *["b"] * 4)
    answers: list[Fetched] = []
    ask(consumer, 2, answers)
    machine.settle()
    if action == "fetch":
        ask(consumer, 2, answers)
        ask(consumer, 1, answers)
    consumers.delete(consumer, lambda: None)
    if action == "acknowledge":
        consumer.acknowledge([answers[0][0][0]], lambda known: None)
    machine.settle()
    if action == "fetch":
        assert [len(one) for one in answers] == [2, 0, 0], "whoever asked is answered"
    machine.restart()
    assert machine.core.broker.consumers == {}
    create(machine)
    machine.restart()
    assert not machine.core.broker.consumers["c"].pending
    machine.abandon()


def test_pending_messages_of_format_2_are_migrated(machine: Machine) -> None:
    consumer = create(machine)
    publish(machine, *["a/x", "b"] * 3)
    found = fetch(consumer, 5)
    old = {
        "filter": "#",
        "positions": {stream.number: at for stream, at in consumer.positions.items()},
        "pending": [[place.stream.number, place.offset] for place, _ in found],
        "within": WITHIN,
    }
    machine.stop()
    state = State(machine.data / "state.sqlite")
    state.commit([(SAVE_CONSUMER, ("c", json.dumps(old))), (DROP_ALL_PENDING, ("c",))])
    state.close()
    format_file = machine.data / "format"
    format_file.write_text("pyrite data, format 2\n")
    machine.start()
    assert format_file.read_text() == FORMAT, "an older broker is not to take it for damage"
    consumer = machine.core.broker.consumers["c"]
    assert {str(place) for place in consumer.pending} == {str(place) for place, _ in found}
    again = fetch(consumer)
    assert len(again) == 6
    assert acknowledge(consumer, again[:2]) == 2
    machine.crash(keep=True)
    machine.start()
    consumer = machine.core.broker.consumers["c"]
    assert {str(place) for place in consumer.pending} == {str(place) for place, _ in again[2:]}


class PendingMachine(RuleBasedStateMachine):
    """What is kept of blocks that have changed is what is pending."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = [Stream(number, str(number), []) for number in (1, 2)]
        self.pending = Pending()
        self.expected: dict[Place, float] = {}
        self.kept: dict[Block, int] = {}
        self.now = 0.0

    @rule(stream=st.integers(0, 1), at=st.sampled_from([0, 1, BLOCK - 1, BLOCK]), give=st.booleans())
    def change(self, stream: int, at: int, give: bool) -> None:
        place = Place(self.streams[stream], at)
        if give:
            self.now += 1
            self.pending.add(place, self.now)
            self.expected.pop(place, None)
            self.expected[place] = self.now
        else:
            assert self.pending.discard(place) == (self.expected.pop(place, None) is not None)

    @rule(most=st.integers(0, 5), back=st.integers(0, 10))
    def look(self, most: int, back: int) -> None:
        overdue = [place for place, due in self.expected.items() if due <= self.now - back]
        assert self.pending.overdue(self.now - back, most) == overdue[:most]

    @rule()
    def keep(self) -> None:
        self.kept.update(self.pending.take_changed())
        brought_back = Pending()
        for block, bits in self.kept.items():
            brought_back.restore(block, bits)
        assert set(brought_back) == set(self.pending) == set(self.expected)
        assert list(brought_back.take_changed()) == []


PendingMachine.TestCase.settings = settings(
    max_examples=examples(30), stateful_step_count=30, deadline=None, report_multiple_bugs=False
)
TestPending = PendingMachine.TestCase


# Against a model


class ConsumerMachine(RuleBasedStateMachine):
    """Messages are published, fetched and acknowledged; time passes; brokers end and begin."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.machine = Machine(
            self.stack.enter_context(quick_folder()),
            default_streams(segment_bytes=2_000),
            reading=Deferred,
            clock=SlowClock(),
        )
        self.number = 0
        self.wanted: set[int] = set()
        self.done: set[int] = set()
        """Numbers that were acknowledged."""
        self.out: dict[int, float] = {}
        """Numbers that were given out and not acknowledged, and when they may come again."""
        self.unsure: set[int] = set()
        """Numbers that were given out by a broker that may not have noted it."""
        self.places: dict[int, str] = {}
        self.order: dict[str, int] = {}

    @initialize(topic_filter=st.sampled_from(["#", "a/#", "+/0"]))
    def begin(self, topic_filter: str) -> None:
        self.topic_filter = topic_filter
        create(self.machine, topic_filter)

    @property
    def consumer(self) -> Consumer:
        return self.machine.core.broker.consumers["c"]

    @rule(topics=st.lists(st.sampled_from(["a/0", "a/1", "b/0", "b/1"]), max_size=8), qos=st.integers(0, 2))
    def publish(self, topics: list[str], qos: int) -> None:
        client = self.machine.core.connect("publisher")
        for topic in topics:
            self.number += 1
            client.publish(topic, b"%d" % self.number, qos=qos)
            if matches(self.topic_filter.encode(), topic.encode()):
                self.wanted.add(self.number)

    @rule(counts=st.lists(st.integers(1, 20), min_size=1, max_size=3))
    def fetch(self, counts: list[int]) -> None:
        answers: list[Fetched] = []
        for count in counts:
            ask(self.consumer, count, answers)
        self.machine.settle()
        assert [len(one) <= count for one, count in zip(answers, counts, strict=True)]
        for answer in answers:
            for place, batch in answer:
                self.given(place, batch.payload())

    def given(self, place: Place, payload: bytes) -> None:
        number, now = int(payload), self.machine.elapsed
        assert number in self.wanted
        assert number not in self.done, f"{number} was acknowledged"
        assert self.places.setdefault(number, str(place)) == str(place)
        if number in self.out:
            assert now >= self.out[number], f"{number} was given out {self.out[number] - now} too soon"
        elif number not in self.unsure:
            stream = place.stream.name
            assert number > self.order.get(stream, 0), f"{number} is out of order"
            self.order[stream] = number
        self.unsure.discard(number)
        self.out[number] = now + WITHIN

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        chosen = data.draw(
            st.lists(st.sampled_from(sorted(self.out)), unique=True) if self.out else st.just([])
        )
        streams: dict[str, Stream] = {stream.name: stream for stream in self.machine.journal.streams}
        places = []
        for number in chosen:
            name, _, offset = self.places[number].partition(":")
            places.append(Place(streams[name], int(offset)))
        answers: list[int] = []
        self.consumer.acknowledge(places, answers.append)
        self.machine.core.flush()
        assert answers == [len(chosen)]
        for number in chosen:
            del self.out[number]
            self.done.add(number)

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def time_passes(self, seconds: int) -> None:
        self.machine.tick(seconds)

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        if crash:
            self.machine.crash(keep=True)
            self.machine.start()
            self.unsure |= set(self.out)
            self.out.clear()
        else:
            self.machine.restart()
            self.out = dict.fromkeys(self.out, 0.0)
        self.check_known()

    def check_known(self) -> None:
        """What may not have been noted can be told from what the broker has."""
        pending = {str(place) for place in self.consumer.pending}
        for number in sorted(self.unsure):
            if self.places[number] in pending:
                self.out[number] = 0.0

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.machine.tick(WITHIN + 1)
                for _ in range(3):
                    self.fetch([1_000])
                assert set(self.out) | self.done == self.wanted
        finally:
            self.machine.abandon()
            self.stack.close()


ConsumerMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None, report_multiple_bugs=False
)
TestConsumer = ConsumerMachine.TestCase
