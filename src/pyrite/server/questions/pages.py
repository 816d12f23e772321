"""Pages of what there may be very much of: the first names after a given one, in order.

Names that are not wanted are passed over a few at a time, with the others' turns in between: however many
there are, no one waits long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from pyrite.broker.core import Broker
from pyrite.server.questions.problem import Reply, safely

Name = TypeVar("Name", str, bytes)

STEP = 2_000
"""Names that are looked at in one turn: about half a millisecond's work."""


class Page(Generic[Name]):
    """Finds the `limit` first of the names that are wanted and come after `after`.

    `following` yields names in order, after a given one or from the first; they may have changed between two
    calls, and one may be there twice. `then` is told those that were found, and whether there are more;
    `reply` only of what goes wrong. `step` is how many names are looked at in one turn.
    """

    def __init__(
        self,
        broker: Broker,
        following: Callable[[Name | None], Iterator[Name]],
        after: Name | None,
        limit: int,
        wanted: Callable[[Name], bool],
        then: Callable[[list[Name], bool], None],
        reply: Reply,
        step: int = STEP,
    ) -> None:
        self._broker = broker
        self._following: Callable[[Name | None], Iterator[Name]] = following
        self._at: Name | None = after
        self._limit = limit
        self._wanted: Callable[[Name], bool] = wanted
        self._then: Callable[[list[Name], bool], None] = then
        self._reply = reply
        self._step = step
        self._found: list[Name] = []
        self.go_on()

    def go_on(self) -> None:
        """Look at some more names, for another turn."""
        safely(self._look, self._reply)

    def _look(self) -> None:
        looked_at = 0
        for name in islice(self._following(self._at), self._step):
            looked_at += 1
            if name == self._at:
                continue
            self._at = name
            if not self._wanted(name):
                continue
            if len(self._found) == self._limit:
                self._then(self._found, True)
                return
            self._found.append(name)
        if looked_at < self._step:
            self._then(self._found, False)
        else:
            self._broker.interrupted(self)
