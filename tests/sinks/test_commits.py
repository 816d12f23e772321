"""Commits of sinks: exactly once for each batch, whatever happens in between."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pyrite.broker.policy import Refusal
from pyrite.sinks.batches import batches_of
from pyrite.sinks.sinks import TIDY, Sinks
from pyrite.sinks.staging import KEPT, Staging
from pyrite.storage.options import StreamOptions
from pyrite.storage.query import SCHEMA, QueryError
from tests.line.client import LineClient
from tests.support.core import no_internal_errors
from tests.support.durable import Deferred, FailingFiles, Machine, PowerLoss, examples

STREAMS = [StreamOptions("odd", topics=["odd/#"]), StreamOptions("default", topics=["#"])]


def rows(start: int, count: int, **columns: Any) -> pa.RecordBatch:
    """Make messages with the numbers from `start` on; they go to two streams."""
    numbers = range(start, start + count)
    topics = [f"odd/{number}" if number % 3 == 1 else "even" for number in numbers]
    given = {name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}
    payloads = pa.array([b"%d" % number for number in numbers], pa.binary())
    return pa.record_batch({"topic": pa.array(topics), "payload": payloads, **given})


class Driver:
    """Stages and commits, as a Spark driver and its executors do."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.attempts = 0
        self.sinks = Sinks(machine.journal, machine.core.broker)
        self.answers: list[tuple[bool, str]] = []

    def stage(self, *pieces: pa.RecordBatch) -> list[str]:
        staging = Staging(self.machine.data)
        parts = []
        for piece in pieces:
            self.attempts += 1
            parts.append(f"{self.machine.elapsed:.0f}-{self.attempts}")
            assert staging.write("sink", parts[-1], piece.schema, [piece]) == piece.num_rows
        return parts

    def commit(self, batch: int, parts: list[str]) -> None:
        self.sinks.commit("sink", batch, parts, lambda *_: None, lambda *one: self.answers.append(one))
        self.flush()

    def flush(self) -> None:
        """Have done what there is to be done."""
        self.machine.settle()
        for _ in range(10):
            self.machine.core.flush()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with no_internal_errors():
        machine = Machine(tmp_path, STREAMS)
        yield machine
        machine.abandon()


def payloads(machine: Machine) -> list[int]:
    return [int(row["payload"]) for row in machine.whole_log()]


def test_what_was_staged_becomes_visible_with_the_commit(machine: Machine) -> None:
    driver = Driver(machine)
    reader = LineClient(machine.core)
    reader.say("Subscribe #")
    parts = driver.stage(rows(0, 10), rows(10, 7))
    assert machine.whole_log() == []
    driver.commit(0, parts)
    assert driver.answers == [(True, "")]
    assert sorted(payloads(machine)) == list(range(17))
    assert sorted(int(one.payload or b"") for one in reader.came() if one.text.startswith("M")) == [
        *range(17)
    ]
    assert {row["client_id"] for row in machine.whole_log()} == {"sink/0"}
    assert {row["qos"] for row in machine.whole_log()} == {1}
    assert not list((machine.data / "staging").rglob("*.arrow"))


def test_in_the_order_of_the_parts(machine: Machine) -> None:
    driver = Driver(machine)
    one, two = driver.stage(rows(0, 30), rows(30, 30))
    driver.commit(0, [two, one])
    for name in ("odd", "default"):
        got = [int(row["payload"]) for row in machine.log(name)]
        assert got == sorted(got, key=lambda number: (number < 30, number))


def test_a_batch_is_committed_once(machine: Machine) -> None:
    driver = Driver(machine)
    driver.commit(0, driver.stage(rows(0, 5)))
    driver.commit(0, driver.stage(rows(0, 5)))
    driver.commit(1, driver.stage(rows(5, 5)))
    machine.restart()
    again = Driver(machine)
    again.attempts = 100
    again.commit(1, again.stage(rows(5, 5)))
    again.commit(2, again.stage(rows(10, 5)))
    assert driver.answers == [(True, ""), (False, ""), (True, "")]
    assert again.answers == [(False, ""), (True, "")]
    assert sorted(payloads(machine)) == list(range(15))
    assert not list((machine.data / "staging").rglob("*.arrow"))


