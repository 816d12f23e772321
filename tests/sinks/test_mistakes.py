"""A mistake of the broker's, or a plug-in's, ends one commit of a sink; others go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyrite.broker.journal import Fault
from pyrite.broker.message import Batch, Properties
from pyrite.sinks.staging import Staging
from tests.sinks.test_commits import STREAMS, Driver, payloads, rows
from tests.sinks.test_rows import row
from tests.support.durable import Machine


@pytest.fixture(autouse=True)
def no_internal_errors() -> None:
    """Let errors be logged: they are what these tests are about."""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    machine = Machine(tmp_path, STREAMS)
    yield Driver(machine)
    machine.abandon()


def bad_part(machine: Machine, sink: str, topic: str) -> list[str]:
    """Stage what is no message, as no one can who asks for it."""
    batch = row(topic=topic, message_expiry=2**40)
    path = Staging(machine.data).path(sink, "bad")
    path.parent.mkdir(parents=True)
    with pa.ipc.new_stream(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    return ["bad"]


@pytest.mark.parametrize("topic", ["t", "$t"], ids=["in a stream", "in none"])
def test_a_mistake_ends_its_commit_and_others_go_on(driver: Driver, topic: str) -> None:
    """What is in the log is committed, though someone was not given it."""
    machine = driver.machine
    subscriber = machine.core.connect("subscriber")
    subscriber.subscribe("#", "$t", qos=1)
    told: list[tuple[bool, str]] = []
    parts = bad_part(machine, "other", topic)
    driver.sinks.commit("other", 0, parts, lambda *_: None, lambda *one: told.append(one))
    driver.commit(0, driver.stage(rows(0, 3)))
    ((committed, wrong),) = told
    assert committed == (topic == "t")
    assert ("OverflowError" in wrong) != committed
    assert driver.answers == [(True, "")]
    assert sorted(one.payload for one in subscriber.messages()) == [b"", b"0", b"1", b"2"]


@pytest.mark.parametrize("topic", ["t", "$t"], ids=["in a stream", "in none"])
def test_a_logged_message_is_acknowledged_although_a_defect_keeps_it_from_a_subscriber(
    driver: Driver, topic: str
) -> None:
    machine = driver.machine
    machine.core.connect("subscriber").subscribe("#", "$t", qos=1)
    faults: list[Fault | None] = []
    batch = Batch(topic.encode(), b"x", 1, properties=Properties(message_expiry=2**40), expires_at=2.0**40)
    machine.core.broker.publishing.publish(batch, done=lambda _, fault: faults.append(fault))
    machine.core.flush()
    machine.settle()
    ((fault),) = faults
    assert (fault is None) == (topic == "t")
    assert len(machine.whole_log()) == (topic == "t")


def test_a_plug_in_that_raises_ends_its_commit_and_others_go_on(driver: Driver) -> None:
    told: list[tuple[bool, str]] = []

    def broken(topic: bytes, qos: int) -> None:
        raise RuntimeError("a defect")

    def answer(committed: bool, wrong: str) -> None:
        told.append((committed, wrong))
        raise RuntimeError("another")

    driver.sinks.commit("sink", 0, driver.stage(rows(0, 3)), broken, answer)
    driver.flush()
    driver.commit(0, driver.stage(rows(0, 3)))
    assert told == [(False, "internal error: RuntimeError('a defect')")]
    assert driver.answers == [(True, "")]
    assert sorted(payloads(driver.machine)) == [0, 1, 2]
