"""The session state at the start: damage is reported, and an unusable state is left unchanged."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from .broker import Broker
from .disk import BLOCK, SmallDisk

SECONDS = 60
NAMES = [f"client-{number}" for number in range(6)]


def fill(broker: Broker) -> None:
    """Create sessions with one waiting message each."""
    for name in NAMES:
        client = broker.lasting(name)
        client.subscribe("a", qos=1)
        client.disconnect()
    broker.client().publish("a", b"waits", qos=1)


def kept(broker: Broker) -> list[str]:
    """Return the present sessions with their waiting messages."""
    names = []
    for name in NAMES:
        client = broker.lasting(name)
        assert client.connack is not None
        if client.connack.session_present:
            assert client.receive().payload == b"waits"
            names.append(name)
    return names


def refused(data: Path, port: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a broker that ends at once, and return the line that gives the reason."""
    where = ("--data", str(data), "--listen", f"mqtt://127.0.0.1:{port}")
    command = [sys.executable, "-m", "pyrite", "serve", *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode in (1, 2), done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    return done


def damages(broker: Broker) -> list[str]:
    return [line for line in broker.found if line.startswith("damaged: ")]


# What cannot be used now


def test_sessions_survive_starts_on_a_full_disk(disk: SmallDisk, tmp_path: Path) -> None:
    broker = Broker(tmp_path, "", disk.before, disk.path / "data", disk.here / "data")
    try:
        broker.start()
        fill(broker)
        broker.stop()
        refusals = 0
        for blocks in (0, 1, 2, 4, 8, 12):
            disk.fill(blocks * BLOCK)
            try:
                broker.start()
                assert damages(broker) == []
                broker.kill()
            except RuntimeError as error:  # with its log
                refusals += 1
                said = str(error).removeprefix("the broker did not start: ")
                assert said.startswith(f"pyrite serve: {disk.path / 'data'}"), said
                assert "\n" not in said
            assert not [one for one in broker.data.iterdir() if "damaged" in one.name]
            disk.make_room()
        assert refusals >= 3
        broker.start()
        assert damages(broker) == []
        assert kept(broker) == NAMES
    finally:
        broker.close()


def test_sessions_survive_a_start_while_the_state_is_locked(broker: Broker) -> None:
    fill(broker)
    broker.stop()
    other = sqlite3.connect(broker.data / "state.sqlite", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    said = refused(broker.data).stderr
    assert said.startswith(f"pyrite serve: {broker.data / 'state.sqlite'}: ")
    assert "database is locked" in said
    assert "end the program that has it open, and start again" in said
    other.close()
    broker.start()
    assert damages(broker) == []
    assert kept(broker) == NAMES


@pytest.mark.parametrize("name", ["state.sqlite", "boot", "format", "lock", "streams/default"])
def test_an_unusable_state_is_reported(broker: Broker, name: str) -> None:
    broker.stop()
    path = broker.data / name
    if path.exists():
        path.rename(broker.data.with_name("before"))
    if name.startswith("streams"):
        path.write_text("a file")
    else:
        path.mkdir()
    assert str(broker.data if name == "lock" else path) in refused(broker.data).stderr


# What is damaged


def test_a_state_that_is_no_database_is_reported(broker: Broker) -> None:
    fill(broker)
    broker.stop()
    (broker.data / "state.sqlite").write_bytes(b"nonsense" * 1_000)
    broker.start()
    (line,) = damages(broker)
    assert "state.sqlite: file is not a database; it is set aside as state.sqlite.damaged-1" in line
    assert "sessions begin anew" in line
    assert kept(broker) == []


def test_a_damaged_row_is_reported(broker: Broker) -> None:
    fill(broker)
    broker.stop()
    with sqlite3.connect(broker.data / "state.sqlite") as database:
        database.execute("UPDATE sessions SET expiry = 7 WHERE client_id = 'client-2'")
    database.close()
    broker.start()
    assert damages(broker) == ["damaged: state.sqlite: a row of sessions is damaged: 'client-2'"]
    assert kept(broker) == [name for name in NAMES if name != "client-2"]


def test_a_damaged_write_ahead_log_is_reported(broker: Broker) -> None:
    fill(broker)
    broker.kill()
    log = broker.data / "state.sqlite-wal"
    raw = bytearray(log.read_bytes())
    size = 24 + 4096
    raw[32 + len(raw) // size // 2 * size + 100] ^= 1
    log.write_bytes(raw)
    broker.start()
    assert damages(broker) == ["damaged: state.sqlite-wal: damaged; the last changes of sessions may be lost"]


def test_damage_is_reported_even_if_the_broker_cannot_listen(broker: Broker) -> None:
    """The state is repaired by then, so no later start would report it."""
    fill(broker)
    broker.stop()
    (broker.data / "state.sqlite").write_bytes(b"nonsense" * 1_000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = refused(broker.data, port=taken.getsockname()[1])
    assert "damaged: state.sqlite: file is not a database" in done.stdout
