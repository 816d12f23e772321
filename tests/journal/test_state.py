"""The state beside the log: written rows come back, however many at once."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from pyrite.journal import state as database
from pyrite.journal.state import Change, State

NUMBERS = pytest.mark.parametrize("number", [1, 15, 16, 17, 128, 129, 300])


def kept(path: Path, table: str) -> list[tuple[Any, ...]]:
    """Return a table's rows, as another process would find them."""
    state = State(path)
    try:
        rows = list(state._rows(table))
        assert state.damages == []
        return rows
    finally:
        state.close()


def commit(path: Path, changes: list[Change]) -> None:
    state = State(path)
    state.commit(changes)
    state.close()


@NUMBERS
def test_rows_with_one_key(tmp_path: Path, number: int) -> None:
    path = tmp_path / "state.sqlite"
    rows = [(b"t/%05d" % one, "{}", b"payload %d" % one) for one in range(number)]
    commit(path, [(database.SAVE_RETAINED, row) for row in rows])
    assert kept(path, "retained") == rows
    commit(path, [(database.DROP_RETAINED, (row[0],)) for row in rows[1:]])
    assert kept(path, "retained") == rows[:1]


@NUMBERS
def test_rows_with_two_keys(tmp_path: Path, number: int) -> None:
    path = tmp_path / "state.sqlite"
    rows = [(f"client {one % 7}", b"f/%05d" % one, "{}") for one in range(number)]
    commit(path, [(database.SAVE_SUBSCRIPTION, row) for row in rows])
    assert kept(path, "subscriptions") == sorted(rows)
    commit(path, [(database.DROP_SUBSCRIPTION, row[:2]) for row in rows[1:]])
    assert kept(path, "subscriptions") == rows[:1]


def test_the_last_of_two_writes_of_a_row_wins(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    commit(path, [(database.SAVE_RETAINED, (b"t/%d" % (one % 3), "{}", b"%d" % one)) for one in range(150)])
    assert kept(path, "retained") == [(b"t/0", "{}", b"147"), (b"t/1", "{}", b"148"), (b"t/2", "{}", b"149")]


def test_changes_are_applied_in_order(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    saved: list[Change] = [(database.SAVE_TOPIC, (b"%d" % one,)) for one in range(40)]
    dropped: list[Change] = [(database.DROP_TOPIC, (b"%d" % one,)) for one in range(40)]
    commit(path, [*saved, *dropped, *saved[:20], *dropped[:10]])
    assert kept(path, "topics") == [(b"%d" % one,) for one in range(10, 20)]


def references_to_nothing() -> int:
    return sum(isinstance(one, weakref.ref) and one() is None for one in gc.get_objects())


def test_committed_changes_are_not_kept_in_memory(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    state.commit([(database.SAVE_TOPIC, (b"t",))])
    before = references_to_nothing()
    for number in range(20):
        state.commit([(database.SAVE_TOPIC, (b"%d" % number,))])
    assert references_to_nothing() < before + 10
    state.close()
