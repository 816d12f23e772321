"""Retention drops whole segments by age and size, without confusing readers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import DataLoss, Query
from tests.support.durable import Device, Machine, default_streams


def publish(machine: Machine, *payloads: bytes) -> None:
    client = machine.core.connect("writer")
    for payload in payloads:
        client.publish("a/b", payload, qos=1)
    machine.core.flush()


def kept(machine: Machine) -> list[bytes]:
    return [row["payload"] for row in machine.log("a")]


def names(machine: Machine) -> list[str]:
    return sorted(path.name for path in (machine.data / "streams" / "a").iterdir())


def test_only_segments_that_are_too_old_are_dropped(folder: Path) -> None:
    machine = Machine(folder, default_streams(retention_age=100.0))
    for number in range(10):
        publish(machine, b"%d" % number)
        machine.tick(30)
    machine.tick(3)  # upkeep
    assert kept(machine) == [b"7", b"8", b"9"], "those before are older than 100 s"
    machine.stop()


@pytest.mark.parametrize("age", [0.0, 1_000.0])
def test_the_oldest_segments_above_the_size_are_dropped(folder: Path, age: float) -> None:
    """The room that the segment being written has for more is no reason, nor is what goes for its age."""
    most = 200_000
    options = default_streams(retention_bytes=most, retention_age=age, segment_bytes=1_000_000)
    machine = Machine(folder, options)
    sent = [b"%04d" % number + Random(number).randbytes(5_000) for number in range(200)]
    for number, payload in enumerate(sent):
        publish(machine, payload)
        if number == 120:
            machine.tick(age)
    machine.tick(3)
    found = kept(machine)
    assert 0.5 * most < len(found) * 5_000 < most
    assert found == sent[-len(found) :]
    machine.stop()


def test_without_retention_nothing_is_dropped(folder: Path) -> None:
    machine = Machine(folder, default_streams(segment_age=1.0))
    for number in range(5):
        publish(machine, b"%d" % number)
        machine.tick(1_000_000)
    machine.tick(3)
    assert kept(machine) == [b"%d" % number for number in range(5)]
    machine.stop()


def test_an_old_segment_is_sealed_without_new_messages(folder: Path) -> None:
    machine = Machine(folder, default_streams(segment_age=50.0))
    publish(machine, b"one")
    machine.tick(40)
    assert not any(name.endswith(".parquet") for name in names(machine))
    machine.tick(20)
    machine.tick(3)
    assert f"{0:020d}.parquet" in names(machine)
    assert kept(machine) == [b"one"]
    machine.stop()


@pytest.mark.parametrize("end", ["runs on", "stops", "crashes", "loses its power"])
def test_a_stream_without_messages_keeps_its_next_offset(folder: Path, end: str) -> None:
    """A reader, such as Spark, would take it for a new stream and wait for offsets that exist already."""
    machine = Machine(folder, default_streams(retention_age=100.0))
    publish(machine, b"one", b"two", b"three")
    for _ in range(3):
        machine.tick(100)
    machine.tick(3)
    assert kept(machine) == []
    if end == "stops":
        machine.restart()
    elif end != "runs on":
        machine.crash(keep=end == "crashes")
        machine.start()
    machine.tick(3)  # the segment dropped last may be there again
    log = LogFolder(machine.data)
    assert log.bounds("a") == (3, 3)
    with pytest.raises(DataLoss, match="offsets 1 to 2 are not kept any longer"):
        list(log.read(Query("a", start=1)))
    publish(machine, b"four")
    assert [(row["offset"], row["payload"]) for row in machine.log("a")] == [(3, b"four")]
    machine.stop()


def test_an_empty_stream_continues_after_a_power_failure(
    folder: Path,
) -> None:
    """And nothing is left behind by it, however often."""
    machine = Machine(folder, default_streams(retention_age=100.0))
    publish(machine, b"one")
    for _ in range(3):
        machine.tick(100)
    for _ in range(3):
        (machine.data / "boot").write_text("another start of the machine\n")
        machine.crash()
        machine.start()
        machine.tick(3)
        first, end = LogFolder(machine.data).bounds("a")
        assert first == end > 1
        assert names(machine) == [f"{end:020d}.arrow", f"{end:020d}.arrow.index"]
    machine.stop()


def test_a_resumed_session_gets_the_remaining_messages(folder: Path) -> None:
    machine = Machine(folder, default_streams(retention_age=100.0))
    reader = Device(machine, "reader")
    reader.connect()
    assert reader.client is not None
    reader.client.subscribe("a/#", qos=1)
    reader.drop()
    for number in range(6):
        publish(machine, b"%d" % number)
        machine.tick(45)
    machine.tick(3)
    left = kept(machine)
    assert left == [b"4", b"5"]
    reader.connect()
    publish(machine, b"new")
    reader.finish()
    assert reader.payloads() == [*left, b"new"]
    machine.stop()


def test_a_clock_that_jumps_ahead_and_back_makes_retention_drop_nothing_early(folder: Path) -> None:
    machine = Machine(folder, default_streams(retention_age=100.0, segment_bytes=2_000))
    sent = [b"%d" % number + bytes(1_500) for number in range(8)]
    for number, payload in enumerate(sent):
        machine.wrong_by = 10_800.0 if number in (3, 4, 5) else 0.0
        publish(machine, payload)
        machine.tick(3)
    assert kept(machine) == sent
    for _ in range(3):
        machine.tick(50)
    machine.tick(3)
    assert len(kept(machine)) <= 1, "messages with times in the future are not kept longer"
    machine.stop()


def test_a_clock_that_jumps_ahead_while_a_segment_is_written_does_not_make_it_old(folder: Path) -> None:
    """It is sealed for its age at once; but no longer than since it was begun can it have lain there."""
    machine = Machine(folder, default_streams(retention_age=100.0, segment_bytes=100_000))
    publish(machine, b"one", b"two")
    machine.tick(3)
    machine.wrong_by = 10_800.0
    machine.tick(3)
    publish(machine, b"three")
    machine.tick(3)
    machine.wrong_by = 0.0
    machine.tick(3)
    assert kept(machine) == [b"one", b"two", b"three"]
    machine.tick(100)
    machine.tick(3)
    assert b"one" not in kept(machine)
    machine.stop()


def test_a_clock_that_jumps_back_makes_retention_drop_nothing_early(folder: Path) -> None:
    machine = Machine(folder, default_streams(retention_age=100.0, segment_bytes=2_000))
    sent = [b"%d" % number + bytes(1_500) for number in range(8)]
    for number, payload in enumerate(sent):
        machine.wrong_by = -10_800.0 if number in (3, 4, 5) else 0.0
        publish(machine, payload)
        machine.tick(3)
    assert kept(machine) == sent
    machine.stop()
