"""What cannot be written: said as long as it is so, by whom it is so, and not as long as it is not."""

from __future__ import annotations

import errno
import logging
import os
import resource
import sqlite3
import threading
import weakref
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from pyrite.broker.journal import Fault, Piece, Wanted
from pyrite.broker.message import Batch
from pyrite.journal import changes, group_commit, log_reader, reading
from pyrite.journal.workers import ThreadWorker
from pyrite.protocols.mqtt.packets import Ack, Publish
from pyrite.storage import tiering
from pyrite.storage.folder import FolderError
from pyrite.storage.options import StreamOptions
from tests.support.core import Client
from tests.support.durable import Deferred, Device, FailingFiles, Machine, default_streams
from tests.support.waiting import let_pass


def failing(folder: Path, **options: Any) -> tuple[Machine, FailingFiles]:
    """Return a machine whose disk fails when told to; streams a and default."""
    machine = Machine(folder, default_streams(**options), files=lambda _: FailingFiles())
    assert isinstance(machine.files, FailingFiles)
    return machine, machine.files


def reasons(client: Client) -> list[int]:
    return [packet.reason for packet in client.received() if isinstance(packet, Ack)]


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the level and first words of each log line about a fault."""
    return [
        (record.levelname, record.getMessage().split(" (")[0].split(":")[0])
        for record in caplog.records
        if "written" in record.getMessage()
    ]


FAILURES = pytest.mark.parametrize(
    ("operation", "error"), [("write", errno.ENOSPC), ("sync", errno.EIO), ("open", errno.ENOSPC)]
)


@FAILURES
def test_a_fault_lasts_as_long_as_the_disk_fails_and_ends_without_traffic(
    folder: Path, operation: str, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine, files = failing(folder)
    client = machine.core.connect("c")
    if operation == "open":  # which there is one for each segment
        client.publish("a/b", b"x" * 7_000, qos=1)
    files.failing[operation] = error
    client.publish("a/b", b"refused", qos=1)
    assert reasons(client)[-1] >= 0x80
    for _ in range(5):
        machine.tick(1)
        assert machine.journal.fault is not None
        assert "stream a" in machine.journal.fault.text
    files.heal()
    machine.tick(2)
    assert machine.journal.fault is None
    assert said(caplog) == [("ERROR", "stream a cannot be written"), ("WARNING", "stream a is written again")]
    assert list(machine.data.glob("streams/*/*.tmp")) == [], "nothing is left of the tries"
    machine.stop()


def test_a_successful_write_does_not_end_another_streams_fault(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine, files = failing(folder)
    client = machine.core.connect("c")
    files.failing["write"] = errno.ENOSPC
    files.only = "/a/"
    client.publish("a/b", b"refused", qos=1)
    for _ in range(3):
        client.publish("b", b"taken", qos=1)
        machine.tick(1)
        assert machine.journal.fault is not None
    files.only = "/default/"
    client.publish("a/b", b"taken", qos=1)
    assert machine.journal.fault is None
    client.publish("b", b"refused", qos=1)
    files.only = ""
    client.publish("a/b", b"refused", qos=1)
    fault = machine.journal.fault
    assert fault == Fault(
        True,
        "stream default cannot be written: No space left on device; "
        "stream a cannot be written: No space left on device",
    )
    assert reasons(client) == [0x97, 0x10, 0x10, 0x10, 0x10, 0x97, 0x97]
    files.heal()
    machine.tick(2)
    assert machine.journal.fault is None
    assert sorted(said(caplog)) == sorted(
        [
            *[("ERROR", "stream a cannot be written"), ("WARNING", "stream a is written again")] * 2,
            *[("ERROR", "stream default cannot be written"), ("WARNING", "stream default is written again")],
        ]
    )


def test_the_probe_for_room_is_as_large_as_the_refused_write(folder: Path) -> None:
    """Room for less is not room for what comes."""

    class Small(FailingFiles):
        room = 1 << 40

        def write(self, descriptor: int, pieces: Any, at: int = -1) -> None:
            if sum(map(len, pieces)) > self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(descriptor, pieces, at)

    machine = Machine(folder, files=lambda _: Small())
    assert isinstance(machine.files, Small)
    client = machine.core.connect("c")
    machine.files.room = 600_000
    client.publish("a/b", os.urandom(1_000_000), qos=1)
    assert reasons(client) == [0x97]
    machine.tick(2)
    assert machine.journal.fault is not None
    machine.files.room = 2_000_000
    machine.tick(2)
    assert machine.journal.fault is None


def fail_state(machine: Machine, error: Exception) -> list[list[Any]]:
    """Let writes of the state fail until the returned list of attempts holds a None."""
    state = machine.journal.database
    commit = state.commit
    tried: list[Any] = []

    def fails(changes: Any) -> None:
        if None in tried:
            commit(changes)
            return
        tried.append(changes)
        raise error

    setattr(state, "commit", fails)  # noqa: B010
    return tried


@pytest.mark.usefixtures("internal_errors")
@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("disk full"), MemoryError("no more"), OSError(28)]
)
def test_waiters_for_the_state_are_called_after_any_fault_ends(folder: Path, error: Exception) -> None:
    machine = Machine(folder)
    client = machine.core.connect("c")
    tried = fail_state(machine, error)
    device = Device(machine, "waits")
    device.begin()
    machine.core.flush()
    assert len(tried) == 1
    fault = machine.journal.fault
    assert fault is not None
    assert fault.text.startswith("the state of sessions cannot be written")
    for number in range(20):
        client.publish("a/b", b"%d" % number, qos=1)
    late = Device(machine, "late")
    late.begin()
    machine.core.flush()
    assert len(reasons(client)) == 20, "messages need no state"
    assert len(tried) == 1, "it is tried again every second, not with every message"
    machine.tick(1)
    assert len(tried) == 2
    device.receive()
    assert not device.connected
    tried.append(None)  # type: ignore[arg-type]
    machine.tick(1)
    for one in (device, late):
        one.receive()
        assert one.connected
    assert machine.journal.fault is None


def test_state_changes_do_not_accumulate_while_the_state_cannot_be_written(folder: Path) -> None:
    machine = Machine(folder)
    client = machine.core.connect("c")
    machine.tick(2)
    tried = fail_state(machine, sqlite3.OperationalError("disk full"))
    topics, rounds = 20, 30
    for number in range(rounds):
        for topic in range(topics):
            client.send(Publish(b"b/%d" % topic, b"%d" % number, retain=True))
        machine.tick(1)
    assert len(tried) >= rounds // 2
    assert max(map(len, tried)) <= topics + 2, "a row of each topic, and one of each stream"
    assert not machine.journal.full
    tried.append(None)  # type: ignore[arg-type]
    machine.tick(2)
    machine.crash()
    machine.start()
    found = {
        topic: batch.payload() for topic, batch in machine.core.broker.retained.values.items() if batch.data
    }
    assert found == {b"b/%d" % topic: b"%d" % (rounds - 1) for topic in range(topics)}


def test_short_lived_changes_do_not_accumulate_while_the_state_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MIN_PRUNED", 64)
    machine = Machine(folder)
    client = machine.core.connect("c")
    kept = [b"b/%d" % number for number in range(20)]
    for topic in kept:
        client.send(Publish(topic, b"there", retain=True))
    machine.tick(2)
    tried = fail_state(machine, sqlite3.OperationalError("disk full"))
    for number in range(200):
        topic = b"new/%d" % number
        client.send(Publish(topic, b"x", retain=True), Publish(topic, b"", retain=True))
        passing = Device(machine, f"passing-{number}", expiry=1)
        passing.begin()
        passing.drop()
        if number < 10:
            client.send(Publish(kept[number], b"", retain=True))
        if number % 4 == 0:
            machine.tick(1)
    waits = [len(one) for one in tried]
    assert max(waits) < 200, waits
    tried.append(None)  # type: ignore[arg-type]
    machine.tick(2)
    machine.crash()
    machine.start()
    found = {topic for topic, batch in machine.core.broker.retained.values.items() if batch.data}
    assert found == set(kept[10:])


def test_too_many_waiting_state_changes_delay_other_clients_only_briefly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MAX_CHANGES", 10)
    machine = Machine(folder)
    client = machine.core.connect("c")
    machine.tick(2)
    fail_state(machine, sqlite3.OperationalError("disk full"))
    for number in range(100):
        client.send(Publish(b"b/%d" % number, b"x", retain=True))
        machine.tick(1)
        assert not machine.journal.full


def test_a_failed_sync_is_reported_and_its_messages_are_counted(folder: Path) -> None:
    machine, files = failing(folder, fsync_interval=0.01)
    client = machine.core.connect("c")
    client.publish("a/b", b"x", qos=1)
    for topic in ("a/b", "a/b", "b"):
        client.publish(topic, b"x")
    assert len(machine.log("a")) == 3
    let_pass(0.02, "the files are due to be synced")
    files.failing["sync"] = errno.EIO
    machine.tick(1)
    assert machine.journal.fault is not None
    assert "stream a cannot be written: Input/output error" in machine.journal.fault.text
    assert "stream default" in machine.journal.fault.text
    assert machine.core.broker.figures.log_lost == 3
    files.heal()
    machine.tick(2)
    assert machine.journal.fault is None
    assert machine.core.broker.figures.log_lost == 3
    machine.stop()


def test_unacknowledged_messages_are_synced_before_their_segment_is_sealed(folder: Path) -> None:
    """They are counted if that fails, too, and not if they could be made safe."""
    machine, files = failing(folder, fsync_interval=1_000.0)
    client = machine.core.connect("c")
    client.publish("a/b", b"x")
    files.failing["write"] = errno.ENOSPC
    client.publish("a/b", b"refused", qos=1)
    machine.tick(1)
    assert machine.core.broker.figures.log_lost == 0
    files.heal()
    client.publish("a/b", b"x")
    files.failing["sync"] = errno.EIO
    client.publish("a/b", b"refused", qos=1)
    files.heal()
    machine.tick(1)
    assert machine.core.broker.figures.log_lost == 1
    machine.stop()


# Jobs that raise unexpected exceptions


class Spoilt(Exception):
    """An unexpected exception."""


def spoil(*_: object) -> Any:
    raise Spoilt("on purpose")


@pytest.mark.usefixtures("internal_errors")
def test_the_callback_of_a_job_is_called_if_the_job_raises() -> None:
    posted: SimpleQueue[Any] = SimpleQueue()
    worker = ThreadWorker("spoilt", posted.put)
    told: list[object] = []
    try:
        worker.run(spoil, told.append, lambda error: f"failed: {error}")
        posted.get(timeout=10)()
        worker.run(lambda: "done", told.append, lambda error: "failed")
        posted.get(timeout=10)()
    finally:
        worker.stop()
    assert told == ["failed: on purpose", "done"]
    assert "spoilt" not in [thread.name for thread in threading.enumerate()]


class Much:
    """What a job is about."""

    def use(self) -> None:
        """Take it, and have no result."""


def test_a_finished_job_is_not_referenced_until_the_next() -> None:
    posted: SimpleQueue[Any] = SimpleQueue()
    worker = ThreadWorker("kept", posted.put)
    much = Much()
    gone = threading.Event()
    weakref.finalize(much, gone.set)
    try:
        worker.run(much.use, lambda _: None)
        del much
        posted.get(timeout=10)()
        assert gone.wait(10)
    finally:
        worker.stop()


@pytest.mark.usefixtures("internal_errors")
@pytest.mark.parametrize("method", ["write", "maintain"])
def test_writing_continues_after_an_internal_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    machine = Machine(folder)
    client = machine.core.connect("c")
    with monkeypatch.context() as patch:
        patch.setattr(machine.journal.log, method, spoil)
        machine.tick(1)
        client.publish("a/b", b"1", qos=1)
        client.publish("a/b", b"2", qos=1)
    answers = reasons(client)
    assert len(answers) == 2
    if method == "write":
        assert min(answers) >= 0x80, "nothing may be acknowledged"
    client.publish("a/b", b"3", qos=1)
    assert reasons(client) == [0x10]
    machine.tick(2)
    assert machine.journal.fault is None
    assert not machine.journal._is_maintaining


@pytest.mark.usefixtures("internal_errors")
def test_maintenance_continues_after_an_internal_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one stream it keeps the others from nothing; and it is said once."""
    machine = Machine(folder)
    client = machine.core.connect("c")
    for topic in ("a/b", "b"):
        client.publish(topic, b"x" * 7_000, qos=1)
        client.publish(topic, b"x", qos=1)
    to_parquet = tiering.to_parquet

    def convert(files: Any, stream: str, *rest: Any) -> Any:
        return spoil() if stream == "a" else to_parquet(files, stream, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(tiering, "to_parquet", convert)
        machine.tick(3)
        machine.tick(3)
    assert len(list(machine.data.glob("streams/default/*.parquet"))) == 1
    assert [record.levelname for record in caplog.records if "upkeep" in record.getMessage()] == ["WARNING"]
    with monkeypatch.context() as patch:
        patch.setattr(machine.journal.log, "keep_up", spoil)
        machine.tick(3)
    machine.tick(3)
    assert len(list(machine.data.glob("streams/a/*.parquet"))) == 1


def test_failing_and_recovering_upkeep_is_logged_once_each(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    machine, files = failing(folder)
    client = machine.core.connect("c")
    client.publish("a/b", b"x" * 7_000, qos=1)
    client.publish("a/b", b"x", qos=1)
    files.failing["write"] = errno.ENOSPC
    for _ in range(5):
        machine.tick(3)
    files.heal()
    for _ in range(3):
        machine.tick(3)
    lines = [record.getMessage() for record in caplog.records if "upkeep" in record.getMessage()]
    assert lines == [
        "stream a: upkeep: No space left on device",
        "stream a: upkeep works again (was: No space left on device)",
    ]
    machine.stop()


@pytest.mark.usefixtures("internal_errors")
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), Spoilt("on purpose")])
def test_a_query_by_time_is_answered_if_the_log_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    machine = Machine(folder, [StreamOptions()], reading=Deferred)
    machine.core.connect("c").publish("a", b"x", qos=1)
    stream = machine.journal.streams[0]

    def broken(_: int) -> int:
        raise error

    monkeypatch.setattr(machine.journal.log.readers[stream], "offset_at", broken)
    answers: list[int] = []
    machine.journal.offset_at(stream, machine.wall(), answers.append)
    machine.settle()
    assert answers == [0], "rather too much than too little"


