"""Requests of the HTTP process are answered in short turns, however much the broker holds."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import UNSET, Raw, Struct

from pyrite.broker.limits import Limits
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.ipc.api import ENDPOINTS
from pyrite.ipc.api.broker import CheckRight, GetBroker, GetHealth, GetReadiness
from pyrite.ipc.api.clients import DisconnectClient, GetClient, ListClients
from pyrite.ipc.api.cluster import GetCluster
from pyrite.ipc.api.log import (
    Acknowledge,
    Acknowledged,
    ListReaders,
    ListStreams,
    Pull,
    PullOptions,
    ReadMessages,
)
from pyrite.ipc.api.metrics import GetMetrics, ScrapeLocalMetrics, ScrapeMetrics
from pyrite.ipc.api.publishing import NewMessage, PublishMessage
from pyrite.ipc.api.quotas import ListQuotas
from pyrite.ipc.api.tables import GetCatalogConfig, GetNamespace, ListNamespaces, ListTables, LoadTable
from pyrite.ipc.api.topics import CreateTopic, DeleteTopic, GetTopic, ListLevels, ListTopics
from pyrite.ipc.channel import frame
from pyrite.ipc.messages import Answer, ErrorAnswer, Given, Request
from pyrite.ipc.server import Call
from pyrite.server.api import Api
from pyrite.server.gate import Gate
from pyrite.server.metrics import Metrics
from pyrite.server.reads import Reads
from tests.support.core import Core

MANY = 100_000
LONGEST = 0.010
"""Seconds of processor time of one turn."""
DEEP = b"/".join([b"level"] * 100)
WHO = Given(None, None, None, "192.0.2.1")


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
            broker.sessions.ids.add(f"away-{number}")
        for number in range(20_000):
            broker.quotas.restored(f"user:{number:05}")
        self.clients = [self.core.connect(f"client-{number:04}") for number in range(1_500)]
        session = broker.sessions.by_id["client-0000"]
        session.subscriptions = {}
        for number in range(MANY):
            topic_filter = b"mine/%d/%s" % (number, DEEP if number < 500 else b"+")
            session.subscriptions[topic_filter] = Subscription(session, topic_filter, 1)
        reads = Reads(broker.quotas)
        api = Api(
            broker, Metrics(broker), Gate(broker, reads, self), list, lambda *_: None, False, ["default"]
        )
        self.handlers = api.handlers
        self.longest = 0.0
        self.answers: list[Answer] = []
        self._number = 0

    def ask(self, request: Request[Any]) -> None:
        """Ask, in a turn of its own; the answer is encoded in it, as it is for the process."""
        self._number += 1

        def send(message: Struct) -> None:
            frame(message)
            if isinstance(message, Answer):
                self.answers.append(message)
            else:
                assert isinstance(message, ErrorAnswer)
                assert message.status != 500, message.detail
                self.answers.append(Answer(message.number, True, Raw()))

        call: Call[Any] = Call(self._number, WHO, request, send, lambda: 0)
        self._timed(lambda: call.attempt(lambda: self.handlers[type(request)](call)))

    def finish(self) -> None:
        """Run all turns."""
        while self.core.broker.turns.has_work:
            self._timed(self.core.broker.turns.take)

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


REQUESTS: list[Request[Any]] = [
    *(
        ListTopics(filter=one, limit=limit, after=after)
        for one in ("#", "+/+/7", "large/#", "deep/#", "kept/1/#", "missing/#", "#")
        for limit, after in ((1_000, ""), (1, "kept/2"), (100, "zzz"))
    ),
    *(GetTopic(one) for one in ("huge", "large/1", "kept/1/1", "missing")),
    *(ListLevels(below, 1_000) for below in (UNSET, "kept", "made", "deep", "-")),
    *(ListQuotas(1_000, after) for after in ("", "address:1")),
    *(ListClients(limit, after) for limit in (1, 1_000) for after in ("", "client-0500")),
    *(GetClient(one) for one in ("client-0000", "client-0001", "missing")),
    DisconnectClient("missing"),
    *(
        PublishMessage(
            NewMessage(
                topic="made/2",
                qos=1,
                retain=retain,
                content_type="x" * 65_535,
                response_topic="y" * 65_535,
                correlation_data_base64=b"AAA" * 20_000,
                user_properties=[("key", "v" * 250)] * 1_000,
                payload_base64=b"x" * 1_000_000,
            )
        )
        for retain in (False, True)
    ),
    *(CreateTopic(f"made/{number}") for number in (1, 2)),
    *(DeleteTopic(f"made/{number}") for number in (4, 6, 8)),
    *(Pull("c", PullOptions(filter=one, max=1_000)) for one in (UNSET, "#")),
    Acknowledge("c", Acknowledged(offsets=list(range(1_000)))),
    ListStreams(),
    ReadMessages("default"),
    ListReaders(),
    GetCatalogConfig(),
    ListNamespaces(),
    GetNamespace(),
    GetCluster(),
    ListTables(),
    LoadTable("default"),
    GetMetrics(),
    ScrapeMetrics(),
    ScrapeLocalMetrics(),
    GetBroker(),
    CheckRight("publish"),
    GetHealth(),
    GetReadiness(),
]
BY_KIND = {kind: [one for one in REQUESTS if type(one) is kind] for kind in map(type, REQUESTS)}


def test_every_request_is_tried(everything: Turns) -> None:
    assert set(BY_KIND) == set(everything.handlers)
    assert set(ENDPOINTS) <= set(everything.handlers), "every endpoint has a handler"


@pytest.mark.parametrize("kind", BY_KIND, ids=lambda kind: kind.__name__)
def test_no_request_takes_a_long_turn(everything: Turns, kind: type[Request[Any]]) -> None:
    def work() -> None:
        for request in BY_KIND[kind]:
            everything.ask(request)
            everything.finish()

    assert everything.longest_of(work) < LONGEST
    assert everything.answers


def test_many_requests_at_one_time_take_no_long_turn_together(everything: Turns) -> None:
    def work() -> None:
        for _ in range(20):
            for kind in (ListTopics, ListLevels, ListClients, GetClient):
                everything.ask(BY_KIND[kind][0])
        everything.finish()

    assert everything.longest_of(work) < LONGEST
    assert sum(one.is_last for one in everything.answers) == 80
