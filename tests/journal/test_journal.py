"""The journal: when it acknowledges, failing disks, and restarts."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyrite.broker.limits import Limits
from pyrite.journal import gathering, group_commit, log, progress
from pyrite.journal.disk import open_journal
from pyrite.journal.workers import Worker
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import V5, V311, Ack, Connack, Publish, Suback, Subscribe, Wish, encode
from pyrite.storage.folder import DataFolder, FolderError
from pyrite.storage.index import index_of, read_index
from pyrite.storage.options import StreamOptions
from tests.line.client import LineClient
from tests.support.core import Client
from tests.support.durable import (
    Deferred,
    Device,
    FailingFiles,
    FragileFiles,
    Machine,
    OpenFiles,
    default_streams,
)
from tests.support.waiting import let_pass

BOTH_VERSIONS = pytest.mark.parametrize("version", [V5, V311])


def deferred(folder: Path, **options: Any) -> Machine:
    """Return a machine whose disk writes when told to."""
    return Machine(folder, default_streams(**options), writing=Deferred)


def write(machine: Machine) -> bool:
    """Have the disk write one group; tell whether there was one."""
    assert isinstance(machine.writing, Deferred)
    done = machine.writing.step()
    machine.core.flush()
    return done


def failing(folder: Path, streams: Sequence[StreamOptions] | None = None) -> tuple[Machine, FailingFiles]:
    """Return a machine whose disk fails when told to."""
    machine = Machine(folder, streams, files=lambda _: FailingFiles())
    assert isinstance(machine.files, FailingFiles)
    return machine, machine.files


def acks(client: Client) -> list[tuple[int, int]]:
    """Return the acknowledgements that came: type and id."""
    return [(packet.type, packet.packet_id) for packet in client.received() if isinstance(packet, Ack)]


def reasons(client: Client) -> list[int]:
    """Return the reasons in the acknowledgements that came."""
    return [packet.reason for packet in client.received() if isinstance(packet, Ack)]


def payloads(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["payload"] for row in rows]


# Group commit


def test_messages_that_arrive_during_a_write_form_the_next_group(folder: Path) -> None:
    machine = deferred(folder)
    client = machine.core.connect("c")
    for number in range(3):
        client.publish("a/b", b"%d" % number, qos=1)
    assert client.received() == []
    assert write(machine)
    assert acks(client) == [(fields.PUBACK, 1)]
    assert payloads(machine.log("a")) == [b"0"]
    assert write(machine)
    assert acks(client) == [(fields.PUBACK, 2), (fields.PUBACK, 3)]
    assert not write(machine)
    assert payloads(machine.log("a")) == [b"0", b"1", b"2"]


def test_a_message_is_routed_once_it_is_durable(folder: Path) -> None:
    machine = deferred(folder)
    reader = machine.core.connect("reader")
    reader.subscribe("#", qos=2)
    writer = machine.core.connect("writer")
    for qos in (0, 1, 2):
        writer.publish("a/b", b"%d" % qos, qos=qos)
    assert reader.payloads() == [b"0"], "QoS 0 waits for nothing"
    while write(machine):
        pass
    assert reader.payloads() == [b"1", b"2"]


def test_acknowledgements_are_sent_in_the_order_of_the_messages(folder: Path) -> None:
    """Captured by one stream, by another, or by none."""
    machine = Machine(folder, [StreamOptions("a", ["a/#"]), StreamOptions("b", ["b/#"])], writing=Deferred)
    client = machine.core.connect("c")
    topics = ["c", "a", "c", "b", "c", "a", "c"]
    for topic in topics:
        client.publish(topic, b"x", qos=1)
        client.publish(topic, b"x", qos=2)
    assert acks(client) == [(fields.PUBACK, 1), (fields.PUBREC, 2)], "nothing was before these"
    while write(machine):
        pass
    kinds = [fields.PUBACK, fields.PUBREC] * (len(topics) - 1)
    assert acks(client) == list(zip(kinds, range(3, 2 * len(topics) + 1), strict=True))


def test_a_session_is_durable_before_connack(folder: Path) -> None:
    machine = deferred(folder)
    device = Device(machine, "c")
    device.begin()
    assert not device.connected
    machine.settle()
    device.receive()
    assert device.connected
    machine.crash()
    machine.start()
    again = Device(machine, "c")
    again.begin()
    machine.settle()
    again.receive()
    assert again.present


def test_a_client_with_a_transient_session_does_not_wait_for_the_journal(folder: Path) -> None:
    machine = deferred(folder)
    client = machine.core.connect("c")
    assert client.subscribe("#", qos=1) == [1]
    assert client.unsubscribe("#") == [0]


def test_nothing_is_sent_before_connack(folder: Path) -> None:
    """[MQTT-3.2.0-1]: while the session is made safe, messages come in for it."""
    machine = deferred(folder)
    device, other = Device(machine, "c"), Device(machine, "other", expiry=0)
    other.connect()
    for one in (device,):
        one.begin()
        machine.settle()
        one.receive()
    assert device.client is not None
    device.client.send(Subscribe(1, [Wish(b"a/#", 1), Wish(b"$share/g/b/#", 1)]))
    machine.settle()
    device.drop()
    machine.settle()
    device.begin()
    other.publish(("a/b", b"0", 0), ("a/b", b"1", 1), ("b/b", b"1", 1))
    device.receive()  # which fails if anything is before the CONNACK
    machine.settle()
    device.receive()
    assert device.connected
    device.finish()
    assert sorted(device.payloads())[-2:] == [b"1", b"1"]


def test_a_subscription_is_durable_before_suback(folder: Path) -> None:
    machine = deferred(folder)
    device = Device(machine, "c")
    device.begin()
    machine.settle()
    device.receive()
    assert device.client is not None
    device.client.send(Subscribe(1, [Wish(b"a/#", 1)]))
    device.receive()
    assert device.others == []
    machine.settle()
    device.receive()
    assert [one.reasons for one in device.others if isinstance(one, Suback)] == [[1]]
    machine.crash()
    machine.start()
    assert set(machine.core.broker.sessions.by_id["c"].subscriptions) == {b"a/#"}


def test_messages_without_a_waiting_publisher_accumulate(folder: Path) -> None:
    """Without a timer they are written at the next flush."""
    machine = Machine(folder)
    client = machine.core.connect("c")
    for number in range(5):
        client.feed(client.encoded(Publish(b"a/b", b"%d" % number)))
    machine.core.flush()
    assert len(machine.log("a")) == 5
    assert len(list(machine.data.glob("streams/a/*.arrow"))) == 1


def test_a_duplicate_qos_2_message_is_acknowledged_once_the_first_is_durable(folder: Path) -> None:
    machine = deferred(folder)
    client = machine.core.connect("c")
    client.publish("a/b", b"x", qos=2, packet_id=7)
    client.publish("a/b", b"x", qos=2, dup=True, packet_id=7)
    assert acks(client) == []
    while write(machine):
        pass
    assert acks(client) == [(fields.PUBREC, 7)] * 2
    assert len(machine.log("a")) == 1


def test_a_queued_message_goes_to_the_sessions_connected_at_its_turn(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions("a", ["a/#"])], writing=Deferred)
    reader = machine.core.connect("reader")
    reader.subscribe("u", qos=1)
    writer = machine.core.connect("writer")
    writer.publish("a/b", b"first", qos=1)
    writer.publish("u", b"second", qos=1)
    reader.drop()
    other = machine.core.connect("other")
    other.subscribe("u", qos=1)
    while write(machine):
        pass
    assert other.payloads() == [b"second"]
    assert machine.core.broker.figures.messages_stored == 0, "nothing waits in a session that is over"


# Streams


def test_the_first_stream_that_matches_captures(folder: Path) -> None:
    streams = [
        StreamOptions("first", ["a/+", "x"]),
        StreamOptions("second", ["a/#"]),
        StreamOptions("third", ["b/#", "a/b/c"]),
    ]
    machine = Machine(folder, streams)
    client = machine.core.connect("c")
    for topic in ("a/b", "a/b/c", "a", "x", "b", "b/c", "none"):
        client.publish(topic, topic.encode(), qos=1)
    assert payloads(machine.log("first")) == [b"a/b", b"x"]
    assert payloads(machine.log("second")) == [b"a/b/c", b"a"]
    assert payloads(machine.log("third")) == [b"b", b"b/c"]


def test_topics_with_a_dollar_are_not_captured_by_a_wildcard(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions("all", ["#", "+/b"]), StreamOptions("some", ["$mine/#"])])
    client = machine.core.connect("c")
    for topic in ("$other/b", "$mine/b", "a/b"):
        client.publish(topic, topic.encode(), qos=1)
    machine.core.broker.publishing.publish(_system_batch())
    machine.core.flush()
    assert payloads(machine.log("all")) == [b"a/b"]
    assert payloads(machine.log("some")) == [b"$mine/b"]


def _system_batch() -> Any:
    from pyrite.broker.message import Batch

    return Batch(b"$SYS/broker/x", b"1", 0, True)


def test_a_stream_keeps_its_number_if_others_precede_it(folder: Path) -> None:
    """A session's place in a stream is known by the stream's number."""
    streams = default_streams()
    machine = Machine(folder, streams)
    reader, writer = Device(machine, "reader"), Device(machine, "writer")
    reader.connect()
    assert reader.client is not None
    reader.client.subscribe("#", qos=1)
    reader.drop()
    writer.connect()
    writer.publish(("a/b", b"1", 1), ("b", b"2", 1))
    writer.finish()
    machine.stop()
    machine.streams = [StreamOptions("new", ["n/#"]), streams[1], streams[0]]
    machine.streams[1].topics = ["b/#"]
    machine.start()
    reader.connect()
    reader.finish()
    assert sorted(reader.payloads()) == [b"1", b"2"]
    machine.stop()


def test_a_stream_that_is_no_longer_configured_is_read_to_its_end(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    streams = default_streams()
    machine = Machine(folder, streams)
    early, late, writer = (Device(machine, name) for name in ("early", "late", "writer"))
    for one in (early, late):
        one.connect()
        assert one.client is not None
        one.client.subscribe("#", qos=1)
        one.drop()
    writer.connect()
    writer.publish(("a/b", b"1", 1))
    writer.finish()
    for left, payload in ((streams[1:], b"2"), (streams, b"3")):
        machine.stop()
        writer.cut_off()
        machine.streams = left
        caplog.clear()
        machine.start()
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert ["stream a is not configured" in one for one in told] == [True] * (left is not streams)
        writer.connect()
        writer.publish(("a/b", payload, 1))
        writer.finish()
        if left is not streams:
            assert payloads(machine.log("default")) == [b"2"]
            early.connect()
            early.finish()
            assert sorted(early.payloads()) == [b"1", b"2"]
            late.connect()  # and has its place written anew
            late.drop()
            machine.journal.state.progress.replace_steps(machine.core.broker.sessions.by_id["late"])
            machine.journal.state.save_deliveries(machine.core.broker.sessions.by_id["late"])
            early.drop()
    late.connect()
    late.finish()
    assert sorted(set(late.payloads())) == [b"1", b"2", b"3"]
    assert payloads(machine.log("a")) == [b"1", b"3"]
    machine.stop()


def test_offsets_are_never_reused(folder: Path) -> None:
    machine = Machine(folder)
    for _ in range(3):
        client = machine.core.connect("c")
        client.publish("a/b", b"x", qos=1)
        client.publish("a/b", b"x", qos=0)
        machine.restart()
    assert [row["offset"] for row in machine.log("a")] == list(range(6))


def test_offsets_of_lost_messages_are_not_reused(folder: Path) -> None:
    """The state refers to messages that no longer exist."""
    machine = Machine(folder, default_streams(fsync="never", segment_bytes=1_000_000))
    client = machine.core.connect("c")
    for _ in range(5):
        client.publish("a/b", b"lost", qos=1)
    machine.tick(2)  # the state is written: so far it has come
    machine.crash()
    machine.start()
    machine.core.connect("c").publish("a/b", b"new", qos=1)
    assert [(row["offset"], row["payload"]) for row in machine.log("a")] == [(5, b"new")]
    machine.restart()
    machine.core.connect("c").publish("a/b", b"newer", qos=1)
    assert [row["offset"] for row in machine.log("a")] == [5, 6]


# When it is forced to disk


class CountingFiles(OpenFiles):
    """Counts syncs of files."""

    def __init__(self, _: Path) -> None:
        super().__init__()
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1


@pytest.mark.parametrize(
    ("fsync", "published", "later"), [("always", 3, 0), ("interval", 0, 1), ("never", 0, 0)]
)
def test_each_fsync_policy_syncs_when_documented(
    folder: Path, fsync: str, published: int, later: int
) -> None:
    streams = default_streams(fsync=fsync, segment_bytes=1_000_000, fsync_interval=0.2)
    machine = Machine(folder, streams, files=CountingFiles)
    files = machine.files
    assert isinstance(files, CountingFiles)
    client = machine.core.connect("c")
    before = files.syncs
    for number in range(3):
        client.publish("a/b", b"%d" % number, qos=1)
    assert acks(client) == [(fields.PUBACK, number) for number in (1, 2, 3)]
    assert files.syncs - before == published
    let_pass(0.25, "the files are due to be synced")
    machine.tick(3)
    assert files.syncs - before == published + later
    machine.stop()


def test_messages_without_a_waiting_publisher_are_synced_in_time(folder: Path) -> None:
    machine = Machine(folder, default_streams(fsync_interval=0.2), files=CountingFiles)
    files = machine.files
    assert isinstance(files, CountingFiles)
    before = files.syncs  # the start has synced files of the folder
    machine.core.connect("c").publish("a/b", b"x")
    assert files.syncs == before
    let_pass(0.25, "the files are due to be synced")
    machine.tick(2)
    assert files.syncs == before + 1
    machine.tick(2)
    assert files.syncs == before + 1


# A disk that fails


FAULTS = pytest.mark.parametrize(
    ("operation", "error", "reason"),
    [
        ("write", errno.ENOSPC, 0x97),
        ("write", errno.EIO, 0x80),
        ("write", errno.EDQUOT, 0x97),
        ("sync", errno.EIO, 0x80),
        ("sync", errno.ENOSPC, 0x97),
    ],
)


@FAULTS
@pytest.mark.parametrize("begun", [False, True])
def test_messages_are_refused_while_the_disk_fails(
    folder: Path, operation: str, error: int, reason: int, begun: bool
) -> None:
    machine, files = failing(folder)
    reader = machine.core.connect("reader")
    reader.subscribe("#", qos=2)
    client = machine.core.connect("c")
    if begun:
        client.publish("a/b", b"before", qos=1)
        client.received()
        reader.finish()
    files.failing[operation] = error
    for number in range(3):
        client.publish("a/b", b"no", qos=1)
        client.publish("a/b", b"no", qos=2, retain=True)
        assert reasons(client) == [reason] * 2
        assert machine.journal.fault is not None
        client.publish("a/b", b"%d" % number, qos=0)
    assert reader.payloads() == [b"0", b"1", b"2"], "QoS 0 goes on, and no more"
    assert machine.core.broker.retained.values == {}
    files.heal()
    client.publish("a/b", b"after", qos=1)
    client.publish("a/b", b"after", qos=2, packet_id=4)  # which was refused before
    assert acks(client) == [(fields.PUBACK, client._next_id), (fields.PUBREC, 4)]
    assert [one.payload for one in reader.finish()] == [b"after"] * 2
    assert machine.journal.fault is None
    kept = [row["payload"] for row in machine.log("a") if row["qos"]]
    assert kept == [b"before"] * begun + [b"after"] * 2
    machine.restart()
    assert machine.journal.damages == []
    machine.core.connect("c").publish("a/b", b"later", qos=1)
    assert [row["payload"] for row in machine.log("a") if row["qos"]][-1] == b"later"
    machine.stop()


@FAULTS
def test_a_refused_3_1_1_client_gets_no_answer_and_may_retry(
    folder: Path, operation: str, error: int, reason: int
) -> None:
    machine, files = failing(folder)
    client = machine.core.connect("c", V311)
    files.failing[operation] = error
    client.publish("a/b", b"1", qos=1, packet_id=1)
    client.publish("a/b", b"2", qos=2, packet_id=2)
    assert client.received() == []
    assert not client.closed
    files.heal()
    client.publish("a/b", b"1", qos=1, dup=True, packet_id=1)
    client.publish("a/b", b"2", qos=2, dup=True, packet_id=2)
    assert acks(client) == [(fields.PUBACK, 1), (fields.PUBREC, 2)]
    assert [row["payload"] for row in machine.log("a")] == [b"1", b"2"]


@BOTH_VERSIONS
@pytest.mark.parametrize("with_state", [False, True])
def test_the_id_of_a_refused_message_is_free_after_a_restart_too(
    folder: Path, version: int, with_state: bool
) -> None:
    """The broker must not take the next message under it for one that it has."""
    machine, files = failing(folder)
    device = Device(machine, "c", version=version)
    device.connect()
    files.failing["write"] = errno.ENOSPC
    device.publish(("a/b", b"refused", 2), flush=False)
    if with_state:  # state is written with the group
        Device(machine, "other").connect()
    machine.core.flush()
    device.receive()
    assert len(device.refused) == (version == V5)
    machine.crash(keep=True)
    device.cut_off()
    device.outgoing.clear()
    machine.start()
    device.connect()
    device.publish(("a/b", b"taken", 2))
    device.finish()
    assert [one.packet.payload for one in device.accepted] == [b"taken"]
    assert payloads(machine.log("a")) == [b"taken"]


def test_refusing_messages_does_not_affect_an_earlier_one(folder: Path) -> None:
    """A message that is sent again lies between two that fail."""
    machine, files = failing(folder)
    reader = machine.core.connect("reader")
    reader.subscribe("#", qos=2)
    client = machine.core.connect("c")
    client.publish("a/b", b"5", qos=2, packet_id=5)
    assert reasons(client) == [0]
    files.failing["write"] = errno.EIO
    client.send(
        Publish(b"a/b", b"6", 2, False, True, 6),
        Publish(b"a/b", b"5", 2, False, True, 5),
        Publish(b"a/b", b"7", 2, False, True, 7),
    )
    client.received()
    files.heal()
    client.publish("a/b", b"5", qos=2, dup=True, packet_id=5)
    assert payloads(machine.log("a")) == [b"5"], "it was there already"
    assert reader.payloads() == [b"5"]


def test_only_messages_that_were_not_kept_are_refused(folder: Path) -> None:
    """The id of a message that was kept must not seem free to its publisher."""
    machine, files = failing(folder)
    client = machine.core.connect("c")
    client.publish("a/b", b"5", qos=2, packet_id=5)
    client.received()
    files.failing["write"] = errno.EIO
    client.send(*(Publish(b"a/b", b"%d" % one, 2, False, True, one) for one in (6, 5, 7)))
    answers = {one.packet_id: one.reason for one in client.received() if isinstance(one, Ack)}
    assert answers == {6: 0x80, 5: 0, 7: 0x80}


def test_a_qos_2_id_survives_commits_of_the_state_with_it_and_after_it(folder: Path) -> None:
    """Its id must be noted before the state says that the log need not be looked at for it."""
    machine = Machine(folder)
    device, other = Device(machine, "c"), Device(machine, "other")
    device.connect()
    device.publish(("a/b", b"x", 2), flush=False)
    other.connect()  # state is written with the group
    machine.tick(3)  # and again, as the stream has moved
    machine.crash()
    machine.start()
    device.cut_off()  # before it reads the acknowledgement
    device.connect()
    device.finish()
    assert payloads(machine.log("a")) == [b"x"]


def test_a_failing_stream_does_not_stop_the_others(folder: Path) -> None:
    machine, files = failing(folder)
    client = machine.core.connect("c")
    files.failing["write"] = errno.EIO
    files.only = "/a/"
    client.send(Publish(b"a/b", b"1", 1, packet_id=1), Publish(b"b", b"2", 1, packet_id=2))
    assert reasons(client) == [0x80, 0x10]
    files.heal()
    assert payloads(machine.log("default")) == [b"2"]
    client.publish("a/b", b"3", qos=1)
    assert payloads(machine.log("a")) == [b"3"]


@pytest.mark.parametrize("operation", ["open", "write", "sync_folder"])
def test_a_long_disk_failure_uses_bounded_memory(folder: Path, operation: str) -> None:
    """Neither open files nor files on the disk, of which there may be no more to be had."""
    machine, files = failing(folder)
    client = machine.core.connect("c")
    client.publish("a/b", b"before", qos=1)
    files.failing["write"] = errno.ENOSPC
    client.publish("a/b", b"no", qos=1)
    files.heal()
    files.failing[operation] = errno.ENOSPC
    for _ in range(50):
        client.publish("a/b", b"no", qos=1)
    assert len(files.open_files) < 10
    assert len(list((machine.data / "streams" / "a").iterdir())) < 10
    files.heal()
    client.publish("a/b", b"after", qos=1)
    assert [row["payload"] for row in machine.log("a")] == [b"before", b"after"]
    machine.stop()


def test_earlier_messages_are_read_while_the_disk_fails(folder: Path) -> None:
    machine, files = failing(folder)
    reader, writer = Device(machine, "reader"), Device(machine, "writer")
    reader.connect()
    assert reader.client is not None
    reader.client.subscribe("#", qos=1)
    reader.drop()
    writer.connect()
    writer.publish(("a/b", b"1", 1), ("b", b"2", 1))
    files.failing["write"] = errno.EIO
    writer.publish(("a/b", b"no", 1), ("b", b"no", 1))
    reader.connect()
    reader.finish()
    assert sorted(reader.payloads()) == [b"1", b"2"]


def retained_rows(machine: Machine) -> int:
    """Return how many retained messages the state has on disk."""
    with sqlite3.connect(machine.data / "state.sqlite") as state:
        number: int = state.execute("SELECT count(*) FROM retained").fetchone()[0]
        return number


def test_many_state_changes_are_committed_without_further_delay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MAX_DELAYED_CHANGES", 5)
    machine = Machine(folder)
    client = machine.core.connect("c")
    for number in range(4):
        client.publish(f"b/{number}", b"x", retain=True)
    assert retained_rows(machine) == 0
    client.publish("b/4", b"x", retain=True)
    assert retained_rows(machine) == 5
    client.publish("b/5", b"x", retain=True)
    assert retained_rows(machine) == 5
    machine.core.tick(2)
    assert retained_rows(machine) == 6


def test_a_client_that_makes_many_state_changes_waits_for_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others do not: they publish, and are told that it is safe."""
    monkeypatch.setattr(group_commit, "MAX_CHANGES", 10)
    machine = deferred(folder)
    client, other = machine.core.connect("c"), machine.core.connect("other")
    while write(machine):
        pass
    packets = b"".join(encode(Publish(b"b/%d" % n, b"x", retain=True), V5) for n in range(40))
    client.send(packets)
    assert client.transport.paused
    assert not machine.journal.full
    other.publish("b/c", b"x", qos=1)
    assert not other.transport.paused
    for _ in range(10):
        machine.core.tick(2)
        while write(machine):
            pass
    assert not client.transport.paused
    assert retained_rows(machine) == 40


