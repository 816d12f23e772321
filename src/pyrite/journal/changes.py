"""Changes of the state that wait to be written: of each row, the last alone.

So what waits is bounded by what the state holds, however long it cannot be written; but for what drops rows
that were never written, which is let go of then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyrite.journal import state as database
from pyrite.journal.state import Change

LOOKED_THROUGH = 4_096
"""Changes that wait before they are looked through for what is needless; then, twice as many as were not."""

_STEPS = "deliveries"
_ALL = "all "
"""How that begins which drops all rows that begin like it."""
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
}
"""By statement: what it changes, and how many of its values say which row of it that is."""


class Changes:
    """Changes, in the order of the last one of each row: what drops many rows leaves those saved after it."""

    def __init__(self) -> None:
        self._by_row: dict[tuple[Any, ...], Change] = {}
        self._most = LOOKED_THROUGH

    def __len__(self) -> int:
        return len(self._by_row)

    def __iter__(self) -> Iterator[Change]:
        return iter(self._by_row.values())

    def add(self, change: Change) -> bool:
        """Take a change; tell whether it is of a row that none waited for."""
        statement, values = change
        what, width = _ROWS[statement]
        row = (what, *values[:width])
        before = self._by_row.pop(row, None)
        if statement is database.DROP_STEPS:
            self._by_row.pop((_STEPS, *values), None)
        elif statement is database.ADD_STEPS and before is not None:  # steps add up
            client_id, steps = values
            change = statement, (client_id, before[1][1] + steps)
        self._by_row[row] = change
        return before is None

    def update(self, later: Changes) -> None:
        """Take changes that were made after these."""
        for change in later:
            self.add(change)

    def forget_needless(self, finds: Callable[[Change], bool]) -> None:
        """If there are many, let go of those of rows that are dropped later, and drops of what is not there.

        `finds` tells of a change that drops rows whether the state has any of them.
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
        self._most = max(LOOKED_THROUGH, 2 * len(needed))
