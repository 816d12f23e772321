"""Bytes of the state change on the disk: the broker starts all the same, and says what it has lost.

A bit that is flipped anywhere in the database, or in its write-ahead log, either changes nothing, or is
reported; and no more is lost than what the report says.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyrite.broker import consumers
from pyrite.broker.access import Credentials
from pyrite.broker.consumers import Consumer
from pyrite.broker.inflight import RELEASED
from pyrite.storage.positions import Latest
from tests.support.durable import Device, FragileFiles, Machine, OpenFiles, examples, quick_folder

pytestmark = pytest.mark.slow

NAMES = [f"client-{number}" for number in range(8)]
ROUNDS = 12
"""Bits that each of the tests flips, one after the other."""
MOST_LOST = 12
"""Rows of one table that damage at one place may cost; there are more subscriptions, and as many retained."""
TABLES = ["sessions", "subscriptions", "incoming", "deliveries", "retained", "groups", "consumers", "pending"]

Found = dict[str, Any]


def fill(machine: Machine) -> None:
    """Give a broker some of everything that is kept."""
    devices = [Device(machine, name, window=3) for name in NAMES]
    for number, device in enumerate(devices):
        device.connect()
        assert device.client is not None
        device.client.subscribe(f"a/{number}", "b/#", qos=2)
        device.client.subscribe("$share/g/s/#", qos=1, no_local=False)
        device.client.subscribe("grün/+", qos=1, retain_as_published=True, subscription_identifier=number + 1)
    for number in range(12):
        devices[0].publish((f"r/{number}", b"kept %d" % number, 1), retain=True, content_type="text/plain")
    devices[0].finish()
    for number, device in enumerate(devices):
        device.publish((f"a/{number}", b"x" * number, 2), ("b/x", b"y", 1), ("s/x", b"z", 1))
    for device in devices:
        device.receive()
        device.answer(2)
    broker = machine.core.broker
    for name in ("one", "two", "three"):
        consumer = Consumer(broker, name, b"b/#", dict.fromkeys(machine.journal.streams, 0))
        broker.consumers[name] = consumer
        consumer.fetch(3, lambda *_: None, lambda _: None)
    for device in devices[4:]:
        device.drop()
    machine.tick(2)
    devices[0].publish(("b/x", b"last", 1), ("r/1", b"", 1), retain=True)
    devices[1].drop()
    machine.tick(1)
    assert devices[2].client is not None
    devices[2].client.subscribe("last", qos=1)


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[str, Path]]:
    """Data folders of a broker that was closed, and of one that was not."""
    with quick_folder() as root:
        machine = Machine(root / "machine", files=FragileFiles)
        fill(machine)
        machine.crash(keep=True)
        shutil.copytree(machine.data, root / "open")
        machine.start()
        machine.stop()
        shutil.copytree(machine.data, root / "closed")
        yield {"open": root / "open", "closed": root / "closed"}


def start(template: Path, folder: Path) -> Machine:
    """Start a broker on a copy of a data folder."""
    shutil.copytree(template, folder / "data-0", dirs_exist_ok=True)
    (folder / "data-0" / "lock").unlink(missing_ok=True)
    return Machine(folder, files=lambda _: OpenFiles())


def state_of(machine: Machine) -> Found:
    """Return all that a broker has of state, by table and row."""
    broker = machine.core.broker
    found: Found = {table: {} for table in TABLES}
    for name, session in broker.sessions.by_id.items():
        assert isinstance(name, str)
        found["sessions"][name] = (session.expiry, session.expires_at is not None)
        found["incoming"][name] = sorted(session.incoming or ())
        flights = {
            number: None
            if flight is RELEASED
            else (flight.batch.stream and flight.batch.stream.name, flight.batch.offset, flight.qos)
            for number, flight in (session.inflight.flights if session.inflight else {}).items()
        }
        positions = {stream.name: offset for stream, offset in (session.positions or {}).items()}
        found["deliveries"][name] = (flights, positions)
        for key, one in session.subscriptions.items():
            since = {stream.name: offset for stream, offset in (one.since or {}).items()}
            options = (one.qos, one.no_local, one.retain_as_published, one.retain_handling, one.identifiers)
            found["subscriptions"][name, key] = (options, since)
            if one.group is not None:
                group = one.group
                places = [(b.stream and b.stream.name, b.offset, b.count) for b in group.returned]
                where = {stream.name: offset for stream, offset in group.positions.items()}
                found["groups"][group.name, group.topic_filter] = (where, places)
    for topic, batch in broker.retained.values.items():
        content = batch.properties and batch.properties.content_type
        place = (batch.stream and batch.stream.name, batch.offset)
        found["retained"][topic] = (batch.payload(), batch.qos, content, batch.origin, place)
    for name, consumer in broker.consumers.items():
        positions = {stream.name: offset for stream, offset in consumer.positions.items()}
        found["consumers"][name] = (consumer.topic_filter, positions)
        found["pending"][name] = sorted(map(str, consumer.pending))
    found["streams"] = {one.name: (one.number, one.next_offset) for one in machine.journal.streams}
    return found


def works(machine: Machine) -> None:
    """See that a broker is of use: its old clients and a new one publish, subscribe and are sent messages."""
    devices = [Device(machine, name) for name in [*NAMES, "new"]]
    for device in devices:
        device.connect()
        assert device.client is not None
        assert device.client.subscribe("w/#", qos=1) == [1]
    devices[-1].publish(("w/1", b"works", 1), ("w/2", b"works", 2), retain=True)
    for device in devices:
        device.receive()
        device.got.clear()
    for device in devices:
        device.finish()
        device.drop()
    for consumer in machine.core.broker.consumers.values():
        consumer.fetch(100, lambda *_: None, lambda _: None)
    machine.tick(2)


def flip(path: Path, random: Random) -> str:
    """Change one bit, or some bytes; say where."""
    data = bytearray(path.read_bytes())
    at = random.randrange(len(data))
    if random.random() < 0.8:
        data[at] ^= 1 << random.randrange(8)
    else:
        stop = min(len(data), at + random.choice([1, 4, 64]))
        data[at:stop] = random.choice([bytes(stop - at), random.randbytes(stop - at)])
    path.write_bytes(data)
    return f"{path.name} at {at}"


def check(machine: Machine, expected: Found, where: str) -> bool:
    """See that everything is there, or that damage was reported; tell whether it was."""
    damages = machine.journal.damages
    assert len(damages) <= sum(map(len, expected.values())), "a report is no longer than what there is"
    assert all(len(damage) < 500 for damage in damages)
    found = state_of(machine)
    if not damages:
        assert found == expected, f"{where}: changed without a report"
        return False
    told = re.sub("kept: .*?; ", "", " ".join(damages))
    if any(one in told for one in ("-wal", "streams", "nothing of it")):
        return True
    concerned = {table for table in TABLES if table in told}
    if "sessions" in told:
        concerned |= {"subscriptions", "incoming", "deliveries", "groups"}
    if "consumers" in told:
        concerned.add("pending")
    for table in TABLES:
        if table not in concerned:
            assert found[table] == expected[table], f"{where}: {table} is not what it was"
        changed = [key for key in expected[table] if found[table].get(key) != expected[table][key]]
        assert len(changed) <= MOST_LOST, f"{where}: {damages}"
    return True


@pytest.mark.parametrize("seed", range(examples(8)))
@pytest.mark.parametrize(
    ("state", "file"),
    [("closed", "state.sqlite"), ("open", "state.sqlite"), ("open", "state.sqlite-wal")],
)
def test_a_flipped_bit_is_reported_or_changes_nothing(
    folders: dict[str, Path], state: str, file: str, seed: int
) -> None:
    with quick_folder() as root:
        machine = start(folders[state], root / "whole")
        assert machine.journal.damages == []
        expected = state_of(machine)
        machine.abandon()
        for number in range(ROUNDS):
            folder = root / str(number)
            shutil.copytree(folders[state], folder / "data-0")
            where = flip(folder / "data-0" / file, Random(seed * ROUNDS + number))
            machine = Machine(folder, files=lambda _: OpenFiles())
            if check(machine, expected, where):
                works(machine)
                machine.restart()
                assert "new" in machine.core.broker.sessions.by_id
            machine.abandon()
            shutil.rmtree(folder)


def damage(folder: Path, statement: str, *values: Any) -> None:
    """Change rows of the state without changing what proves them."""
    with sqlite3.connect(folder / "data-0" / "state.sqlite") as database:
        assert database.execute(statement, values).rowcount == 1
    database.close()


Damaged = Callable[..., tuple[Machine, Found]]


@pytest.fixture
def damaged(folders: dict[str, Path], folder: Path) -> Damaged:
    """Start a broker whose state was changed; return it, and what it should have."""

    def begin(statement: str, *values: Any) -> tuple[Machine, Found]:
        machine = start(folders["closed"], folder / "whole")
        expected = state_of(machine)
        machine.abandon()
        shutil.copytree(folders["closed"], folder / "damaged" / "data-0")
        damage(folder / "damaged", statement, *values)
        return Machine(folder / "damaged", files=lambda _: OpenFiles()), expected

    return begin


OF_ONE = "WHERE client_id = 'client-3'"
OF_ONE_FILTER = "WHERE client_id = 'client-3' AND filter = x'622f23'"
FIRST = "WHERE number = (SELECT min(number) FROM deliveries)"
ROWS = [
    ("sessions", f"SET expiry = expiry + 1 {OF_ONE}"),
    ("sessions", f"SET client_id = 'client-x' {OF_ONE}"),
    ("sessions", f"SET client_id = CAST(x'ff80' AS TEXT) {OF_ONE}"),
    ("sessions", f"SET client_id = CAST(client_id AS BLOB) {OF_ONE}"),
    ("subscriptions", f"SET options = '{{}}' {OF_ONE_FILTER}"),
    ("subscriptions", f"SET options = CAST(x'ff' AS TEXT) {OF_ONE_FILTER}"),
    ("subscriptions", f"SET filter = CAST(filter AS TEXT) {OF_ONE_FILTER}"),
    ("incoming", f"SET ids = x'09' {OF_ONE}"),
    ("incoming", f"SET ids = 'x' {OF_ONE}"),
    ("deliveries", f"SET steps = x'00' {FIRST}"),
    ("deliveries", f"SET client_id = 'client-5' {FIRST}"),
    ("retained", "SET payload = 'no' WHERE topic = x'722f33'"),
    ("retained", "SET message = 'no' WHERE topic = x'722f33'"),
    ("groups", "SET state = '[]'"),
    ("consumers", "SET state = '{\"filter\": 1}' WHERE name = 'two'"),
    ("consumers", "SET name = x'ff' WHERE name = 'two'"),
    ("pending", "SET bits = zeroblob(32) WHERE name = 'two'"),
    ("pending", "SET block = zeroblob(16) WHERE name = 'two'"),
    ("pending", "SET name = 'three', block = zeroblob(16) WHERE name = 'two'"),
]
BELONG = {
    "sessions": ("sessions", "subscriptions", "incoming", "deliveries"),
    "consumers": ("consumers", "pending"),
}
"""By table: where else something is lost with a row of it."""
EACH_ROW = pytest.mark.parametrize(("table", "change"), ROWS)


@EACH_ROW
def test_a_damaged_row_loses_nothing_else(damaged: Damaged, table: str, change: str) -> None:
    machine, expected = damaged(f"UPDATE {table} {change}")
    assert len(machine.journal.damages) == 1, machine.journal.damages
    assert table in machine.journal.damages[0]
    found = state_of(machine)
    for name in TABLES:
        lost = {key for key in expected[name] if found[name].get(key) != expected[name][key]}
        if name in BELONG.get(table, (table,)):
            owners = {key[0] if isinstance(key, tuple) else key for key in lost}
            assert len(owners) <= 1, f"{name}: {lost}"
        else:
            assert not lost, f"{name}: {lost}"
        assert found[name].keys() <= expected[name].keys()
    works(machine)
    machine.restart()
    machine.stop()


@EACH_ROW
def test_damage_is_reported_once(damaged: Damaged, table: str, change: str) -> None:
    machine, _ = damaged(f"UPDATE {table} {change}")
    assert machine.journal.damages
    machine.tick(2)
    machine.restart()
    assert machine.journal.damages == []
    machine.stop()


def test_a_lost_session_is_not_restored_in_parts(damaged: Damaged) -> None:
    """A new session with the same name must not inherit the rows of a lost one."""
    machine, _ = damaged("UPDATE sessions SET expiry = expiry + 1 WHERE client_id = 'client-3'")
    assert "client-3" not in machine.core.broker.sessions.by_id
    device = Device(machine, "client-3")
    device.connect()
    assert not device.present
    device.drop()
    machine.restart()
    session = machine.core.broker.sessions.by_id["client-3"]
    assert session.subscriptions == {}
    assert not session.inflight_messages
    assert not session.incoming
    machine.stop()


def test_a_lost_consumer_is_not_restored_in_parts(damaged: Damaged) -> None:
    """A new consumer with the same name must not inherit the pending messages of a lost one."""
    machine, _ = damaged("UPDATE consumers SET state = '{}' WHERE name = 'two'")
    broker = machine.core.broker
    assert set(broker.consumers) == {"one", "three"}
    consumers.create(broker, Credentials("", None, None, ""), "two", b"b/#", Latest(), 30.0, lambda: None)
    machine.restart()
    assert not machine.core.broker.consumers["two"].pending
    assert len(machine.core.broker.consumers["three"].pending) == 3
    machine.stop()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE streams SET applied = applied + 1 WHERE name = 'default'",
        "UPDATE streams SET applied = 0 WHERE name = 'default'",
        "UPDATE streams SET name = 'dafault' WHERE name = 'default'",
        "UPDATE streams SET number = 9 WHERE name = 'default'",
    ],
)
def test_a_stream_whose_row_is_damaged_keeps_its_offsets(damaged: Damaged, statement: str) -> None:
    machine, expected = damaged(statement)
    assert len(machine.journal.damages) == 1
    streams = {one.name: one for one in machine.journal.streams}
    numbers = {one.number for one in machine.journal.streams}
    assert len(numbers) == 2
    assert streams["default"].next_offset == expected["streams"]["default"][1]
    assert set(machine.core.broker.sessions.by_id) == set(NAMES)
    works(machine)
    machine.restart()
    assert {one.name: one.number for one in machine.journal.streams} == {
        name: one.number for name, one in streams.items()
    }
    machine.stop()


@pytest.mark.parametrize("value", ["applied + 1", "0"])
@pytest.mark.parametrize("stream", ["a", "default"])
def test_sessions_keep_their_place_in_a_stream_whose_row_is_damaged(
    damaged: Damaged, stream: str, value: str
) -> None:
    """Its number and its name are still to be read, so what waits for sessions can be found."""
    machine, expected = damaged(f"UPDATE streams SET applied = {value} WHERE name = '{stream}'")
    assert state_of(machine)["deliveries"] == expected["deliveries"]
    machine.crash(keep=True)  # before anything was written
    machine.start()
    assert state_of(machine)["deliveries"] == expected["deliveries"]
    machine.stop()


def test_a_file_that_is_not_a_database_is_set_aside(folders: dict[str, Path], folder: Path) -> None:
    for number, data in enumerate([b"", b"nonsense" * 1_000]):
        here = folder / str(number)
        shutil.copytree(folders["closed"], here / "data-0")
        path = here / "data-0" / "state.sqlite"
        path.write_bytes(data)
        machine = Machine(here, files=lambda _: OpenFiles())
        assert machine.core.broker.sessions.by_id == {}
        if data != b"":
            assert len(machine.journal.damages) == 1
            assert "it is set aside as state.sqlite.damaged-1" in machine.journal.damages[0]
            assert "nothing of it can be read, and sessions begin anew" in machine.journal.damages[0]
            kept = [one.name for one in machine.data.iterdir() if "damaged" in one.name]
            assert kept == ["state.sqlite.damaged-1"]
        works(machine)
        machine.stop()


def test_a_truncated_database_keeps_its_remaining_rows(folders: dict[str, Path], folder: Path) -> None:
    machine = start(folders["closed"], folder / "whole")
    expected = state_of(machine)
    machine.abandon()
    machine = start(folders["closed"], folder / "half")
    machine.abandon()
    path = machine.data / "state.sqlite"
    whole = (folders["closed"] / "state.sqlite").read_bytes()
    for name in ("state.sqlite-wal", "state.sqlite-shm"):
        path.with_name(name).unlink(missing_ok=True)
    path.write_bytes(whole[: len(whole) // 2])
    machine.start()
    assert "it is set aside as state.sqlite.damaged-1; kept: " in machine.journal.damages[0]
    assert state_of(machine)["sessions"].items() <= expected["sessions"].items()
    works(machine)
    machine.stop()


def test_a_missing_state_is_reported(folders: dict[str, Path], folder: Path) -> None:
    """The log exists without its state: an operator removed it, or a disk lost it."""
    shutil.copytree(folders["closed"], folder / "data-0")
    (folder / "data-0" / "state.sqlite").unlink()
    machine = Machine(folder, files=lambda _: OpenFiles())
    assert machine.core.broker.sessions.by_id == {}
    assert machine.log("default")
    works(machine)
    machine.stop()


def test_missing_commits_of_a_damaged_write_ahead_log_are_reported(
    folders: dict[str, Path], folder: Path
) -> None:
    """Wherever in its last frames the bit is, also where SQLite tells old frames from new."""
    machine = start(folders["open"], folder / "whole")
    expected = state_of(machine)
    machine.abandon()
    raw = (folders["open"] / "state.sqlite-wal").read_bytes()
    size = 24 + int.from_bytes(raw[8:12], "big")
    frames = (len(raw) - 32) // size
    last = 32 + (frames - 1) * size
    unnoticed = []
    places = [32 + number * size + at for number in (0, frames // 2, frames - 1) for at in range(24)]
    for at in [*places, *range(last + 24, last + size, 512)]:
        here = folder / str(at)
        shutil.copytree(folders["open"], here / "data-0")
        data = bytearray(raw)
        data[at] ^= 1 << (at % 8)
        (here / "data-0" / "state.sqlite-wal").write_bytes(data)
        machine = Machine(here, files=lambda _: OpenFiles())
        if not machine.journal.damages and state_of(machine) != expected:
            unnoticed.append((at - 32) % size)
        machine.abandon()
        shutil.rmtree(here)
    assert unnoticed == []