def test_a_read_in_the_event_loop_is_answered_with_too_many_open_files(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()], reading=Deferred)
    machine.core.connect("c").publish("a", b"x", qos=1)
    stream = machine.journal.streams[0]
    pieces: list[Piece] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        assert machine.journal.earliest(stream) == 0
        machine.journal.read(stream, 0, 1, Wanted([b"a"]), pieces.append, at_once=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    machine.settle()
    assert [batch.payload() for piece in pieces for batch in piece.batches] == [b"x"]
    machine.stop()


@pytest.mark.usefixtures("internal_errors")
def test_a_read_is_answered_after_an_internal_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(folder, [StreamOptions()], reading=Deferred)
    machine.core.connect("c").publish("a", b"x", qos=1)
    stream = machine.journal.streams[0]
    places: list[int] = []
    found: list[dict[int, Batch]] = []
    with monkeypatch.context() as patch:
        for name in ("read_piece", "fetch"):
            patch.setattr(log_reader, name, spoil)
        wanted = Wanted([b"#"])
        machine.journal.read(stream, 0, 1, wanted, lambda piece: places.append(piece.next_offset))
        machine.journal.fetch(stream, [0], found.append)
        machine.settle()
    assert places == [0], "to be read again"
    assert found == [{}]


def test_messages_that_cannot_be_read_now_are_read_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(folder, [StreamOptions()], reading=Deferred)
    machine.core.connect("c").publish("a", b"x", qos=1)
    stream = machine.journal.streams[0]
    monkeypatch.setattr(log_reader, "RETRY_DELAY", 0.0)
    found: list[dict[int, Batch]] = []
    really, fails = reading.fetch, [True, True, False]

    def sometimes(*arguments: Any) -> Any:
        if fails.pop(0):
            raise OSError(errno.EMFILE, "Too many open files")
        return really(*arguments)

    monkeypatch.setattr(log_reader, "fetch", sometimes)
    machine.journal.fetch(stream, [0], found.append)
    machine.settle()
    assert [{offset: batch.payload() for offset, batch in one.items()} for one in found] == [{0: b"x"}]


def test_messages_that_can_never_be_read_are_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(folder, [StreamOptions()], reading=Deferred)
    machine.core.connect("c").publish("a", b"x", qos=1)
    monkeypatch.setattr(log_reader, "RETRY_DELAY", 0.0)
    found: list[dict[int, Batch]] = []

    def never(*arguments: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(log_reader, "fetch", never)
    machine.journal.fetch(machine.journal.streams[0], [0], found.append)
    machine.settle()
    assert found == [{}]


def test_a_failed_write_at_shutdown_is_an_error(folder: Path) -> None:
    machine = Machine(folder, files=lambda _: FailingFiles(), writing=Deferred)
    files = machine.files
    assert isinstance(files, FailingFiles)
    client = machine.core.connect("c")
    machine.settle()
    client.publish("a/b", b"first", qos=1)
    client.publish("a/b", b"last", qos=1)
    files.failing["write"] = errno.ENOSPC
    fail_state(machine, sqlite3.OperationalError("disk full"))
    with pytest.raises(FolderError) as caught:
        machine.stop()
    assert "what came last may be lost: stream a cannot be written: No space left" in str(caught.value)
    assert "the state of sessions cannot be written: disk full" in str(caught.value)
