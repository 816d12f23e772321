"""Changes of the state that wait: of each row the last, with the same effect as all of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from pyrite.journal import changes as changes_module
from pyrite.journal import state as database
from pyrite.journal.changes import _ROWS, Changes
from pyrite.journal.state import Change, State
from pyrite.journal.tables import KEYS
from tests.support.durable import quick_folder

CLIENTS = st.sampled_from(["ann", "bob"])
FILTERS = st.sampled_from([b"a", b"b/#"])
VALUES = st.sampled_from(["x", "y", "z"])


def of(statement: str, *values: st.SearchStrategy[object]) -> st.SearchStrategy[Change]:
    return st.tuples(st.just(statement), st.tuples(*values))


CHANGES = st.one_of(
    of(database.SAVE_STREAM, st.just(1), st.just("default"), st.integers(0, 9)),
    of(database.SAVE_SESSION, CLIENTS, st.integers(0, 9), st.none()),
    of(database.DROP_SESSION, CLIENTS),
    of(database.SAVE_SUBSCRIPTION, CLIENTS, FILTERS, VALUES),
    of(database.DROP_SUBSCRIPTION, CLIENTS, FILTERS),
    of(database.DROP_SUBSCRIPTIONS, CLIENTS),
    of(database.SAVE_INCOMING, CLIENTS, FILTERS),
    of(database.DROP_INCOMING, CLIENTS),
    of(database.ADD_STEPS, CLIENTS, st.binary(min_size=1, max_size=3)),
    of(database.DROP_STEPS, CLIENTS),
    of(database.SAVE_RETAINED, FILTERS, VALUES, st.binary(max_size=3)),
    of(database.DROP_RETAINED, FILTERS),
    of(database.SAVE_GROUP, CLIENTS, FILTERS, VALUES),
    of(database.DROP_GROUP, CLIENTS, FILTERS),
    of(database.SAVE_CONSUMER, CLIENTS, VALUES),
    of(database.DROP_CONSUMER, CLIENTS),
    of(database.SAVE_PENDING, CLIENTS, FILTERS, st.binary(min_size=1, max_size=3)),
    of(database.DROP_PENDING, CLIENTS, FILTERS),
    of(database.DROP_ALL_PENDING, CLIENTS),
    of(database.SAVE_TOPIC, FILTERS),
    of(database.DROP_TOPIC, FILTERS),
    of(database.SAVE_SINK, CLIENTS, VALUES),
    of(database.DROP_SINK, CLIENTS),
)


def test_the_key_of_every_statement_is_listed() -> None:
    statements = {
        value for name, value in vars(database).items() if name.startswith(("SAVE_", "DROP_", "ADD_"))
    }
    assert set(_ROWS) == statements


def rows(path: Path) -> dict[str, object]:
    """Return what a state holds; of steps, those of a client one after the other."""
    found: dict[str, object] = {}
    with sqlite3.connect(path) as connection:
        for table in KEYS:
            if table != "deliveries":
                found[table] = connection.execute(f"SELECT * FROM {table}").fetchall()
        steps: dict[str, bytes] = {}
        for client, some in connection.execute("SELECT client_id, steps FROM deliveries ORDER BY number"):
            steps[client] = steps.get(client, b"") + some
        found["deliveries"] = steps
    return found


@given(st.lists(CHANGES, max_size=30), st.lists(CHANGES, max_size=30), st.lists(CHANGES, max_size=30))
def test_the_last_change_of_each_row_has_the_same_effect_as_all_changes(
    there: list[Change], first: list[Change], then: list[Change]
) -> None:
    with quick_folder() as folder:
        for name in ("all", "last"):
            state = State(folder / name)
            state.commit(there)
            if name == "all":
                state.commit(first + then)
            else:
                changes, later = Changes(), Changes()
                for change in first:
                    changes.add(change)
                for change in then:
                    later.add(change)
                changes.update(later)
                state.commit(list(changes))
            state.close()
        assert rows(folder / "last") == rows(folder / "all")


@given(st.lists(CHANGES, max_size=30), st.lists(CHANGES, max_size=30), st.lists(CHANGES, max_size=30))
def test_changes_without_effect_are_dropped(
    there: list[Change], first: list[Change], then: list[Change]
) -> None:
    with quick_folder() as folder, patch.object(changes_module, "MIN_PRUNED", 0):
        for name in ("all", "needed"):
            state = State(folder / name)
            state.commit(there)
            changes, later = Changes(), Changes()
            for change in first:
                changes.add(change)
            if name == "needed":
                changes.forget_needless(state.finds)
                drops = [change for change in changes if change[0].startswith("DELETE")]
                assert all(map(state.finds, drops))
            for change in then:
                later.add(change)
            changes.update(later)
            state.commit(list(changes))
            state.close()
        assert rows(folder / "needed") == rows(folder / "all")


def test_changes_that_cancel_out_do_not_accumulate() -> None:
    with quick_folder() as folder, patch.object(changes_module, "MIN_PRUNED", 100):
        state = State(folder / "state")
        changes = Changes()
        most = 0
        for number in range(1_000):
            client = f"client-{number}"
            changes.add((database.SAVE_SESSION, (client, 9, None)))
            changes.add((database.SAVE_SUBSCRIPTION, (client, b"a", "{}")))
            changes.add((database.SAVE_PENDING, (client, b"b", b"x")))
            changes.add((database.DROP_SESSION, (client,)))
            changes.add((database.DROP_SUBSCRIPTIONS, (client,)))
            changes.add((database.DROP_ALL_PENDING, (client,)))
            changes.forget_needless(state.finds)
            most = max(most, len(changes))
        state.close()
        assert most <= 110


def test_repeated_changes_of_a_row_are_kept_once() -> None:
    changes = Changes()
    new = 0
    for number in range(1_000):
        topic = b"%d" % (number % 10)
        new += changes.add((database.SAVE_RETAINED, (topic, "{}", b"x")))
        new += changes.add((database.DROP_RETAINED, (topic,)))
    assert len(changes) == new == 10
