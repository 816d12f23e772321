"""Requests of the HTTP process are answered in short turns, however much the broker holds."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyrite.broker.limits import Limits
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.ipc.channel import frame
from pyrite.server.questions import Questions
from pyrite.server.reads import Reads
from tests.support.core import Core

MANY = 100_000
LONGEST = 0.010
"""Seconds of processor time of one turn."""
DEEP = b"/".join([b"level"] * 100)
WHO = {"username": None, "password": None, "certificate": None, "address": "192.0.2.1"}


class Turns:
    """A broker with 100,000 of everything, and the durations of its turns."""

    def __init__(self) -> None:
        self.core = Core(Limits(max_subscriptions_per_client=2 * MANY), clock=time.monotonic)
        broker = self.core.broker
        for number in range(MANY):
            topic = b"kept/%d/%d" % (number % 300, number)
            broker.retained[topic] = Batch(topic, b"x" * 100, retain=True)
        for number in range(0, MANY, 2):
            broker.catalog.created[b"made/%d" % number] = True
        for number in range(300):
            topic = b"large/%d" % number
            broker.retained[topic] = Batch(topic, bytes(range(256)) * 200, retain=True)
            topic = b"deep/%s/%d" % (DEEP, number)
            broker.retained[topic] = Batch(topic, b"\xff\0" * 100, retain=True)
        broker.retained[b"huge"] = Batch(b"huge", b"\xe9" * 4 * 1024 * 1024, retain=True)
        for number in range(MANY):
            broker.client_ids.add(f"away-{number}")
        for number in range(20_000):
            broker.quotas.restored(f"user:{number:05}")
        self.clients = [self.core.connect(f"client-{number:04}") for number in range(1_500)]
        session = broker.sessions["client-0000"]
        session.subscriptions = {}
        for number in range(MANY):
            topic_filter = b"mine/%d/%s" % (number, DEEP if number < 500 else b"+")
            session.subscriptions[topic_filter] = Subscription(session, topic_filter, 1)
        self.questions = Questions(broker, list, lambda *_: None, False, Reads(broker.quotas))
        self.longest = 0.0
        self.answers: list[dict[str, Any]] = []
        self._number = 0

    def ask(self, question: str, **what: Any) -> None:
        """Ask in a turn of its own, and encode the answer in it, as for the HTTP process."""
        self._number += 1
        message = {"number": self._number, "ask": question, "who": WHO, **what}

        def answer(attached: bytes = b"", **found: Any) -> None:
            frame({"number": message["number"], **found}, attached)
            self.answers.append(found)

        self._timed(lambda: self.questions.known[question](message, answer))

    def finish(self) -> None:
        """Run all turns."""
        while self.core.broker.has_interrupted:
            self._timed(self.core.broker.take_turns)

    def longest_of(self, work: Callable[[], object]) -> float:
        """Return the longest turn, the minimum of three tries, since a long turn is long each time."""
        longest = []
        for _ in range(3):
            self.longest = 0.0
            self.answers.clear()
            work()
            longest.append(self.longest)
        return min(longest)

    def _timed(self, call: Callable[[], object]) -> None:
        began = time.thread_time()
        call()
        self.longest = max(self.longest, time.thread_time() - began)


@pytest.fixture(scope="module")
def everything() -> Iterator[Turns]:
    turns = Turns()
    gc.collect()
    gc.freeze()
    gc.disable()  # the broker runs it as it sees fit; here it would be measured with whoever comes first
    yield turns
    gc.enable()
    gc.unfreeze()


QUESTIONS: dict[str, list[dict[str, Any]]] = {
    "topics": [
        {"filter": one, "limit": limit, "after": after}
        for one in ("#", "+/+/7", "large/#", "deep/#", "kept/1/#", "missing/#", "#")
        for limit, after in ((1_000, None), (1, "kept/2"), (100, "zzz"))
    ],
    "topic": [{"topic": one} for one in ("huge", "large/1", "kept/1/1", "missing")],
    "tree": [
        {"below": below, "limit": 1_000, "after": None} for below in (None, "kept", "made", "deep", "-")
    ],
    "quotas": [{"limit": 1_000, "after": after} for after in (None, "address:1")],
    "clients": [{"limit": limit, "after": after} for limit in (1, 1_000) for after in (None, "client-0500")],
    "client": [{"id": one} for one in ("client-0000", "client-0001", "missing")],
    "disconnect": [{"id": "missing"}],
    "publish": [
        {
            "message": {
                "topic": "made/2",
                "qos": 1,
                "retain": retain,
                "payload_format": None,
                "message_expiry": None,
                "content_type": "x" * 65_535,
                "response_topic": "y" * 65_535,
                "correlation_data_base64": "QUFB" * 20_000,
                "user_properties": [["key", "v" * 250]] * 1_000,
            },
            "attached": b"x" * 1_000_000,
        }
        for retain in (False, True)
    ],
    "create": [{"topic": f"made/{number}"} for number in (1, 2)],
    "delete": [{"topic": f"made/{number}"} for number in (4, 6, 8)],
    "pull": [{"name": "c", "filter": one, "max": 1_000, "wait": 0} for one in (None, "#")],
    "acknowledge": [{"name": "c", "filter": None, "stream": "default", "offsets": list(range(1_000))}],
    "streams": [{}],
    "read": [{"stream": "default", "filter": "#"}],
    "figures": [{}],
    "figures here": [{}],
    "broker": [{}],
    "enter": [{"action": "publish"}],
    "health": [{}],
    "ready": [{}],
}


def test_every_question_is_tried(everything: Turns) -> None:
    assert set(QUESTIONS) == set(everything.questions.known)


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_takes_a_long_turn(everything: Turns, question: str) -> None:
    def work() -> None:
        for what in QUESTIONS[question]:
            everything.ask(question, **what)
            everything.finish()

    assert everything.longest_of(work) < LONGEST
    assert everything.answers


def test_many_questions_at_one_time_take_no_long_turn_together(everything: Turns) -> None:
    def work() -> None:
        for _ in range(20):
            for question in ("topics", "tree", "clients", "client"):
                everything.ask(question, **QUESTIONS[question][0])
        everything.finish()

    assert everything.longest_of(work) < LONGEST
    assert sum("found" in one for one in everything.answers) == 80
