"""Pages of what there may be very much of: the first names after a given one, in order.

Names are kept by hash, not in order. So all of them are looked at, but a few at a time, with the others'
turns in between: however many there are, no one waits long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from pyrite.broker.core import Broker
from pyrite.server.questions.problem import Reply, safely

Name = TypeVar("Name", str, bytes)

STEP = 2_000
"""Names that are looked at in one turn: about half a millisecond's work."""


class Page(Generic[Name]):
    """Finds the `limit` first of the names that are wanted and come after `after`.

    A name may be there twice. `then` is told them, in order, and whether there are more; `reply` only of what
    goes wrong.
    """

    def __init__(
        self,
        broker: Broker,
        names: Sequence[Name],
        after: Name | None,
        limit: int,
        wanted: Callable[[Name], bool],
        then: Callable[[list[Name], bool], None],
        reply: Reply,
    ) -> None:
        self._broker = broker
        self._names: Sequence[Name] = names
        self._after: Name | None = after
        self._limit = limit
        self._wanted: Callable[[Name], bool] = wanted
        self._then: Callable[[list[Name], bool], None] = then
        self._reply = reply
        self._at = 0
        self._best: list[Any] = []
        """The first that were found so far: one more than the page has tells that there are more."""
        self.go_on()

    def go_on(self) -> None:
        """Look at some more names, for another turn."""
        safely(self._look, self._reply)

    def _look(self) -> None:
        some: Sequence[Any] = self._names[self._at : self._at + STEP]
        self._at += STEP
        if self._after is not None:
            some = [one for one in some if one > self._after]
        if len(self._best) > self._limit:
            last = self._best[-1]
            some = [one for one in some if one < last]
        self._best = sorted({*self._best, *(one for one in some if self._wanted(one))})
        del self._best[self._limit + 1 :]
        if self._at < len(self._names):
            self._broker.interrupted(self)
        else:
            self._then(self._best[: self._limit], len(self._best) > self._limit)
