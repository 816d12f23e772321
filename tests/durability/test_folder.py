"""The data folder: one broker at a time, and no folder of other programs."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pyrite.journal.gathering import MAX_ROW_BYTES
from pyrite.storage.folder import BOOT, FORMAT, DataFolder
from pyrite.storage.index import index_of, read_index

from . import bulk
from .broker import Broker

SECONDS = 30


def serve(data: Path) -> subprocess.CompletedProcess[str]:
    """Run a broker that ends at once."""
    command = [sys.executable, "-m", "pyrite", "serve", "--data", str(data), "--listen", "mqtt://127.0.0.1:0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def refused(data: Path, *words: str) -> None:
    """Require that a broker refuses to start there, with the reason in one line."""
    done = serve(data)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("pyrite serve: ")
    for word in (str(data), *words):
        assert word in done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of every file except the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_a_second_broker_is_refused(broker: Broker) -> None:
    client = broker.lasting("ann")
    client.subscribe("a", qos=1)
    publisher = broker.client()
    publisher.publish("a", b"one", qos=1)
    assert client.receive().payload == b"one"
    for _ in range(2):
        refused(broker.data, "uses this folder", f"process id {broker.process.process.pid}", "--data")
        publisher.publish("a", b"two", qos=1)
        assert client.receive().payload == b"two"
    broker.restart("stop")
    assert broker.logged("a") == [b"one", b"two", b"two"]


def test_the_folder_is_free_after_a_crash(broker: Broker) -> None:
    broker.client().publish("a", b"x", qos=1)
    for _ in range(3):
        broker.restart("kill")
    assert broker.logged("a") == [b"x"]


def test_the_folder_is_free_after_a_shutdown(broker: Broker) -> None:
    broker.stop()
    with (broker.data / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_suspended_broker_keeps_its_folder(broker: Broker) -> None:
    process = broker.process.process
    process.send_signal(signal.SIGSTOP)
    try:
        refused(broker.data, "uses this folder")
    finally:
        process.send_signal(signal.SIGCONT)
    broker.client().publish("a", b"x", qos=1)


@pytest.mark.parametrize(
    "found",
    ["pyrite data, format 1\n", "\xff\xfe", FORMAT.strip()],
    ids=["older", "other bytes", "cut short"],
)
def test_another_format_is_refused_and_unchanged(broker: Broker, found: str) -> None:
    broker.client().publish("a", b"x", qos=1)
    broker.stop()
    (broker.data / "format").write_text(found, encoding="latin-1")
    before = contents(broker.data)
    refused(broker.data, "this version of Pyrite reads", repr(FORMAT.strip()))
    assert contents(broker.data) == before
    (broker.data / "format").write_text(FORMAT)
    broker.start()
    assert broker.logged("a") == [b"x"]


def test_a_folder_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-bob.txt").write_text("Dear Bob")
    before = contents(tmp_path)
    refused(tmp_path, "not a Pyrite data folder", "letters")
    assert contents(tmp_path) == before


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("a file")
    refused(path)
    assert path.read_text() == "a file"


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "data", "cannot be used")


def test_an_empty_or_missing_folder_is_used(stopped_broker: Broker) -> None:
    broker = stopped_broker
    assert not broker.data.exists()
    broker.start()
    broker.stop()
    shutil.rmtree(broker.data)
    broker.data.mkdir()
    broker.start()
    assert broker.found == ["stream default: no messages in 0 segments, 0.0 MB"]


def test_a_folder_of_a_broker_killed_at_its_first_start_is_used(stopped_broker: Broker) -> None:
    """The folder may contain the lock and a part of the format file."""
    broker = stopped_broker
    broker.data.mkdir()
    (broker.data / "lock").write_text("4711\n")
    (broker.data / "format.tmp").write_text(FORMAT[:5])
    broker.start()
    broker.client().publish("a", b"x", qos=1)


def test_the_start_reports_the_contents(broker: Broker) -> None:
    bulk.publish(broker.port, "a", [b"x"] * 1_234)
    broker.restart("stop")
    (line,) = broker.found
    assert line.startswith("stream default: offsets 0 to 1,233 in 1 segments, ")
    broker.restart("kill")
    assert broker.found == [line]


def test_the_unfinished_end_of_a_segment_is_dropped_and_reported(broker: Broker) -> None:
    publisher = broker.client()
    large = bytes(MAX_ROW_BYTES)  # too large for the tail
    publisher.publish("a", b"one" + large, qos=1)
    publisher.publish("a", b"two" + large, qos=1)
    broker.kill()
    (segment,) = (broker.data / "streams" / "default").glob("*.arrow")
    last = read_index(index_of(segment))[0][-1]
    end = int(last["position"] + last["length"])
    segment.write_bytes(segment.read_bytes()[:end] + b"x" * 100)
    broker.start()
    (line,) = broker.found
    assert "offsets 0 to 1 in" in line
    assert "dropped 100 bytes at the end that were never acknowledged" in line
    broker.client().publish("a", b"three", qos=1)
    broker.restart("kill")
    assert broker.logged("a") == [b"one" + large, b"two" + large, b"three"]


def test_the_boot_id_is_durable_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncated or missing file would hide a power loss."""
    data = tmp_path / "data"
    (data / "streams").mkdir(parents=True)
    (data / "format").write_text(FORMAT)
    (data / "boot").write_text("earlier")
    synced: list[tuple[str, str]] = []
    syncs = {"fsync": os.fsync, "fdatasync": os.fdatasync}

    def watch(descriptor: int) -> None:
        syncs["fsync"](descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, (data / "boot").read_text() if path == data else path.read_text()))

    for name in syncs:
        monkeypatch.setattr(os, name, watch)
    now = BOOT.read_text()
    with closing(DataFolder(data)) as folder:
        assert folder.note_boot()
    assert synced == [("boot.tmp", now), ("data", now)]