def columns(qos: list[int]) -> pa.RecordBatch:
    count = len(qos)
    return rows(
        0,
        count,
        qos=qos,
        retain=[number == 2 for number in range(count)],
        content_type=["text/plain", *[None] * (count - 1)],
        user_properties=[[{"key": "a", "value": "b"}], *[None] * (count - 1)],
        message_expiry=[60, *[None] * (count - 1)],
    )


def test_columns(machine: Machine) -> None:
    driver = Driver(machine)
    driver.commit(0, driver.stage(columns([0, 1, 2, 0])))
    kept = {int(row["payload"]): row for row in machine.whole_log()}
    assert [kept[number]["qos"] for number in range(4)] == [0, 1, 2, 0]
    assert [kept[number]["retain"] for number in range(4)] == [False, False, True, False]
    assert kept[0]["content_type"] == "text/plain"
    assert kept[0]["user_properties"] == [{"key": "a", "value": "b"}]
    assert kept[0]["message_expiry"] == 60
    assert [batch.payload() for batch in machine.core.broker.retained.values.values()] == [b"2"]


@pytest.mark.parametrize("qos", [0, 1])
def test_the_power_may_go_at_any_moment(tmp_path: Path, qos: int) -> None:
    """Every message once, in order within its stream, whoever asks again or not."""
    with no_internal_errors():
        whole = Machine(tmp_path / "whole", STREAMS)
        before = whole.files.left  # type: ignore[attr-defined]
        driver = Driver(whole)
        driver.commit(0, driver.stage(rows(0, 12, qos=[qos] * 12), rows(12, 8, qos=[qos] * 8)))
        steps = before - whole.files.left  # type: ignore[attr-defined]
        whole.abandon()
        assert steps >= 4
        for survives in range(steps + 1):
            for again in (False, True):
                _crash(tmp_path / f"{survives}-{again}", qos, survives, again)


def _crash(folder: Path, qos: int, survives: int, again: bool) -> None:
    machine = Machine(folder, STREAMS)
    driver = Driver(machine)
    parts = driver.stage(rows(0, 12, qos=[qos] * 12), rows(12, 8, qos=[qos] * 8))
    machine.files.left = survives  # type: ignore[attr-defined]
    try:
        driver.commit(0, parts)
    except PowerLoss:
        pass
    acknowledged = driver.answers == [(True, "")]
    machine.crash(Random(survives))
    machine.elapsed += 10
    machine.start()
    restarted = Driver(machine)
    machine.settle()
    for _ in range(10):
        machine.core.flush()
    done = payloads(machine)
    assert sorted(done) == (list(range(20)) if acknowledged or done else [])
    if again:
        restarted.commit(0, restarted.stage(rows(0, 12, qos=[qos] * 12), rows(12, 8, qos=[qos] * 8)))
        assert restarted.answers == [(not done, "")]
    restarted.commit(1, restarted.stage(rows(20, 4)))
    assert Counter(payloads(machine)) == Counter(range(0 if again or done else 20, 24))
    for name in ("odd", "default"):
        got = [int(row["payload"]) for row in machine.log(name)]
        assert got == sorted(got)
    assert not list((machine.data / "staging").rglob("*.arrow"))
    machine.abandon()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[Driver, FailingFiles]]:
    """A machine whose disk was full in the middle of a commit; what it staged is called `part`."""
    machine = Machine(tmp_path, STREAMS, files=lambda _: FailingFiles())
    files = machine.files
    assert isinstance(files, FailingFiles)
    driver = Driver(machine)
    driver.commit(0, driver.stage(rows(0, 5)))
    files.failing["write"] = errno.ENOSPC
    files.only = "streams/odd"
    Staging(machine.data).write("sink", "part", rows(5, 50).schema, [rows(5, 50)])
    driver.commit(1, ["part"])
    assert driver.answers[1][0] is False
    assert "cannot be written" in driver.answers[1][1]
    assert 5 < len(payloads(machine)) < 55, "a part of it is in the log"
    yield driver, files
    machine.abandon()


