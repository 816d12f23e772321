"""An index without acknowledged messages: no reader takes its end for the end of the log."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyrite.broker.journal import Piece, Wanted
from pyrite.broker.message import Batch
from pyrite.journal import gathering
from pyrite.journal.verify import verify
from pyrite.protocols.mqtt.packets import Ack, Subscribe, Wish
from pyrite.storage.folder import FORMAT
from pyrite.storage.index import index_of
from pyrite.storage.options import StreamOptions
from tests.broker.test_consumers import create, fetch, payloads
from tests.storage.samples import write_segment
from tests.support.core import Client
from tests.support.durable import Device, FailingFiles, Machine

INDEX = ".arrow.index"


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    """A machine with one stream, whose disk fails when told to."""
    machine = Machine(folder, [StreamOptions()], files=lambda _: FailingFiles())
    yield machine
    machine.abandon()


def disk_of(machine: Machine) -> FailingFiles:
    assert isinstance(machine.files, FailingFiles)
    return machine.files


def index(machine: Machine) -> Path:
    """Return the index of the active segment."""
    return max((machine.data / "streams" / "default").glob(f"*{INDEX}"))


def away(machine: Machine) -> Device:
    """Return a client with a session that lasts, a subscription, and no connection."""
    device = Device(machine, "away")
    device.connect()
    assert device.client is not None
    device.client.subscribe("a", qos=1)
    device.drop()
    return device


def everyone_has(machine: Machine, device: Device, accepted: list[bytes]) -> None:
    """Require that session, consumer, replay and single reads get the acknowledged messages in order."""
    device.connect()
    device.finish()
    assert device.payloads() == accepted, "the session"
    assert payloads(fetch(machine.core.broker.consumers["c"])) == accepted, "the consumer"
    reader = machine.core.connect("replays")
    past = {"user_property": [("pyrite-from", "earliest")]}
    reader.send(Subscribe(1, [Wish(b"a", 1)], past))
    got = [one.payload for one in reader.messages()]
    while more := reader.finish():
        got += [one.payload for one in more]
    assert got == accepted, "the replay"
    found: list[dict[int, Batch]] = []
    stream = machine.journal.streams[0]
    machine.journal.fetch(stream, range(stream.routed), found.append)
    assert [batch.payload() for batch in found[0].values()] == accepted, "single messages"


@pytest.fixture(autouse=True)
def no_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every group become a record batch."""
    monkeypatch.setattr(gathering, "MAX_ROWS", 0)


def publish(client: Client, payload: bytes) -> bool:
    """Publish a message, and tell whether it was acknowledged."""
    client.publish("a", payload, qos=1)
    (ack,) = [packet for packet in client.received() if isinstance(packet, Ack)]
    return ack.reason < 0x80


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_messages_acknowledged_while_the_index_failed_reach_every_reader(
    machine: Machine, error: int
) -> None:
    device, disk = away(machine), disk_of(machine)
    create(machine)
    client = machine.core.connect("publisher")
    accepted = []
    for number in range(80):
        if number % 20 == 10:
            disk.failing["write"], disk.only = error, INDEX
        if number % 20 == 17:
            disk.heal()
        if publish(client, b"%d" % number):
            accepted.append(b"%d" % number)
    assert 40 <= len(accepted) < 80
    everyone_has(machine, device, accepted)
    assert [row["payload"] for row in machine.log("default")] == accepted, "readers of other processes"
    assert verify(machine.data) == []
    machine.stop()


def test_an_index_that_cannot_be_written_is_a_fault_until_it_can_be(machine: Machine) -> None:
    disk = disk_of(machine)
    client = machine.core.connect("publisher")
    assert publish(client, b"before")
    disk.failing["write"], disk.only = errno.ENOSPC, INDEX
    assert not publish(client, b"refused")
    for _ in range(5):
        assert machine.journal.fault is not None
        assert machine.journal.fault.full
        machine.tick(1)
    disk.heal()
    machine.tick(2)
    assert machine.journal.fault is None
    assert publish(client, b"after")
    assert [row["payload"] for row in machine.log("default")] == [b"before", b"after"]


def cut(path: Path) -> None:
    os.truncate(path, 64 * 4)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [cut, remove])
def test_a_reader_walks_the_segment_if_the_index_is_short(
    machine: Machine, harm: Callable[[Path], None]
) -> None:
    device = away(machine)
    create(machine)
    client = machine.core.connect("publisher")
    sent = [b"%d" % number for number in range(20)]
    for one in sent:
        assert publish(client, one)
    harm(index(machine))
    everyone_has(machine, device, sent)


def test_a_reader_stops_with_an_error_if_the_segment_is_short_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = machine.core.connect("publisher")
    for number in range(20):
        assert publish(client, b"%d" % number)
    path = index(machine)
    segment = path.with_suffix("")
    whole, records = segment.read_bytes(), path.read_bytes()
    cut(path)
    os.truncate(segment, 2_000)
    stream, pieces = machine.journal.streams[0], list[Piece]()
    monkeypatch.setattr("pyrite.journal.log_reader.RETRY_DELAY", 0.0)
    machine.journal.read(stream, 0, stream.routed, Wanted([b"#"]), pieces.append)
    assert pieces[-1] == Piece([], 0), "it has not advanced"
    assert "were committed" in caplog.text
    segment.write_bytes(whole)
    path.write_bytes(records)
    machine.journal.read(stream, 0, stream.routed, Wanted([b"#"]), pieces.append)
    assert sum(batch.count for batch in pieces[-1].batches) == 20
    assert pieces[-1].next_offset == 20


def test_a_reader_passes_refused_offsets(machine: Machine) -> None:
    device, disk = away(machine), disk_of(machine)
    create(machine)
    client = machine.core.connect("publisher")
    assert publish(client, b"before")
    disk.failing["write"] = errno.ENOSPC
    for _ in range(3):
        assert not publish(client, b"refused")
    everyone_has(machine, device, [b"before"])


def test_a_refused_message_that_could_not_be_truncated_is_not_read(machine: Machine) -> None:
    """The index fails, and so does cutting the segment: then the message lies there whole."""
    device, disk = away(machine), disk_of(machine)
    create(machine)
    client = machine.core.connect("publisher")
    assert publish(client, b"before")
    disk.failing |= {"write": errno.EIO, "truncate": errno.EIO}
    disk.only = INDEX
    assert not publish(client, b"refused")
    disk.heal()
    machine.tick(2)
    assert publish(client, b"after")
    everyone_has(machine, device, [b"before", b"after"])


def test_verify_reports_the_index_of_the_active_segment_if_it_stays_short(tmp_path: Path) -> None:
    folder = tmp_path / "streams" / "a"
    write_segment(folder, 0, 6, sealed=False)
    (tmp_path / "format").write_text(FORMAT)
    assert verify(tmp_path) == []
    path = index_of(folder / f"{0:020d}.arrow")
    os.truncate(path, 64 * 4)
    (found,) = verify(tmp_path)
    assert (found.file, found.first, found.reason) == (path.name, -1, "the last 3 records are missing")
    path.unlink()
    (found,) = verify(tmp_path)
    assert (found.file, found.reason) == (path.name, "it is missing")
