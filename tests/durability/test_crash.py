"""The broker is killed at random moments: no acknowledged message may be lost."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.support.durable import examples
from tests.support.waiting import let_pass

from .broker import Broker
from .peers import Peer, Publisher, Subscriber, drive, number_of

ROUNDS = examples(12)
MESSAGES = 600
"""The maximum that each publisher sends in a round."""
FINISH = 60.0
"""Seconds within which everything must arrive at the end."""


class Log:
    """The contents of the log, read further after every crash."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.numbers: dict[str, list[int]] = {}
        self._next = 0

    def read_on(self) -> None:
        if not (self._broker.data / "streams" / "default").exists():
            return  # it was killed before it could make it
        for rows in self._broker.rows(self._next):
            offsets = rows.column("offset").to_pylist()
            assert offsets == sorted(set(offsets)), "offsets repeat or go back"
            assert offsets[0] >= self._next
            self._next = offsets[-1] + 1
            topics, payloads = rows.column("topic").to_pylist(), rows.column("payload").to_pylist()
            for topic, payload in zip(topics, payloads, strict=True):
                self.numbers.setdefault(topic, []).append(number_of(payload))

    def check(self, publisher: Publisher) -> None:
        """Compare the log with the publisher's acknowledgements."""
        numbers = self.numbers.get(publisher.topic, [])
        there = set(numbers)
        lost = publisher.acknowledged - there
        assert not lost, f"{publisher.topic}: acknowledged, and not in the log: {some(lost)}"
        first_times = list(dict.fromkeys(numbers))
        assert first_times == sorted(first_times), f"{publisher.topic}: not in the order of publishing"
        if len(there) == len(numbers):
            return
        repeated = {number for number, count in Counter(numbers).items() if count > 1}
        wrong = repeated if publisher.qos == 2 else repeated - publisher.resent
        assert not wrong, f"{publisher.topic}: more than once in the log: {some(wrong)}"


def some(numbers: set[int]) -> str:
    """Format a few of many numbers."""
    ordered = sorted(numbers)
    return f"{len(ordered)} of them: {ordered[:5]} ... {ordered[-5:]}"


def cut_short(broker: Broker, source: Random) -> None:
    """Kill the broker while it starts."""
    broker.start(wait=False)
    let_pass(source.uniform(0.3, 0.8), "the start is interrupted at a random moment")
    broker.kill()


def run(broker: Broker, peers: list[Peer], seconds: float) -> None:
    """Let the peers run for a while, and kill the broker meanwhile."""
    for peer in peers:
        peer.dial(broker.port)
    drive(peers, seconds)
    broker.kill()
    for peer in peers:
        peer.hang_up()


SMALL_SEGMENTS = """
[[stream]]
name = "default"
segment_bytes = 65536
"""
"""So that crashes meet the sealing of segments, their change to Parquet, and their merging."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "config"), [(1, ""), (2, SMALL_SEGMENTS)], ids=["one segment", "many"])
def test_crashes_lose_nothing_acknowledged(stopped_broker: Broker, seed: int, config: str) -> None:
    broker, source = stopped_broker, Random(seed)
    broker.configure(config)
    once = Publisher("at-least-once", "crash/1", 1, 100, source)
    twice = Publisher("exactly-once", "crash/2", 2, 80, source)
    publishers = [once, twice, Publisher("old", "crash/3", 1, 30, source, version=4)]
    level_1 = Subscriber("level-1", "crash/#", 1, source)
    level_2 = Subscriber("level-2", "crash/#", 2, source, receive_maximum=150)
    old = Subscriber("level-2-old", "crash/+", 2, source, version=4)
    sleeper = Subscriber("sleeper", "crash/2", 2, source)
    pair = [Subscriber(f"member-{name}", "$share/pair/crash/#", 1, source) for name in "ab"]
    awake = [level_1, level_2, old, *pair]
    log = Log(broker)

    subscribers = [*awake, sleeper]
    broker.start()
    for subscriber in subscribers:
        subscriber.dial(broker.port)
    assert drive(subscribers, 10, lambda: all(one.subscribed for one in subscribers))
    broker.kill()
    for subscriber in subscribers:
        subscriber.hang_up()

    for number in range(ROUNDS):
        try:
            if source.random() < 0.1:
                cut_short(broker, source)
            broker.start()
            for publisher in publishers:
                publisher.limit = publisher.published + MESSAGES
            some_peers = [peer for peer in awake if source.random() < 0.8]
            run(broker, [*publishers, *some_peers], source.uniform(0.02, 0.4))
            log.read_on()
            for publisher in publishers:
                log.check(publisher)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, round {number}: {error}") from error

    broker.start()
    for publisher in publishers:
        publisher.limit = publisher.published
    everyone: list[Peer] = [*publishers, *subscribers]
    for peer in everyone:
        peer.dial(broker.port)
    topics = {publisher.topic: publisher.published for publisher in publishers}

    def complete() -> bool:
        return (
            all(one.finished for one in publishers)
            and all(one.count(topic) >= most for one in awake[:3] for topic, most in topics.items())
            and sleeper.count(twice.topic) >= twice.published
            and all(sum(one.count(topic) for one in pair) >= most for topic, most in topics.items())
            and all(len(in_pair(topic)) >= most for topic, most in topics.items())
        )

    def in_pair(topic: str) -> set[int]:
        return {number for one in pair for number in one.arrived.get(topic, ())}

    drive(everyone, FINISH, complete)
    drive(everyone, 0.5)  # nothing more may come
    for peer in everyone:
        peer.hang_up()
    broker.stop()

    whole = Log(broker)
    whole.read_on()
    for publisher in publishers:
        everything = list(range(publisher.published))
        whole.check(publisher)
        assert sorted(publisher.acknowledged) == everything, f"seed {seed}: {publisher.client_id} waits"
        receivers = [level_1, level_2, old, *([sleeper] if publisher is twice else [])]
        for subscriber in receivers:
            where = f"seed {seed}: {subscriber.client_id}, {publisher.topic}"
            lost = set(everything) - set(subscriber.firsts(publisher.topic))
            assert not lost, f"{where}: lost {some(lost)}"
            assert subscriber.firsts(publisher.topic) == everything, f"{where}: not in order"
            if min(publisher.qos, subscriber.qos) == 2:
                repeated = subscriber.repetitions(publisher.topic)
                assert not repeated, f"{where}: more than once: {some(repeated)}"
        lost = set(everything) - in_pair(publisher.topic)
        assert not lost, f"seed {seed}: the pair, {publisher.topic}: lost {some(lost)}"