@pytest.mark.parametrize("abort", [True, False])
def test_a_full_disk_refuses_and_what_is_missing_comes_later(
    full: tuple[Driver, FailingFiles], abort: bool
) -> None:
    driver, files = full
    told: list[str] = []
    if abort:  # as Spark does, before it tries the micro-batch again
        late = driver.stage(rows(5, 50))
        driver.sinks.abort("sink", ["part", *late], told.append)
        assert driver.sinks.staging.missing("sink", ["part", *late]) == late
    files.heal()
    driver.commit(1, driver.stage(rows(5, 50)))
    assert told == [""] * abort
    assert driver.answers[2] == (True, "")
    assert sorted(payloads(driver.machine)) == list(range(55))
    assert not list((driver.machine.data / "staging").rglob("*.arrow"))


def test_who_gives_up_a_batch_of_which_a_part_is_published_has_the_rest_published(
    full: tuple[Driver, FailingFiles],
) -> None:
    driver, files = full
    told: list[str] = []
    driver.sinks.abort("sink", None, told.append)
    driver.flush()
    assert "cannot be written" in told[0], "it cannot be taken back, and is not done"
    files.heal()
    driver.sinks.abort("sink", None, told.append)
    driver.flush()
    assert told[1:] == [""]
    assert sorted(payloads(driver.machine)) == list(range(55))
    assert not list((driver.machine.data / "staging").rglob("*.arrow"))


def test_a_part_of_the_same_name_takes_nothing_from_a_batch_that_is_not_finished(
    full: tuple[Driver, FailingFiles],
) -> None:
    driver, files = full
    told: list[str] = []
    driver.sinks.stage("sink", "part", None, told.append)
    driver.flush()
    assert "an earlier batch cannot be finished: stream odd cannot be written" in told[0]
    files.heal()
    for _ in range(2):  # tasks stage at the same time
        driver.sinks.stage("sink", "part", None, told.append)
    driver.flush()
    assert told[1:] == ["", ""]
    assert sorted(payloads(driver.machine)) == list(range(55))
    Staging(driver.machine.data).write("sink", "part", rows(55, 5).schema, [rows(55, 5)])
    driver.commit(2, ["part"])
    assert driver.answers[2:] == [(True, "")]
    assert sorted(payloads(driver.machine)) == list(range(60))


def test_who_is_told_of_a_commit_may_stage_at_once(tmp_path: Path) -> None:
    """Nothing that comes after the answer is removed with what was there before it."""
    machine = Machine(tmp_path, STREAMS, reading=Deferred)
    driver = Driver(machine)
    left: list[list[Path]] = []
    parts = driver.stage(rows(0, 5))
    staging = machine.data / "staging"
    driver.sinks.commit(
        "sink", 0, parts, lambda *_: None, lambda *_: left.append(list(staging.rglob("*.arrow")))
    )
    for _ in range(20):
        machine.settle()
        machine.core.flush()
    assert left == [[]]
    machine.abandon()


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        (["a", "/" * 128], "a topic has at most 128 levels"),
        (["secret"], "topic 'secret': not authorized"),
    ],
)
def test_wrong_topics_are_refused_and_nothing_is_published(
    machine: Machine, topics: list[str], text: str
) -> None:
    driver = Driver(machine)
    batch = pa.record_batch({"topic": topics, "payload": pa.array([b"x"] * len(topics), pa.binary())})
    answers: list[tuple[bool, str]] = []
    parts = driver.stage(batch)

    def refuse(topic: bytes, qos: int) -> Refusal | None:
        return Refusal("not authorized", True) if topic == b"secret" else None

    driver.sinks.commit("sink", 0, parts, refuse, lambda *one: answers.append(one))
    machine.core.flush()
    ((committed, wrong),) = answers
    assert not committed
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(wrong)
    assert machine.whole_log() == []
    driver.commit(0, driver.stage(rows(0, 3)))
    assert driver.answers == [(True, "")]