def test_messages_are_acknowledged_while_the_state_is_being_written(folder: Path) -> None:
    machine = Machine(folder, writing=Deferred, committing=Deferred)
    assert isinstance(machine.writing, Deferred)
    assert isinstance(machine.committing, Deferred)
    client = machine.core.connect("c")
    client.send(Publish(b"b/kept", b"x", retain=True))
    machine.core.tick(2)
    assert write(machine)
    assert machine.committing.waiting == 1
    other = machine.core.connect("other")
    other.send(Publish(b"b/c", b"x", qos=1, packet_id=1))
    while write(machine):
        pass
    assert acks(other) == [(fields.PUBACK, 1)]
    assert machine.committing.waiting == 1
    assert retained_rows(machine) == 0
    assert machine.committing.step()
    assert retained_rows(machine) == 1


def test_a_qos_0_retained_message_waits_for_earlier_ones_on_its_topic(folder: Path) -> None:
    machine = deferred(folder)
    client = machine.core.connect("c")
    retained = machine.core.broker.retained.values
    client.send(Publish(b"b/c", b"1", qos=1, packet_id=1, retain=True))
    client.send(Publish(b"b/c", b"2", retain=True))
    client.send(Publish(b"b/c", b"", retain=True))
    client.send(Publish(b"b/d", b"1", retain=True))
    assert list(retained) == [b"b/d"]
    machine.settle()
    assert list(retained) == [b"b/d"]
    client.send(Publish(b"b/c", b"3", retain=True))
    assert retained[b"b/c"].payload() == b"3"


