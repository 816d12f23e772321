"""A state whose structure is damaged: what can still be read is kept, and it is what it was."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest

from pyrite.journal import state as database
from pyrite.journal.state import Change, State
from pyrite.journal.tables import KEYS, PAGE
from pyrite.storage.folder import FolderError
from tests.support.durable import examples, quick_folder

pytestmark = pytest.mark.slow

CLIENTS = [f"client-{number:04d}" for number in range(1_000)]
OPTIONS = {"qos": 1, "no_local": False, "identifiers": [1, 2]}
FLIPS = 60
ON_A_PAGE = PAGE // 30
"""A row takes no less than 30 bytes."""

Rows = dict[str, set[tuple[Any, ...]]]


def rows_of(state: State) -> Rows:
    return {table: set(state._rows(table)) for table in KEYS}


def fill(path: Path) -> State:
    state = State(path)
    state.streams(["orders", "default"])
    for at in range(0, 1_000, 100):
        some = CLIENTS[at : at + 100]
        changes: list[Change] = [(database.SAVE_SESSION, (client, 86_400, None)) for client in some]
        changes += [
            (database.SAVE_SUBSCRIPTION, (client, b"f/%d" % one, json.dumps(OPTIONS)))
            for client in some
            for one in range(2)
        ]
        changes += [(database.ADD_STEPS, (client, client.encode() * 4)) for client in some]
        changes += [(database.SAVE_RETAINED, (b"t/%d" % (at + one), "{}", bytes(200))) for one in range(100)]
        state.commit(changes)
    state.commit([(database.SAVE_RETAINED, (b"large", "{}", b"x" * 20_000))])
    state.commit([(database.SAVE_CONSUMER, ("c", json.dumps({"filter": "#", "within": 1})))])
    # Pages that are free, with rows of the past: some builds of SQLite clear them unless told not to.
    state._database.execute("PRAGMA secure_delete = OFF")
    state.commit([(database.DROP_RETAINED, (b"t/%d" % one,)) for one in range(100, 900)])
    return state


@pytest.fixture(scope="module")
def whole() -> Iterator[tuple[Path, Rows]]:
    """A state as a broker leaves it, and its rows."""
    with quick_folder() as folder:
        path = folder / "state.sqlite"
        state = fill(path)
        rows = rows_of(state)
        state.close()
        yield path, rows


def lost_of(path: Path, expected: Rows) -> tuple[int, list[str]]:
    """Open a damaged state; return the number of lost rows and the reports. Remaining rows must be right."""
    state = State(path)
    found = rows_of(state)
    damages = list(state.damages)
    state.close()
    for table in KEYS:
        if table == "streams":  # how far one was applied may not be known, but its number is
            assert {row[:2] for row in found[table]} <= {row[:2] for row in expected[table]}
        else:
            assert found[table] <= expected[table], damages
    lost = sum(len(expected[table] - found[table]) for table in KEYS)
    assert damages or not lost, "lost without a report"
    return lost, damages


def test_a_flipped_bit_loses_few_rows(whole: tuple[Path, Rows]) -> None:
    template, expected = whole
    salvaged = []
    raw = template.read_bytes()
    for seed in range(examples(FLIPS)):
        random = Random(seed)
        data = bytearray(raw)
        # Half of them where pages have their structure: there it was the whole state that was lost.
        at = random.randrange(len(data))
        at -= at % PAGE - random.randrange(40) if seed % 2 else 0
        data[at] ^= 1 << random.randrange(8)
        with quick_folder() as folder:
            path = folder / "state.sqlite"
            path.write_bytes(data)
            lost, damages = lost_of(path, expected)
            if any("set aside" in one for one in damages):
                salvaged.append(lost)
                assert (folder / "state.sqlite.damaged-1").read_bytes() == data
    assert len(salvaged) >= FLIPS // 10
    assert median(salvaged) <= 3, salvaged
    assert sorted(salvaged)[len(salvaged) * 9 // 10] <= ON_A_PAGE, salvaged


def test_a_lost_page_loses_only_its_own_rows(whole: tuple[Path, Rows]) -> None:
    template, expected = whole
    raw = template.read_bytes()
    pages = len(raw) // PAGE
    costs = []
    for number in {0, 1, 2, 3, 4, 5, 6, 7, *Random(1).sample(range(pages), 25)}:
        with quick_folder() as folder:
            path = folder / "state.sqlite"
            noise = Random(number).randbytes(PAGE)
            path.write_bytes(raw[: number * PAGE] + noise + raw[(number + 1) * PAGE :])
            costs.append(lost_of(path, expected)[0])
    assert max(costs) <= ON_A_PAGE, costs


def test_kept_and_lost_rows_are_reported(whole: tuple[Path, Rows], tmp_path: Path) -> None:
    template, expected = whole
    path = tmp_path / "state.sqlite"
    shutil.copy(template, path)
    with sqlite3.connect(path) as changing:
        changing.execute("UPDATE sessions SET expiry = 7 WHERE client_id = 'client-0007'")
        changing.execute("PRAGMA writable_schema = ON")
        changing.execute("UPDATE sqlite_master SET sql = replace(sql, 'deliveries_of', 'deliveries_oF')")
    changing.close()
    lost, damages = lost_of(path, expected)
    assert lost == 1
    assert damages == [
        "state.sqlite: its schema is damaged: 'deliveries_of'; it is set aside as state.sqlite.damaged-1; "
        "kept: 2 of streams, 999 of sessions, 2,000 of subscriptions, 1,000 of deliveries, "
        "201 of retained, 1 of consumers; lost: 1 of sessions"
    ]
    state = State(path)
    assert state.damages == []
    state.close()


def test_a_stream_keeps_its_number_without_its_row(whole: tuple[Path, Rows], tmp_path: Path) -> None:
    """Positions of sessions are by the number of the stream."""
    raw = whole[0].read_bytes()
    (tmp_path / "state.sqlite").write_bytes(raw[:PAGE] + bytes(PAGE) + raw[2 * PAGE :])
    state = State(tmp_path / "state.sqlite")
    assert state.streams(["default", "orders"]) == {"orders": (1, -1), "default": (2, -1)}
    assert len(list(state._rows("sessions"))) == 1_000
    state.close()


def test_without_stream_numbers_sessions_start_empty(whole: tuple[Path, Rows], tmp_path: Path) -> None:
    raw = whole[0].read_bytes()
    (tmp_path / "state.sqlite").write_bytes(raw[:PAGE] + bytes(2 * PAGE) + raw[3 * PAGE :])
    state = State(tmp_path / "state.sqlite")
    assert "sessions begin anew" in state.damages[0]
    assert state.streams(["default", "orders"]) == {"default": (1, 0), "orders": (2, 0)}
    assert not list(state._rows("deliveries"))
    state.close()


def test_an_index_that_lacks_rows_is_rebuilt(whole: tuple[Path, Rows], tmp_path: Path) -> None:
    """Steps are deleted through it: what it lacks would come back."""
    template, expected = whole
    data = bytearray(template.read_bytes())
    at = data.rindex(b"client-0500", 0, data.index(b"client-0500" * 4))
    at = next(
        one
        for one in range(0, len(data))
        if data[one : one + 11] == b"client-0500" and data[one + 11 : one + 13] == (501).to_bytes(2, "big")
    )
    data[at + 10] ^= 1 << 6
    path = tmp_path / "state.sqlite"
    path.write_bytes(data)
    lost, damages = lost_of(path, expected)
    assert lost == 0
    assert "lost: nothing" in damages[0]
    state = State(path)
    assert state.damages == []
    state.commit([(database.DROP_STEPS, ("client-0500",))])
    assert ("client-0500", b"client-0500" * 4) not in set(state._rows("deliveries"))
    state.close()


def test_rows_of_the_write_ahead_log_are_salvaged_and_kept(tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    state = fill(tmp_path / "running" / "state.sqlite")
    state._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    state.commit([(database.SAVE_SESSION, ("the last", 1, None))])
    expected = rows_of(state)
    shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    state.close()
    path = tmp_path / "crashed" / "state.sqlite"
    data = bytearray(path.read_bytes())
    data[7 * PAGE : 7 * PAGE + 1] = b"\xff"  # the index of deliveries
    path.write_bytes(data)
    log = path.with_name("state.sqlite-wal").read_bytes()
    lost, damages = lost_of(path, expected)
    assert lost == 0, damages
    aside = path.with_name("state.sqlite.damaged-1")
    assert aside.read_bytes() == data
    assert aside.with_name("state.sqlite.damaged-1-wal").read_bytes() == log
    assert not path.with_name("state.sqlite-wal").exists()


@pytest.mark.parametrize("how", ["locked", "folder", "of no use"])
def test_a_temporarily_unusable_state_is_not_changed(
    whole: tuple[Path, Rows], tmp_path: Path, how: str
) -> None:
    template, expected = whole
    path = tmp_path / "state.sqlite"
    shutil.copy(template, path)
    raw = path.read_bytes()
    if how == "locked":
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(FolderError, match=r"state\.sqlite: .* is locked; .*: end the program"):
            State(path)
        other.execute("ROLLBACK")
        other.close()
    elif how == "folder":
        path.with_name("state.sqlite-wal").mkdir()
        with pytest.raises(OSError, match=r"state\.sqlite-wal"):
            State(path)
        path.with_name("state.sqlite-wal").rmdir()
    else:
        path.with_name("state.sqlite-shm").mkdir()
        with pytest.raises(FolderError, match=r"state\.sqlite: .*cannot be used.*start again"):
            State(path)
        path.with_name("state.sqlite-shm").rmdir()
    assert path.read_bytes() == raw
    assert not list(tmp_path.glob("*damaged*"))
    assert lost_of(path, expected) == (0, [])
