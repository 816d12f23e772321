"""A message for 100,000 subscribers, most of which are away, is delivered in short turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from pyrite.broker.session import NEVER, Session
from pyrite.broker.subscriptions import Subscription
from pyrite.journal.disk import open_journal
from pyrite.protocols.mqtt.packets import Publish
from pyrite.storage.options import StreamOptions
from tests.hostile.turns import Turns, check, collector_of_the_server
from tests.support.core import Client, Core

AWAY, HERE = 100_000, 100


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    gc.disable()
    journal = open_journal(tmp_path_factory.mktemp("log"), [StreamOptions()])
    core = Core(clock=time.thread_time, journal=journal)
    for number in range(AWAY):
        session = core.broker.sessions.restore(f"away-{number}", NEVER)
        core.broker.subscribing.restore(b"all", Subscription(session, b"all", 1), None)
    with collector_of_the_server():
        yield core
    journal.close()


def publish(turns: Turns, publisher: Client, qos: int) -> None:
    data = publisher.encoded(Publish(b"all", b"x", qos, packet_id=publisher.packet_id() if qos else 0))
    turns.take("publish", lambda: publisher.connection.receive(data))
    turns.finish(publisher.core.broker, "deliver")


@pytest.mark.parametrize("qos", [0, 1])
def test_clients_that_come_and_go_do_not_lengthen_the_turns(core: Core, qos: int) -> None:
    readers = [core.connect(f"reader-{number}") for number in range(HERE)]
    for reader in readers:
        core.broker.subscribing.restore(b"all", Subscription(_session(reader), b"all", qos), None)
    core.broker.subscriptions.route(b"all")

    def once(turns: Turns) -> None:
        publisher = core.connect("publisher")  # other clients are present now
        before = [len(reader.transport.written) for reader in readers]
        for _ in range(3):
            publish(turns, publisher, qos)
        after = [len(reader.transport.written) for reader in readers]
        sizes = {late - early for early, late in zip(before, after, strict=True)}
        assert len(sizes) == 1
        assert sizes.pop() > 0
        publisher.drop()

    check("publish to all", once)
    for reader in readers:
        reader.drop()
    core.flush()


def _session(client: Client) -> Session:
    session = client.connection.session
    assert session is not None
    return session
