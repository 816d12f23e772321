"""deploy/backup.py: a backup of a running broker has every message acknowledged before it."""

from __future__ import annotations

import importlib.util
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from pyrite.client import BlockingClient
from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

BACKUP = Path(__file__).parents[2] / "deploy" / "backup.py"
SMALL = "[[stream]]\nname = 'default'\nsegment_bytes = 65536\n"
"""Segments so small that they are sealed, converted and merged all the time."""
LEAP = 16_777_216
MANY = 50
"""Files that take so long to copy that others appear and disappear in the meantime."""


class Publisher(threading.Thread):
    """Publishes numbers with QoS 1 and records which were acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.acknowledged = 0
        self.failed: Exception | None = None
        self._enough = threading.Event()
        self._reached = threading.Condition()

    def run(self) -> None:
        try:
            with BlockingClient(self.url) as client:
                while not self._enough.is_set():
                    first = self.acknowledged
                    client.publish_many(
                        [("a", b"%d " % number + b"x" * 500) for number in range(first, first + 50)], qos=1
                    )
                    with self._reached:
                        self.acknowledged = first + 50
                        self._reached.notify_all()
        except Exception as error:
            self.failed = error

    def wait_for(self, count: int) -> None:
        with self._reached:
            assert self._reached.wait_for(lambda: self.acknowledged >= count or self.failed, 60)
        assert self.failed is None

    def stop(self) -> None:
        self._enough.set()
        self.join(30)
        assert not self.is_alive()


def load_backup() -> ModuleType:
    program = importlib.util.spec_from_file_location("backup", BACKUP)
    assert program is not None
    assert program.loader is not None
    backup = importlib.util.module_from_spec(program)
    program.loader.exec_module(backup)
    return backup


def broker_on(folder: Path, data: Path) -> BrokerProcess:
    (folder / "pyrite.toml").write_text(SMALL)
    return BrokerProcess(
        "--config", str(folder / "pyrite.toml"), "--data", str(data), "--listen=mqtt://127.0.0.1:0"
    )


def messages(data: Path) -> tuple[list[int], list[int]]:
    """Return the numbers published on `a` in a data folder, and all offsets."""
    numbers: list[int] = []
    offsets: list[int] = []
    for batch in StreamReader(data / "streams" / "default").read(0):
        assert not isinstance(batch, Damage), batch
        offsets += batch.column("offset").to_pylist()
        for topic, payload in zip(
            batch.column("topic").to_pylist(), batch.column("payload").to_pylist(), strict=True
        ):
            if topic in ("a", b"a"):
                numbers.append(int(payload.split()[0]))
    return numbers, offsets


def test_a_backup_has_every_acknowledged_message(tmp_path: Path) -> None:
    copies = [tmp_path / f"copy-{number}" for number in range(3)]
    at_least: list[int] = []
    with broker_on(tmp_path, tmp_path / "data") as broker:
        with BlockingClient(broker.urls[0], client_id="away", session_expiry=3_600) as away:
            away.subscribe("kept", qos=1)
            away.publish("kept", b"old", qos=1, retain=True)
        publisher = Publisher(broker.urls[0])
        publisher.start()
        try:
            for round_, copy in enumerate(copies, 1):
                publisher.wait_for(1_500 * round_)
                if round_ == len(copies):
                    wait_for_parquet(tmp_path / "data" / "streams" / "default")
                at_least.append(publisher.acknowledged)
                done = subprocess.run(
                    [sys.executable, str(BACKUP), str(tmp_path / "data"), str(copy)],
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                assert (done.returncode, done.stderr) == (0, "")
        finally:
            publisher.stop()
    for copy, count in zip(copies, at_least, strict=True):
        with broker_on(tmp_path, copy) as again:
            assert not [line for line in again.found if line.startswith("damaged")]
            with BlockingClient(again.urls[0]) as client:
                with client.subscribe("kept") as kept:
                    assert kept.get(timeout=10).payload == b"old"
                client.publish("after", b"x", qos=1)
            resumed: list[bool] = []
            with BlockingClient(again.urls[0], client_id="away", on_connect=resumed.append):
                assert resumed == [True]
            assert "WARNING" not in "".join(again.log)
        numbers, offsets = messages(copy)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= count
        assert offsets == sorted(set(offsets))
        assert offsets[-1] >= offsets[-2] + LEAP, "no offset is given to two messages"


def wait_for_parquet(stream: Path) -> None:
    wait_until(lambda: any(stream.glob("*.parquet")), "a segment has become Parquet")


class Upkeep(threading.Thread):
    """Converts one segment after another to Parquet, faster than the broker does."""

    def __init__(self, stream: Path) -> None:
        super().__init__()
        self.stream = stream
        for number in range(MANY):
            (stream / f"{number:020}.parquet").write_text("begin")
        self.written = MANY
        """Complete segments."""
        self._enough = threading.Event()

    def run(self) -> None:
        (self.stream / f"{MANY:020}.arrow").write_text("beg")
        while not self._enough.wait(0.02):
            segment = self.stream / f"{self.written:020}.arrow"
            with segment.open("a") as growing:
                growing.write("in")
            (self.stream / f"{self.written + 1:020}.arrow").write_text("beg")
            self.written += 1
            temporary = self.stream.with_name("temporary")
            temporary.write_text("begin")
            temporary.rename(segment.with_suffix(".parquet"))
            segment.unlink()

    def stop(self) -> None:
        self._enough.set()
        self.join(30)


def test_no_segment_is_missed_while_it_is_converted(tmp_path: Path) -> None:
    backup = load_backup()
    (tmp_path / "stream").mkdir()
    upkeep = Upkeep(tmp_path / "stream")
    upkeep.start()
    wait_until(lambda: upkeep.written != MANY, "the first segment has become Parquet")
    try:
        for number in range(10):
            written = upkeep.written
            copy = tmp_path / f"copy-{number}"
            backup.copy_stream(tmp_path / "stream", copy)
            found = {path.stem: path.read_text() for path in sorted(copy.iterdir())}
            assert all(found.get(f"{one:020}") == "begin" for one in range(written))
            assert found.get(f"{written:020}") in ("beg", "begin"), "what was there of the newest"
    finally:
        upkeep.stop()
    assert upkeep.written > MANY + 1, "it went on meanwhile"


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
def test_the_state_is_copied_from_a_folder_with_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    source, copy = tmp_path / name / "state.sqlite", tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(source)) as database, database:
        database.execute("CREATE TABLE sessions (client)")
        database.execute("INSERT INTO sessions VALUES ('ann')")
    load_backup().copy_state(source, copy)
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("SELECT client FROM sessions").fetchall() == [("ann",)]
    assert {path.name for path in tmp_path.iterdir()} == {name, "copy.sqlite"}


def test_a_backup_succeeds_while_sinks_stage_and_commit(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    (staging / "lasting").mkdir(parents=True)
    (staging / "lasting" / "part.arrow").write_text("rows")
    enough = threading.Event()

    def stage_and_commit() -> None:
        number = 0
        while not enough.is_set():
            sink = staging / f"sink-{number % 20}"
            number += 1
            if sink.exists():
                shutil.rmtree(sink)
            else:
                sink.mkdir()
                (sink / "part.arrow").write_text("rows")

    backup = load_backup()
    sinks = threading.Thread(target=stage_and_commit)
    sinks.start()
    try:
        for number in range(100):
            backup.copy_staging(staging, tmp_path / f"copy-{number}")
            assert (tmp_path / f"copy-{number}" / "lasting" / "part.arrow").read_text() == "rows"
    finally:
        enough.set()
        sinks.join(30)


@pytest.mark.parametrize("case", ["no data folder", "not empty"])
def test_a_wrong_source_or_target_is_an_error(tmp_path: Path, case: str) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    data.mkdir()
    if case == "not empty":
        (data / "format").write_text("pyrite")
        copy.mkdir()
        (copy / "something").write_text("")
    done = subprocess.run([sys.executable, str(BACKUP), str(data), str(copy)], capture_output=True, text=True)
    assert done.returncode == 1
    assert str(data if case == "no data folder" else copy) in done.stderr
