"""What every promise rests on: syncs reach the disk, one that failed is never made good, the state waits."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyrite.journal import group_commit
from pyrite.journal.state import State
from pyrite.journal.workers import Worker
from pyrite.process.fair import NO_ONE, Asker
from pyrite.protocols.mqtt.packets import V311, Ack, Connack, Connect, Publish, WillMessage
from pyrite.protocols.mqtt.reasons import Reason
from pyrite.storage.files import Files
from pyrite.storage.options import StreamOptions
from pyrite.storage.segment_writer import SegmentWriter
from tests.journal.test_short_index import publish
from tests.storage.samples import append
from tests.support.durable import Deferred, Device, FailingFiles, Machine


def test_a_sync_calls_fdatasync() -> None:
    """A pipe cannot be synced, and the error is raised."""
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            Files().sync(writing)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_sync_of_a_folder_calls_fsync() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        Files().sync_folder(Path("/proc/self/ns"))


def test_commits_of_the_state_are_synced(tmp_path: Path) -> None:
    with closing(State(tmp_path / "state.sqlite")) as state:
        assert state._database.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
        assert state._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert state._cursor.connection is state._database


def test_a_sync_after_a_failed_one_acknowledges_nothing(tmp_path: Path) -> None:
    """The system forgets what it could not write: the next sync knows nothing of it."""
    files = FailingFiles()
    writer = SegmentWriter(files, tmp_path, 0)
    append(writer, True)
    files.failing["sync"] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        append(writer, True)
    files.heal()
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            append(writer, True)
    writer.abandon()


class FailsOnce(FailingFiles):
    """A disk on which one sync fails, and the next one of the same file succeeds."""

    def sync(self, descriptor: int) -> None:
        """Sync, or fail for once."""
        number = self.failing.pop("sync", None)
        if number is not None:
            raise OSError(number, os.strerror(number))


def test_messages_before_a_sync_that_failed_once_are_counted_as_lost(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions(fsync_interval=1_000.0)], files=lambda _: FailsOnce())
    disk = machine.files
    assert isinstance(disk, FailsOnce)
    client = machine.core.connect("publisher")
    client.publish("a", b"without a waiter")
    disk.failing["sync"] = errno.EIO
    assert not publish(client, b"refused")
    machine.tick(1)
    assert machine.core.broker.figures.log_lost == 1
    machine.stop()


def test_publishers_are_paused_while_64_mib_wait_to_be_written(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()], writing=Deferred)
    client = machine.core.connect("publisher")
    machine.settle()
    payload, most = bytes(4 << 20), 16
    assert most * len(payload) == group_commit.MAX_PENDING_BYTES

    def send(count: int) -> None:
        for _ in range(count):
            client.feed(client.encoded(Publish(b"a", payload, 1, packet_id=client.packet_id())))
            machine.core.flush()

    send(most - 1)
    assert not machine.journal.full
    send(2)
    assert machine.journal.full
    taken = machine.journal.groups.pending_bytes
    send(3)
    assert machine.journal.groups.pending_bytes == taken, "it is not read any more"
    machine.settle()
    assert not machine.journal.full
    machine.abandon()


class Aside(Worker):
    """Does each job in a thread of its own."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def run(
        self,
        job: Callable[[], Any],
        then: Callable[[Any], object],
        failed: Callable[[Exception], Any] = id,
        asker: Asker = NO_ONE,
    ) -> None:
        """Begin a job without a waiter for its result."""
        thread = threading.Thread(target=job, daemon=True)
        self.threads.append(thread)
        thread.start()


def test_the_state_is_committed_after_the_messages_that_it_refers_to(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()], writing=Deferred, committing=Aside)
    assert isinstance(machine.writing, Deferred)
    assert isinstance(machine.committing, Aside)
    client = machine.core.connect("publisher")
    client.feed(client.encoded(Publish(b"a", b"kept", retain=True)))
    machine.journal.after(lambda: None)
    machine.core.flush()
    (thread,) = machine.committing.threads
    thread.join(0.3)
    assert thread.is_alive(), "the messages are not written yet"
    machine.writing.work_only()
    thread.join(10)
    assert not thread.is_alive()
    machine.abandon()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_no_stream_keeps_is_not_acknowledged(folder: Path, qos: int) -> None:
    """# does not match topics that begin with $."""
    machine = Machine(folder, [StreamOptions("kept", ["$kept/#"]), StreamOptions()])
    reader = Device(machine, "away")
    reader.connect()
    assert reader.client is not None
    reader.client.subscribe("$kept/#", "$other/#", qos=qos)
    client = machine.core.connect("publisher")
    client.publish("$other/x", b"not kept", qos=qos)
    answer = client.only(Ack)
    assert answer.reason == Reason.TOPIC_NAME_INVALID
    assert "no stream captures" in answer.properties["reason_string"]
    client.publish("$other/x", b"of no promise")
    assert reader.client.payloads() == [b"of no promise"]
    reader.drop()
    client.publish("$kept/x", b"kept", qos=qos)
    assert client.only(Ack).reason < 0x80
    machine.crash(keep=True)
    machine.start()
    reader.cut_off()
    reader.connect()
    reader.finish()
    assert reader.payloads() == [b"kept"]
    machine.stop()


def test_a_client_of_3_1_1_is_disconnected_for_a_message_that_no_stream_keeps(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()])
    client = machine.core.connect("publisher", V311)
    client.publish("$other/x", b"of no promise")
    assert not client.closed
    client.publish("$other/x", b"not kept", qos=1)
    assert client.received() == []
    assert client.closed
    machine.stop()


def test_a_will_that_no_stream_would_keep_is_refused(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()])
    client = machine.core.wire()
    will = WillMessage(b"$other/x", b"", qos=1)
    client.send(Connect("publisher", will=will))
    assert client.only(Connack).reason == Reason.TOPIC_NAME_INVALID
    machine.stop()
