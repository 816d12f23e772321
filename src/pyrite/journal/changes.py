"""State changes that wait to be committed: of each row, only the last.

So the number of waiting changes is bounded by the size of the state, however long it cannot be written.
Deletions of rows that were never written would add up; they are discarded when there are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyrite.journal import state as database
from pyrite.journal.state import Change

MIN_PRUNED = 4_096
"""Waiting changes beyond which needless ones are searched for; later, twice the number that was needed."""

_STEPS = "deliveries"
_ALL = "all "
"""Key prefix of a change that deletes every row of an owner."""
_ROWS: dict[str, tuple[str, int]] = {
    database.SAVE_STREAM: ("streams", 1),
    database.SAVE_SESSION: ("sessions", 1),
    database.DROP_SESSION: ("sessions", 1),
    database.SAVE_SUBSCRIPTION: ("subscriptions", 2),
    database.DROP_SUBSCRIPTION: ("subscriptions", 2),
    database.DROP_SUBSCRIPTIONS: ("all subscriptions", 1),
    database.SAVE_INCOMING: ("incoming", 1),
    database.DROP_INCOMING: ("incoming", 1),
    database.ADD_STEPS: (_STEPS, 1),
    database.DROP_STEPS: ("all deliveries", 1),
    database.SAVE_RETAINED: ("retained", 1),
    database.DROP_RETAINED: ("retained", 1),
    database.SAVE_GROUP: ("groups", 2),
    database.DROP_GROUP: ("groups", 2),
    database.SAVE_CONSUMER: ("consumers", 1),
    database.DROP_CONSUMER: ("consumers", 1),
    database.SAVE_PENDING: ("pending", 2),
    database.DROP_PENDING: ("pending", 2),
    database.DROP_ALL_PENDING: ("all pending", 1),
    database.SAVE_TOPIC: ("topics", 1),
    database.DROP_TOPIC: ("topics", 1),
    database.SAVE_SINK: ("sinks", 1),
    database.DROP_SINK: ("sinks", 1),
    database.SAVE_ACCOUNT: ("accounts", 2),
    database.DROP_ACCOUNT: ("accounts", 2),
    database.SAVE_CLUSTER: ("cluster", 2),
    database.DROP_CLUSTER: ("cluster", 2),
}
"""By statement: the table, and how many of its values are the key of the row."""


class Changes:
    """Changes in the order of the last change of each row: deletions of many rows precede later inserts."""

    def __init__(self) -> None:
        self._by_row: dict[tuple[Any, ...], Change] = {}
        self._most = MIN_PRUNED

    def __len__(self) -> int:
        return len(self._by_row)

    def __iter__(self) -> Iterator[Change]:
        return iter(self._by_row.values())

    def add(self, change: Change) -> bool:
        """Add a change; return whether no other change of its row waits."""
        statement, values = change
        what, width = _ROWS[statement]
        row = (what, *values[:width])
        before = self._by_row.pop(row, None)
        if statement is database.DROP_STEPS:
            self._by_row.pop((_STEPS, *values), None)
        elif statement is database.ADD_STEPS and before is not None:  # steps accumulate
            client_id, steps = values
            change = statement, (client_id, before[1][1] + steps)
        self._by_row[row] = change
        return before is None

    def update(self, later: Changes) -> None:
        """Add changes that were made after these."""
        for change in later:
            self.add(change)

    def forget_needless(self, finds: Callable[[Change], bool]) -> None:
        """If there are many, discard changes of rows deleted later, and deletions of rows that do not exist.

        `finds` returns whether the state has any row that a deletion would delete.
        """
        if len(self._by_row) <= self._most:
            return
        dropped: set[tuple[Any, ...]] = set()
        needed: list[tuple[tuple[Any, ...], Change]] = []
        for row, change in reversed(self._by_row.items()):
            what, owner, *_ = row
            if (what, owner) in dropped:
                continue
            if what.startswith(_ALL):
                dropped.add((what.removeprefix(_ALL), owner))
            if not change[0].startswith("DELETE") or finds(change):
                needed.append((row, change))
        self._by_row = dict(reversed(needed))
        self._most = max(MIN_PRUNED, 2 * len(needed))