def fail_state(machine: Machine) -> Callable[[], None]:
    """Let writes of the state fail until the returned function is called."""
    state = machine.journal.database
    commit = state.commit

    def fails(changes: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    setattr(state, "commit", fails)  # noqa: B010
    return lambda: setattr(state, "commit", commit)


def test_a_waiter_for_the_state_waits_until_it_is_durable(folder: Path) -> None:
    """Commits of messages in the meantime do not make it durable."""
    machine = Machine(folder)
    client = machine.core.connect("other")
    heal = fail_state(machine)
    device = Device(machine, "c")
    device.begin()
    assert not device.connected
    client.publish("a/b", b"x", qos=1)
    assert reasons(client) == [0x10], "messages alone need no state"
    device.receive()
    assert not device.connected
    machine.tick(2)
    device.receive()
    assert not device.connected
    heal()
    machine.tick(2)
    device.receive()
    assert device.connected
    machine.crash()
    machine.start()
    assert "c" in machine.core.broker.sessions.by_id


def test_the_queue_for_a_client_that_waits_for_the_disk_is_bounded(folder: Path) -> None:
    machine = Machine(folder, limits=Limits(max_waiting_bytes=5_000))
    reader = Device(machine, "reader")
    reader.connect()
    assert reader.client is not None
    reader.client.subscribe("#", qos=0)
    reader.drop()
    machine.tick(2)
    heal = fail_state(machine)
    reader.begin()
    assert not reader.connected
    writer = machine.core.connect("writer")
    for _ in range(200):
        writer.publish("a/b", b"x" * 1_000)
    assert reader.client is not None
    assert sum(map(len, reader.client.connection.chunks)) < 12_000
    heal()
    machine.tick(2)
    reader.receive()
    assert reader.connected


# What a restart brings back


def test_sessions_subscriptions_and_retained_messages_survive_a_restart(folder: Path) -> None:
    machine = Machine(folder)
    device = Device(machine, "c", expiry=100)
    device.connect()
    assert device.client is not None
    device.client.subscribe("a/+", "$share/g/b", qos=2)
    device.client.subscribe("c", qos=1, no_local=True, retain_as_published=True, subscription_identifier=9)
    publisher = machine.core.connect("p")
    publisher.publish(
        "r/1",
        b"kept",
        qos=1,
        retain=True,
        content_type="text/plain",
        user_property=[("a", "b"), ("a", "c")],
        correlation_data=b"\0\xff",
        message_expiry=50,
    )
    publisher.publish("r/2", b"kept too", retain=True)
    publisher.publish("r/3", b"gone", qos=1, retain=True)
    publisher.publish("r/3", b"", qos=2, retain=True)
    machine.tick(10)
    machine.restart()
    session = machine.core.broker.sessions.by_id["c"]
    assert set(session.subscriptions) == {b"a/+", b"$share/g/b", b"c"}
    subscription = session.subscriptions[b"c"]
    assert (subscription.qos, subscription.no_local, subscription.retain_as_published) == (1, True, True)
    assert subscription.identifiers == (9,)
    reader = machine.core.connect("reader")
    reader.subscribe("r/#", qos=1)
    found = {message.topic: message for message in reader.messages()}
    assert {topic: message.payload for topic, message in found.items()} == {
        b"r/1": b"kept",
        b"r/2": b"kept too",
    }
    properties = found[b"r/1"].properties
    assert 39 <= properties.pop("message_expiry") <= 41
    assert properties == {
        "content_type": "text/plain",
        "user_property": [("a", "b"), ("a", "c")],
        "correlation_data": b"\0\xff",
    }
    machine.stop()


@pytest.mark.parametrize("crash", [False, True])
def test_a_session_expires_while_the_broker_is_down(folder: Path, crash: bool) -> None:
    machine = Machine(folder)
    for name, expiry in (("short", 10), ("long", 1_000)):
        device = Device(machine, name, expiry)
        device.connect()
        device.drop()
    machine.tick(2)
    if crash:
        machine.crash(keep=True)
    else:
        machine.stop()
    machine.elapsed += 60
    machine.start()
    machine.tick(1)
    assert set(machine.core.broker.sessions.by_id) == {"long"}


def test_a_session_that_was_resumed_has_its_full_time_after_a_crash(folder: Path) -> None:
    """When it would have expired had its client not come back, is of no importance."""
    machine = Machine(folder)
    device = Device(machine, "c", expiry=100)
    device.connect()
    device.drop()
    machine.tick(50)
    device.connect()
    machine.tick(200)
    machine.crash()
    machine.start()
    machine.tick(50)
    device.cut_off()
    device.connect()
    assert device.present


def test_a_session_that_ends_with_its_connection_does_not_outlive_a_crash(folder: Path) -> None:
    """3.1.2.11.2: an expiry of 0 in the last CONNECT replaces earlier ones."""
    machine = Machine(folder)
    device = Device(machine, "c", expiry=100)
    device.connect()
    device.drop()
    device.expiry = 0
    device.connect()
    assert device.present
    machine.tick(2)
    machine.crash()
    machine.start()
    machine.tick(1)
    assert machine.core.broker.sessions.by_id == {}


def test_an_expired_message_is_not_sent_after_a_restart(folder: Path) -> None:
    machine = Machine(folder)
    reader = Device(machine, "reader")
    reader.connect()
    assert reader.client is not None
    reader.client.subscribe("#", qos=1)
    reader.drop()
    writer = machine.core.connect("writer")
    writer.publish("a/b", b"short", qos=1, message_expiry=10)
    writer.publish("a/b", b"long", qos=1, message_expiry=100)
    machine.tick(2)
    machine.stop()
    machine.elapsed += 30
    machine.start()
    reader.connect()
    reader.finish()
    assert reader.payloads() == [b"long"]
    assert 67 <= reader.got[0].properties["message_expiry"] <= 69


def test_the_newest_retained_messages_are_restored_from_the_log(folder: Path) -> None:
    """The state is written every second; messages at once."""
    machine = Machine(folder)
    client = machine.core.connect("c")
    client.publish("a/1", b"old", qos=1, retain=True)
    client.publish("a/2", b"old", qos=1, retain=True)
    machine.tick(2)
    client.publish("a/1", b"new", qos=1, retain=True)
    client.publish("a/2", b"", qos=1, retain=True)
    client.publish("b", b"first", qos=2, retain=True)
    machine.crash()
    machine.start()
    kept = {topic: batch.payload() for topic, batch in machine.core.broker.retained.values.items()}
    assert kept == {b"a/1": b"new", b"b": b"first"}


def test_the_last_retained_message_stays_at_any_qos(folder: Path) -> None:
    """QoS 0 waits for nothing, and must not be overtaken by what came before it."""
    machine = Machine(folder)
    client = machine.core.connect("c")
    client.send(
        Publish(b"a/1", b"before", 1, True, packet_id=1),
        Publish(b"a/1", b"last", 0, True),
        Publish(b"a/2", b"before", 1, True, packet_id=2),
        Publish(b"a/2", b"", 0, True),
    )
    kept = {topic: batch.payload() for topic, batch in machine.core.broker.retained.values.items()}
    assert kept == {b"a/1": b"last"}
    machine.restart()
    kept = {topic: batch.payload() for topic, batch in machine.core.broker.retained.values.items()}
    assert kept == {b"a/1": b"last"}


def test_bytes_dropped_from_the_end_at_start_are_reported(folder: Path) -> None:
    machine = Machine(folder)
    client = machine.core.connect("c")
    client.publish("a/b", b"safe", qos=1)
    machine.stop()
    path = next((machine.data / "streams" / "a").glob("*.arrow"))
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\xff\xff\xff\xff" + b"x" * 96)
    machine.start()
    opened = {stream.name: writer.opened for stream, writer in machine.journal.log.writers.items()}
    assert (opened["a"].dropped, opened["a"].damages) == (100, [])
    assert "offsets 0 to 0 in 1 segments" in str(opened["a"])
    assert "dropped 100 bytes at the end that were never acknowledged" in str(opened["a"])
    assert "dropped" not in str(opened["default"])
    assert machine.journal.damages == []
    assert path.stat().st_size == size
    machine.stop()


def test_damage_in_promised_messages_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MAX_ROWS", 0)  # each message becomes a record batch
    machine = Machine(folder)
    client = machine.core.connect("c")
    path = machine.data / "streams" / "a" / f"{0:020d}.arrow"
    for number in range(3):
        client.publish("a/b", b"%d" % number, qos=1)
    machine.stop()
    second = read_index(index_of(path))[0][1]
    with path.open("r+b") as file:
        file.seek(int(second["position"] + second["length"] // 2))
        file.write(b"\x55" * 8)
    machine.start()
    assert len(machine.journal.damages) == 1
    assert "messages 1 to 1 are lost" in machine.journal.damages[0]
    machine.core.connect("c").publish("a/b", b"3", qos=1)
    rows = machine.log("a", damaged=True)
    assert [(row["offset"], row["payload"]) for row in rows] == [(0, b"0"), (2, b"2"), (3, b"3")]


# Sessions and the log


def reader_with(machine: Machine, *wishes: str, window: int = 0, qos: int = 1) -> Device:
    """Return a client with subscriptions that is away."""
    device = Device(machine, "reader", window=window)
    device.connect()
    assert device.client is not None
    device.client.subscribe(*wishes, qos=qos)
    device.drop()
    return device


@pytest.mark.parametrize("qos", [1, 2])
def test_replacing_a_subscription_loses_nothing(folder: Path, qos: int) -> None:
    """[MQTT-3.8.4-4]: many clients subscribe anew whenever they connect."""
    machine = Machine(folder, limits=Limits(max_buffered_bytes=64), reading=Deferred)
    reader = reader_with(machine, "a/#", window=1, qos=qos)
    writer = Device(machine, "writer")
    writer.connect()
    for number in range(20):
        writer.publish(("a/b", b"%02d" % number, 2))
    reader.connect()
    assert reader.client is not None
    reader.client.subscribe("a/#", qos=qos)
    reader.receive()
    reader.finish()
    assert reader.payloads() == [b"%02d" % number for number in range(20)]


def test_messages_from_before_the_subscription_are_not_sent(folder: Path) -> None:
    machine = Machine(folder, limits=Limits(max_buffered_bytes=64), reading=Deferred)
    reader = reader_with(machine, "a/1", window=1)
    writer = Device(machine, "writer")
    writer.connect()
    for number in range(10):
        writer.publish(("a/1", b"1 %d" % number, 1), ("a/2", b"2 %d" % number, 1))
    reader.connect()
    assert reader.client is not None
    reader.client.subscribe("a/2", qos=1)
    writer.publish(("a/2", b"new", 1))
    reader.receive()
    reader.finish()
    assert reader.payloads() == [*(b"1 %d" % number for number in range(10)), b"new"]


def test_a_slow_client_catches_up_from_the_log(folder: Path) -> None:
    """With any bound on buffered bytes."""
    for most in (1, 2, 64, 1_000):
        machine = Machine(folder / str(most), limits=Limits(max_buffered_bytes=most))
        reader = reader_with(machine, "#", window=2, qos=2)
        reader.connect()
        writer = Device(machine, "writer")
        writer.connect()
        for number in range(30):
            writer.publish((f"{'ab'[number % 2]}/b", b"%02d" % number, 1 + number % 2))
        reader.finish()
        assert sorted(reader.payloads()) == [b"%02d" % number for number in range(30)]
        machine.stop()


@pytest.mark.parametrize("reading", [Worker, Deferred])
@pytest.mark.parametrize("buffered", [1, 8, 64])
def test_an_interrupted_catch_up_continues_where_it_stopped(
    folder: Path, reading: type[Worker], buffered: int
) -> None:
    """Messages that were read for it and not sent are read again."""
    machine = Machine(folder, limits=Limits(max_buffered_bytes=buffered), reading=reading)
    reader = reader_with(machine, "#", window=2, qos=2)
    writer = Device(machine, "writer")
    writer.connect()
    for number in range(20):
        writer.publish((f"{'ab'[number % 2]}/b", b"%02d" % number, 2))
    for _ in range(8):
        reader.connect()
        reader.answer(3)
        if isinstance(machine.reading, Deferred):
            machine.reading.step()
            machine.core.flush()
        reader.receive()
        reader.drop()
    reader.connect()
    reader.finish()
    assert sorted(reader.payloads()) == [b"%02d" % number for number in range(20)]
    for stream in ("a", "b"):
        ours = [packet.payload for packet in reader.got if packet.topic.startswith(stream.encode())]
        assert ours == sorted(ours)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("buffered", [8, 1_000])
def test_compacted_delivery_steps_have_the_same_effect(
    folder: Path, monkeypatch: pytest.MonkeyPatch, qos: int, window: int, buffered: int
) -> None:
    """Of a session there is in flight, waiting in memory, and waiting in the log, when the broker ends."""
    monkeypatch.setattr(progress, "MAX_STEP_ROWS", 0)
    machine = Machine(folder, limits=Limits(max_buffered_bytes=buffered))
    reader = reader_with(machine, "#", window=window, qos=qos)
    reader.connect()
    writer = Device(machine, "writer")
    writer.connect()
    for number in range(10):
        writer.publish((f"{'ab'[number % 2]}/b", b"%d" % number, 2))
        writer.finish()
    reader.receive()
    for rest in (1, 2, 3):
        reader.answer(rest)
        reader.receive()
        machine.tick(2)
        machine.crash()
        machine.start()
        for one in (reader, writer):
            one.cut_off()
            one.connect()
    reader.finish()
    assert sorted(set(reader.payloads())) == [b"%d" % number for number in range(10)]
    if qos == 2:
        assert len(reader.got) == 10


def test_the_packet_id_of_a_message_lost_by_the_log_is_not_reused(folder: Path) -> None:
    """The client may have it half received, and would take the other for a repetition."""
    machine = Machine(folder, default_streams(fsync="never"))
    reader = reader_with(machine, "#", qos=2)
    reader.connect()
    writer = Device(machine, "writer")
    writer.connect()
    writer.publish(("a/b", b"lost", 2))
    writer.finish()
    reader.receive()
    assert reader.half
    machine.crash()
    machine.start()
    for one in (reader, writer):
        one.cut_off()
        one.connect()
    writer.publish(("a/b", b"new", 2))
    reader.receive()
    reader.finish()
    assert reader.payloads() == [b"lost", b"new"]


def test_the_packet_id_of_an_uncaptured_message_is_not_reused(folder: Path) -> None:
    """The same, for a message that did not go through a log."""
    machine = Machine(folder, [StreamOptions("a", ["a/#"])])
    reader = reader_with(machine, "#", qos=2)
    reader.connect()
    writer = Device(machine, "writer")
    writer.connect()
    writer.publish(("b", b"not kept", 2))
    writer.finish()
    reader.receive()
    assert reader.half
    machine.crash()
    machine.start()
    for one in (reader, writer):
        one.cut_off()
        one.connect()
    writer.publish(("a/b", b"new", 2))
    reader.receive()
    reader.finish()
    assert reader.payloads() == [b"not kept", b"new"]


# Shared subscriptions


def members(machine: Machine, *names: str, qos: int = 1, window: int = 0) -> list[Device]:
    """Return connected clients that share a subscription."""
    devices = []
    for name in names:
        device = Device(machine, name, window=window)
        device.connect()
        assert device.client is not None
        device.client.subscribe("$share/g/a/#", qos=qos)
        devices.append(device)
    return devices


def come_back(machine: Machine, *devices: Device) -> None:
    for device in devices:
        device.cut_off()
        device.connect()
        device.finish()


def test_a_shared_subscription_gets_messages_published_while_all_members_were_away(folder: Path) -> None:
    """Also what came in the second before the crash."""
    machine = Machine(folder)
    (member,) = members(machine, "m")
    member.drop()
    machine.core.connect("p").publish("a/b", b"x", qos=1)
    machine.crash()
    machine.start()
    come_back(machine, member)
    assert member.payloads() == [b"x"]


def test_other_members_get_the_messages_of_a_member_that_does_not_return_after_a_crash(folder: Path) -> None:
    """4.8.2: if its session ends, others should be sent what it did not acknowledge."""
    machine = Machine(folder)
    first, second = members(machine, "m1", "m2")
    first.expiry = 60
    first.drop()
    first.connect()
    second.drop()
    machine.core.connect("p").publish("a/b", b"x", qos=1)
    first.receive()
    assert first.payloads() == [b"x"]
    machine.tick(2)
    machine.crash()
    machine.start()
    machine.tick(100)
    assert "m1" not in machine.core.broker.sessions.by_id
    come_back(machine, second)
    assert second.payloads() == [b"x"]


@pytest.mark.parametrize("crash", [False, True])
def test_messages_assigned_to_a_member_and_not_sent_are_not_lost(folder: Path, crash: bool) -> None:
    """Only part of a batch fits in flight: the rest must stay in the log for members with room."""
    machine = Machine(folder, limits=Limits(max_waiting_bytes=100, max_queued_bytes=300))
    (member,) = members(machine, "m")
    publisher = Device(machine, "p")
    publisher.connect()
    publisher.publish(*[("a/b", b"%02d" % number + b" " * 30, 1) for number in range(10)])
    publisher.finish()
    assert len(publisher.accepted) == 10
    if crash:
        machine.tick(2)
        machine.crash()
        machine.start()
        come_back(machine, member)
    member.finish()
    assert sorted(set(member.payloads())) == [b"%02d" % number + b" " * 30 for number in range(10)]


def test_other_members_get_the_messages_of_a_member_that_ends_with_a_crash(folder: Path) -> None:
    machine = Machine(folder)
    (lasting,) = members(machine, "m1")
    lasting.drop()
    fleeting = machine.core.connect("m2")
    fleeting.subscribe("$share/g/a/#", qos=1)
    machine.core.connect("p").publish("a/b", b"x", qos=1)
    assert fleeting.payloads() == [b"x"]  # and it does not acknowledge
    machine.tick(2)
    machine.crash()
    machine.start()
    come_back(machine, lasting)
    assert lasting.payloads() == [b"x"]


def test_messages_that_a_member_returned_survive_a_crash(folder: Path) -> None:
    machine = Machine(folder)
    first, second = members(machine, "m1", "m2", window=1)
    publisher = machine.core.connect("p")
    publisher.publish("a/b", b"1", qos=1)
    publisher.publish("a/b", b"2", qos=1)
    for one in (first, second):
        one.receive()
    assert sorted(first.payloads() + second.payloads()) == [b"1", b"2"]
    first.drop()  # the other has no room for what it leaves
    machine.tick(2)
    machine.crash()
    machine.start()
    come_back(machine, second)
    assert set(second.payloads()) == {b"1", b"2"}
    machine.stop()


@pytest.mark.parametrize("captured", [False, True])
def test_an_expired_message_is_not_redelivered_to_another_member(folder: Path, captured: bool) -> None:
    """[MQTT-3.3.2-5]: to the one it was sent to in time it may be sent again, to another not."""
    machine = Machine(folder, None if captured else [StreamOptions("x", ["x"])])
    first, second = members(machine, "m1", "m2")
    second.drop()
    machine.core.connect("p").publish("a/b", b"x", qos=1, message_expiry=10)
    first.receive()
    assert first.payloads() == [b"x"]
    second.connect()
    machine.tick(20)
    first.drop()
    second.finish()
    assert second.payloads() == []
    machine.stop()


def test_an_unassigned_qos_2_message_is_delivered_after_a_crash(folder: Path) -> None:
    """It is in the log, and its publisher will not have it published twice."""
    machine = Machine(folder, writing=Deferred)
    device, publisher = Device(machine, "m"), Device(machine, "p")
    for one in (device, publisher):
        one.begin()
        machine.settle()
        one.receive()
    assert device.client is not None
    device.client.send(Subscribe(1, [Wish(b"$share/g/a/#", 2)]))
    machine.settle()
    publisher.publish(("a/b", b"x", 2))
    assert isinstance(machine.writing, Deferred)
    machine.writing.work_only()
    machine.crash()
    machine.start()
    for one in (device, publisher):
        one.cut_off()
        one.begin()
        machine.settle()
        one.receive()
        one.finish()
    device.finish()
    assert len(machine.log("a")) == 1
    assert device.payloads() == [b"x"]


# The folder


def test_a_data_folder_can_be_used_by_one_broker_at_a_time(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "data", [StreamOptions()])
    with pytest.raises(FolderError, match="uses this folder"):
        open_journal(tmp_path / "data", [StreamOptions()])
    journal.close()
    open_journal(tmp_path / "data", [StreamOptions()]).close()


def test_a_folder_of_another_program_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(FolderError, match=r"not empty \(it contains 'letter.txt'\)"):
        DataFolder(tmp_path)
    assert [one.name for one in tmp_path.iterdir() if one.name != "lock"] == ["letter.txt"]


def test_a_folder_of_another_format_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("pyrite data, format 7\n")
    with pytest.raises(FolderError, match="format 7"):
        DataFolder(tmp_path)


def test_a_new_data_folder_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its format, a folder that is not empty is not taken for one of ours after a power loss."""
    synced: set[str] = set()

    def note(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "fdatasync", note)
    DataFolder(tmp_path / "data").close()
    assert any("format" in path for path in synced)
    assert str(tmp_path / "data") in synced


def test_an_empty_format_file_means_an_interrupted_start(tmp_path: Path) -> None:
    """A name may be on the disk before the bytes are: nothing was promised yet."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "format.tmp").write_text("")
    DataFolder(data).close()


def test_a_clean_shutdown_closes_all_files(folder: Path) -> None:
    machine = Machine(folder, files=FragileFiles)
    device = Device(machine, "c")
    device.connect()
    device.publish(("a/b", b"x", 1), ("b", b"y", 0))
    device.finish()
    device.drop()
    machine.stop()
    names = {str(path.relative_to(machine.data)) for path in machine.data.rglob("*") if path.is_file()}
    first = f"{0:020d}.arrow"
    assert names == {
        "format", "lock", "state.sqlite",
        f"streams/a/{first}", f"streams/a/{first}.index",
        f"streams/default/{first}", f"streams/default/{first}.index",
    }  # fmt: skip
    assert isinstance(machine.files, FragileFiles)
    machine.files.crash(folder / "again", None)
    assert (folder / "again" / "a" / first).read_bytes() == (
        machine.data / "streams" / "a" / first
    ).read_bytes(), "everything is safe"


def test_connack_reports_whether_the_session_was_present(folder: Path) -> None:
    machine = Machine(folder)
    device = Device(machine, "c")
    device.connect()
    assert not device.present
    machine.restart()
    device.cut_off()
    device.connect()
    assert device.present
    connack = device.client.connack if device.client else None
    assert isinstance(connack, Connack)
    assert connack.session_present


def said(machine: Machine, *lines: str) -> None:
    """Send commands as a new line client."""
    LineClient(machine.core).say(*lines)


def test_offsets_are_not_reused_after_a_power_failure(tmp_path: Path) -> None:
    """Readers may have seen written messages before they were synced: Spark keeps its position."""
    machine = Machine(tmp_path)
    said(machine, "Publish a 3", "one")
    said(machine, "Publish a 3 noack", "two")
    (machine.data / "boot").write_text("another start of the machine\n")
    machine.crash()
    machine.start()
    said(machine, "Publish a 5", "three")
    offsets = {row["payload"]: row["offset"] for row in machine.log("a")}
    assert offsets[b"one"] == 0
    assert offsets[b"three"] >= log.SKIPPED_AFTER_POWER_LOSS
    machine.restart()
    opened = str(next(iter(machine.journal.log.writers.values())).opened)
    assert opened.startswith(f"offsets 0 to {offsets[b'three']:,} in 2 segments, "), "not so many messages"
    said(machine, "Publish a 4", "four")
    machine.crash(keep=True)  # the machine runs on
    machine.start()
    said(machine, "Publish a 4", "five")
    offsets = {row["payload"]: row["offset"] for row in machine.log("a")}
    assert [offsets[name] - offsets[b"three"] for name in (b"four", b"five")] == [1, 2]
    machine.abandon()
