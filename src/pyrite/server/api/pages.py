"""Pages of long lists: the first entries after a given name, in order.

Pages are made in turns. Each turn of the event loop belongs to one page, however many pages were requested,
and users take turns. What a turn has found is sent at its end, so no turn encodes more than it has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from pyrite.broker.core import TURN, Broker
from pyrite.ipc.server import Call
from pyrite.process.fair import Asker, FairQueue

Name = TypeVar("Name", str, bytes, int)

TURN_BYTES = 256 * 1024
"""Bytes of payloads with which a turn ends: copying them takes time as well."""
PAGE_BYTES = 8 * 1024 * 1024
"""Bytes of names and payloads with which a page ends, before it has all the entries requested."""

Entry = tuple[Any, int]
"""An entry of the answer, and the bytes of its payload."""


class PageTurns:
    """Gives the pages that are being made a turn each, one page in a turn of the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: FairQueue[tuple[Asker, Callable[[], bool]]] = FairQueue()

    def add(self, asker: Asker, work: Callable[[], bool]) -> None:
        """Call `work` in turns until it returns True."""
        if not self._waiting:
            self._broker.interrupted(self)
        self._waiting.put(asker, (asker, work))

    def go_on(self) -> None:
        """Give one page its turn."""
        asker, work = self._waiting.get()
        is_done = work()
        if not is_done:
            self._waiting.put(asker, (asker, work))
        if self._waiting:
            self._broker.interrupted(self)


class PageBuilder(Generic[Name]):
    """The first `limit` names after `after` that have an entry.

    `following` yields names in order, after a given one or from the first; names may come and go between two
    turns, and may be repeated. `describe` returns the entry of a name, or None to skip it. Entries are sent
    part by part: `answer` makes a part of them and of the name after which the next page begins, if there is
    one.
    """

    def __init__(
        self,
        broker: Broker,
        call: Call[Any],
        following: Callable[[Name | None], Iterator[Name]],
        after: Name | None,
        limit: int,
        describe: Callable[[Name], Entry | None],
        answer: Callable[[list[Any], Name | None], Any],
    ) -> None:
        self._broker = broker
        self._call = call
        self._following: Callable[[Name | None], Iterator[Name]] = following
        self._at: Name | None = after
        """The last name that was examined."""
        self._last: Name | None = after
        """The last name that has an entry."""
        self._left = limit
        self._room = PAGE_BYTES
        self._describe: Callable[[Name], Entry | None] = describe
        self._answer: Callable[[list[Any], Name | None], Any] = answer

    def work(self) -> bool:
        """Find more entries, for a turn; return whether it was the last."""
        until = self._broker.clock() + TURN
        is_done = True

        def find() -> None:
            nonlocal is_done
            is_done = self._find(until)

        self._call.attempt(find)
        return is_done

    def _find(self, until: float) -> bool:
        entries: list[Any] = []
        size = 0
        for name in self._following(self._at):
            if name == self._at:
                continue
            described = self._describe(name)
            if described is not None:
                if not self._left or self._room <= 0:
                    self._call.reply(self._answer(entries, self._last))
                    return True
                entry, payload_size = described
                entries.append(entry)
                size += payload_size
                self._left -= 1
                self._room -= payload_size + (0 if isinstance(name, int) else len(name))
                self._last = name
            self._at = name
            if size >= TURN_BYTES or self._broker.clock() > until:
                if entries:
                    self._call.send_part(self._answer(entries, None))
                return False
        self._call.reply(self._answer(entries, None))
        return True
