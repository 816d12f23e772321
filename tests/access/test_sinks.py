"""Ownership of sinks on a real broker: one user cannot touch what another staged or committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from pyrite.access.users import User, write_users
from pyrite.client import FlightLog
from pyrite.storage.query import Query, QueryError
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess

CONFIG = """
[limits]
max_staged_bytes = 20_000_000

[access]
users = "users"
anonymous = true

[[access.rule]]
users = ["ann", "carl"]
publish = ["t/%u", "t/all"]

[[access.rule]]
users = ["root"]
admin = ["#"]

[[access.rule]]
users = ["bob", "anonymous"]
pull = ["#"]
"""


def rows(topic: str, count: int = 1, size: int = 1) -> pa.RecordBatch:
    return pa.record_batch(
        {"topic": [topic] * count, "payload": pa.array([b"x" * size] * count, pa.binary())}
    )


def stage(log: FlightLog, sink: str, *batches: pa.RecordBatch, name: str = "part") -> list[str]:
    return log.stage(sink, name, rows("t").schema, batches).parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sinks")
    write_users(folder / "users", [User(name, quick_hash("x")) for name in ("ann", "bob", "carl", "root")])
    (folder / "pyrite.toml").write_text(CONFIG)
    return folder


@contextmanager
def running(folder: Path) -> Iterator[BrokerProcess]:
    listen = "--listen=flight://127.0.0.1:0"
    with BrokerProcess("--config", "pyrite.toml", listen, "--data", "data", cwd=folder) as broker:
        yield broker


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    with running(folder) as broker:
        yield broker


def enter(broker: BrokerProcess, name: str | None) -> FlightLog:
    return FlightLog(broker.urls[0], username=name, password=name and "x")


def published(broker: BrokerProcess, topic: str) -> int:
    with enter(broker, "bob") as log:
        return len(log.table(Query(topics=(topic,))))


@pytest.mark.parametrize("name", ["bob", "carl", None], ids=str)
def test_staged_data_belongs_to_its_user(broker: BrokerProcess, name: str | None) -> None:
    sink = f"anns-{name}"
    before = published(broker, "t/ann")
    with enter(broker, "ann") as ann, enter(broker, name) as other:
        assert ann.commit(sink, 0, stage(ann, sink, rows("t/ann")))
        parts = stage(ann, sink, rows("t/ann", 2))
        for wrong in (
            lambda: other.abort(sink, parts),
            lambda: other.abort(sink),
            lambda: other.commit(sink, 10**9, []),
            lambda: other.commit(sink, 0, parts),
            lambda: stage(other, sink, rows("t/all")),
        ):
            with pytest.raises(PermissionError, match=r"belongs to another user|not authorized"):
                wrong()
        assert ann.commit(sink, 1, parts)
        assert ann.commit(sink, 2, stage(ann, sink, rows("t/ann", 2)))
    assert published(broker, "t/ann") == before + 5


@pytest.mark.parametrize("name", ["bob", None], ids=str)
def test_staging_needs_the_right_to_publish(broker: BrokerProcess, folder: Path, name: str | None) -> None:
    sink = f"none-{name}"
    with enter(broker, name) as log:
        for refused in (
            lambda: stage(log, sink, rows("t/all", 1_000, 20_000)),
            lambda: stage(log, sink, rows("t/all", 0)),
            lambda: log.commit(sink, 10**9, []),
            lambda: log.abort(sink),
        ):
            with pytest.raises(PermissionError, match="not authorized: publish"):
                refused()
    assert not (folder / "data" / "staging" / sink).exists()
    with enter(broker, "carl") as carl:
        parts = stage(carl, sink, rows("t/carl"))
        assert carl.commit(sink, 0, parts)
        carl.abort(sink)


def test_staging_needs_the_right_to_publish_to_every_topic(broker: BrokerProcess, folder: Path) -> None:
    with enter(broker, "ann") as ann:
        with pytest.raises(PermissionError, match="not authorized: publish 't/carl'"):
            stage(ann, "for-carl", rows("t/carl", 1_000, 20_000))
        with pytest.raises(QueryError, match="nothing was staged for sink 'for-carl'"):
            stage(ann, "for-carl", rows("t/carl", 0))
        with pytest.raises(QueryError, match="nothing was staged for sink 'for-carl'"):
            ann.commit("for-carl", 10**9, [])
        ann.abort("for-carl")
    assert not (folder / "data" / "staging" / "for-carl").exists()


def test_staged_data_is_limited(broker: BrokerProcess, folder: Path) -> None:
    piece = rows("t/carl", 100, 90_000)
    with enter(broker, "carl") as carl, enter(broker, "ann") as ann:
        stage(carl, "first", piece)
        parts = stage(carl, "second", piece)
        with pytest.raises(QueryError, match=r"no room for more: .*max_staged_bytes is 20000000"):
            stage(carl, "third", piece)
        assert ann.commit("fourth", 0, stage(ann, "fourth", rows("t/ann")))
        carl.abort("first")
        assert carl.commit("second", 0, parts)
        with pytest.raises(QueryError, match="no room for more"):
            stage(carl, "third", *[piece] * 3)  # it is one part, and ends before it is sent
        assert carl.commit("third", 0, stage(carl, "third", piece))
    assert [path for path in (folder / "data" / "staging").rglob("*") if path.is_file()] == []


def test_ownership_survives_a_restart(tmp_path: Path, folder: Path) -> None:
    for name in ("users", "pyrite.toml"):
        (tmp_path / name).write_text((folder / name).read_text())
    with running(tmp_path) as broker, enter(broker, "ann") as ann:
        assert ann.commit("anns", 0, stage(ann, "anns", rows("t/ann")))
        parts = stage(ann, "anns", rows("t/ann"))
    with running(tmp_path) as broker, enter(broker, "ann") as ann, enter(broker, "carl") as carl:
        with pytest.raises(PermissionError, match="sink 'anns' belongs to another user"):
            stage(carl, "anns", rows("t/carl"))
        assert ann.commit("anns", 1, parts)


def test_a_sink_name_is_not_owned_without_a_commit(broker: BrokerProcess, folder: Path) -> None:
    before = published(broker, "t/ann"), published(broker, "t/carl")
    with enter(broker, "ann") as ann, enter(broker, "carl") as carl:
        carls = stage(carl, "nightly", rows("t/carl"))
        anns = stage(ann, "nightly", rows("t/ann", 2))
        assert anns == carls, "each has its own part of this name"
        carl.abort("nightly", ["part-0"])
        carls = stage(carl, "nightly", rows("t/carl"))
        assert ann.commit("nightly", 0, anns)
        for wrong in (
            lambda: carl.commit("nightly", 1, carls),
            lambda: stage(carl, "nightly", rows("t/carl")),
        ):
            with pytest.raises(PermissionError, match="sink 'nightly' belongs to another user"):
                wrong()
    assert (published(broker, "t/ann"), published(broker, "t/carl")) == (before[0] + 2, before[1])
    assert not (folder / "data" / "staging" / "nightly").exists()


def test_an_abandoned_sink_name_is_free(broker: BrokerProcess) -> None:
    with enter(broker, "ann") as ann, enter(broker, "carl") as carl:
        stage(carl, "weekly", rows("t/carl"))
        carl.abort("weekly")
        assert ann.commit("weekly", 0, stage(ann, "weekly", rows("t/ann")))


def test_an_administrator_can_delete_a_sink(broker: BrokerProcess) -> None:
    with enter(broker, "ann") as ann, enter(broker, "carl") as carl, enter(broker, "root") as root:
        assert carl.commit("taken", 7, stage(carl, "taken", rows("t/carl")))
        with pytest.raises(PermissionError, match="another user"):
            ann.abort("taken")
        root.abort("taken")
        assert ann.commit("taken", 0, stage(ann, "taken", rows("t/ann")))
