"""Files of the log removed while the broker runs: no message is lost silently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyrite.broker.journal import Piece, Wanted
from pyrite.storage.options import StreamOptions
from tests.journal.test_short_index import publish
from tests.support.durable import FailingFiles, Machine, default_streams


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    """A machine with one stream of small segments."""
    machine = Machine(folder, [StreamOptions(segment_bytes=4_000)], files=lambda _: FailingFiles())
    yield machine
    machine.abandon()


def files(machine: Machine, ending: str = ".arrow") -> list[Path]:
    return sorted((machine.data / "streams" / "default").glob(f"*{ending}"))


def read(machine: Machine) -> list[bytes]:
    """Read the stream from its beginning as a replay does."""
    stream, pieces = machine.journal.streams[0], list[Piece]()
    wanted, offset = Wanted([b"#"]), 0
    while offset < stream.routed:
        machine.journal.read(stream, offset, stream.routed, wanted, pieces.append)
        offset = pieces[-1].next_offset
    return [part.payload() for piece in pieces for batch in piece.batches for part in batch.parts()]


@pytest.mark.parametrize("moved", [False, True])
def test_messages_written_to_a_removed_file_are_not_acknowledged(machine: Machine, moved: bool) -> None:
    client = machine.core.connect("publisher")
    assert publish(client, b"before")
    (active,) = files(machine)
    if moved:
        active.rename(machine.data / "elsewhere")
        machine.tick(1)  # the name is looked at every second
    else:
        active.unlink()
        assert not publish(client, b"refused")
    fault = machine.journal.fault
    assert fault is not None
    assert "removed" in fault.text
    accepted = [b"%d" % number for number in range(300) if publish(client, b"%d" % number)]
    assert len(accepted) >= 299
    assert [row["payload"] for row in machine.log("default")] == accepted
    machine.tick(3)
    assert machine.journal.fault is not None, "the removed file is not back"
    assert f"someone has removed {active.name} (messages 0 to 0)" in machine.journal.fault.text
    assert machine.journal.damages_found == 1
    assert read(machine) == accepted


def test_a_removed_index_loses_nothing(machine: Machine) -> None:
    client = machine.core.connect("publisher")
    assert publish(client, b"before")
    files(machine, ".index")[0].unlink()
    machine.tick(1)
    assert machine.journal.fault is not None
    machine.tick(3)
    assert machine.journal.fault is None
    assert publish(client, b"after")
    assert read(machine) == [b"before", b"after"]
    assert [row["payload"] for row in machine.log("default")] == [b"before", b"after"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_removed_older_segment_is_reported_by_readers_and_the_broker(
    machine: Machine, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = machine.core.connect("publisher")
    sent = [b"%d" % number + bytes(1_500) for number in range(12)]
    for one in sent:
        assert publish(client, one)
    machine.tick(3)
    assert machine.journal.fault is None
    found = files(machine, ".parquet")
    path = found[which]
    first, end = int(path.stem), int(found[which + 1].stem)
    kept = path.rename(machine.data / "aside")
    assert read(machine) == sent[:first] + sent[end:]
    assert f"{path.name}: the file is missing; messages {first} to {end - 1} are lost" in caplog.text
    assert machine.journal.damages_found == 1
    machine.tick(3)
    fault = machine.journal.fault
    assert fault is not None
    assert fault.text == (f"stream default: someone has removed {path.name} (messages {first} to {end - 1})")
    assert publish(client, b"all else goes on")
    kept.rename(path)
    machine.tick(3)
    assert machine.journal.fault is None
    assert read(machine) == [*sent, b"all else goes on"]


def test_segments_dropped_by_retention_or_replaced_by_merges_are_not_missing(folder: Path) -> None:
    machine = Machine(folder, default_streams(segment_bytes=20_000, segment_age=5.0, retention_bytes=60_000))
    client = machine.core.connect("publisher")
    for number in range(60):
        client.publish("a/b", b"%d" % number + bytes(900), qos=1)
        machine.tick(3)
    assert machine.journal.fault is None
    assert machine.journal.damages_found == 0
    machine.stop()