def test_a_part_that_was_not_staged(machine: Machine) -> None:
    driver = Driver(machine)
    driver.commit(0, [*driver.stage(rows(0, 3)), "none"])
    assert driver.answers == [(False, "part 'none' of sink 'sink' was not staged")]
    assert machine.whole_log() == []


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (pa.record_batch({"topic": ["a"]}), "column 'payload' is missing"),
        (
            pa.record_batch({"topic": ["a"], "payload": ["a"]}),
            "column 'payload': expected binary, not string",
        ),
        (
            pa.record_batch({"topic": ["a"], "payload": [b"a"], "offset": [1]}),
            "a message has no column 'offset'; expected topic, payload, qos",
        ),
        (
            pa.record_batch({"topic": [None], "payload": [b"a"]}, SCHEMA.empty_table().select([2, 3]).schema),
            "column 'topic' has a row without a value",
        ),
        (
            pa.RecordBatch.from_arrays([["a"], ["a"], [b"a"]], ["topic", "topic", "payload"]),
            "duplicate column 'topic'",
        ),
    ],
)
def test_what_is_no_message_is_not_staged(tmp_path: Path, batch: pa.RecordBatch, text: str) -> None:
    staging = Staging(tmp_path)
    with pytest.raises(QueryError, match=text):
        staging.write("sink", "part", batch.schema, [batch])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 129])
def test_names(tmp_path: Path, name: str) -> None:
    staging = Staging(tmp_path)
    with pytest.raises(QueryError, match="expected up to 128 letters"):
        staging.write(name, "part", rows(0, 1).schema, [])
    with pytest.raises(QueryError, match="expected up to 128 letters"):
        staging.write("sink", name, rows(0, 1).schema, [])


def test_it_goes_while_the_broker_runs(machine: Machine) -> None:
    driver = Driver(machine)
    old, new = driver.stage(rows(0, 1), rows(1, 1))
    past = time.time() - KEPT - 1
    os.utime(driver.sinks.staging.path("sink", old), (past, past))
    for _ in range(2):
        assert driver.sinks.staging.missing("sink", [old, new]) == []
        machine.tick(TIDY / 3)
    machine.tick(TIDY / 2)
    assert driver.sinks.staging.missing("sink", [old, new]) == [old]


def test_what_no_one_commits_goes_after_a_day(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    for sink in ("old", "kept", "new"):
        staging.write(sink, "part", rows(0, 1).schema, [rows(0, 1)])
    past = time.time() - KEPT - 1
    for sink in ("old", "kept"):
        os.utime(staging.path(sink, "part"), (past, past))
    staging.tidy({"kept"}.__contains__)
    assert sorted(path.name for path in staging.folder.iterdir()) == ["kept", "new"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_rows_become_batches(qos: int) -> None:
    """Of few topics or of many, small and large: the same messages come out."""
    random = Random(qos)
    for _ in range(examples(30)):
        many, large = random.random() < 0.5, random.random() < 0.2
        count = random.randint(1, 300)
        topics = [
            f"t/{random.randint(0, 50 if many else 0)}" + "ü" * random.randint(0, 80) for _ in range(count)
        ]
        bodies = [
            random.randbytes(random.randint(0, 40_000 if large and random.random() < 0.1 else 200))
            for _ in range(count)
        ]
        batch = pa.record_batch(
            {
                "topic": topics,
                "payload": pa.array(bodies, pa.binary()),
                "qos": pa.array([qos] * count, pa.int8()),
            }
        )
        made = batches_of(batch, "me")
        assert [
            (part.topic.decode(), body) for one in made for part in one.parts() for body in part.payloads()
        ] == list(zip(topics, bodies, strict=True))
        assert {(one.qos, one.origin) for one in made} == {(qos, "me")}
