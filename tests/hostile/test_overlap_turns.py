"""A client with a thousand filters that all match one topic does not delay others."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from pyrite.journal.disk import open_journal
from pyrite.protocols.mqtt.packets import V5, Connect, Publish, Subscribe, Wish, encode
from pyrite.storage.options import StreamOptions
from tests.hostile.turns import Turns, check, collector_of_the_server
from tests.support.core import Client, Core

LEVELS = 10
TOPIC = b"/".join([b"a"] * LEVELS)
FILTERS = [
    b"/".join(b"+" if number >> level & 1 else b"a" for level in range(LEVELS)) for number in range(2**LEVELS)
]
FIRST = FILTERS[:1_000]
MESSAGES = 500
RESUMED = {"session_expiry": 100, "receive_maximum": 65_535}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    journal = open_journal(tmp_path_factory.mktemp("log"), [StreamOptions()])
    core = Core(clock=time.thread_time, journal=journal)
    with collector_of_the_server():
        yield core
    journal.close()


def subscriber(core: Core, name: str) -> Client:
    """Connect a client that subscribes to all filters, each with an identifier."""
    client = core.connect(name, **RESUMED)
    for number, topic_filter in enumerate(FIRST, 1):
        client.send(Subscribe(number, [Wish(topic_filter, 1)], {"subscription_identifier": [number]}))
    client.transport.written.clear()
    gc.freeze()
    return client


def different(qos: int) -> bytes:
    """Return messages that differ in size, and so become one mixed batch."""
    return b"".join(
        encode(Publish(TOPIC, b"x" * (number % 7), qos, packet_id=number + 1 if qos else 0), V5)
        for number in range(MESSAGES)
    )


@pytest.mark.parametrize("qos", [0, 1])
def test_messages_with_a_thousand_identifiers_do_not_delay_others(qos: int) -> None:
    core = Core(clock=time.thread_time)
    client = subscriber(core, "identifiers")
    written = []
    client.transport.write = lambda data: written.append(len(data))  # type: ignore[method-assign]
    publisher = core.connect("publisher")
    data = different(qos)

    def once(turns: Turns) -> None:
        turns.take("publish", lambda: publisher.connection.receive(data))
        turns.finish(core.broker, "publish")

    with collector_of_the_server():
        check("identifiers", once)
    assert sum(written) > MESSAGES * len(FIRST)


def test_messages_that_are_sent_again_do_not_delay_others(core: Core) -> None:
    client = subscriber(core, "resumes")
    publisher = core.connect("publisher")
    publisher.send(different(1))  # more than the window: some are in flight, the others wait in the log
    core.flush()
    client.drop()

    def once(turns: Turns) -> None:
        again = core.wire()
        connect = encode(Connect("resumes", V5, False, properties=dict(RESUMED)), V5)
        turns.take("resume", lambda: again.connection.receive(connect))
        turns.finish(core.broker, "resume")
        messages = [one for one in again.received() if isinstance(one, Publish)]
        assert len(messages) >= 100
        assert all(len(one.properties["subscription_identifier"]) == len(FIRST) for one in messages[:3])
        turns.take("lost", again.connection.lost)
        turns.finish(core.broker, "lost")

    check("resume", once)
