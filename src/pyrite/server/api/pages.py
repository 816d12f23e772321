"""Pages of long lists: the first entries after a given name, in order.

Pages are built in turns. Each turn of the event loop belongs to one page, and users take turns. The entries
found in a turn are sent at its end, so that encoding is part of the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from pyrite.broker.core import Broker
from pyrite.broker.timers import TURN
from pyrite.ipc.server import Call
from pyrite.process.fair import Asker, FairQueue

Name = TypeVar("Name", str, bytes, int)

TURN_BYTES = 256 * 1024
"""Maximum bytes of payloads in a turn: copying them takes time, too."""
PAGE_BYTES = 8 * 1024 * 1024
"""Maximum bytes of names and payloads in a page, even if it has fewer entries than requested."""

Entry = tuple[Any, int]
"""An entry of the answer, and the bytes of its payload."""


class PageTurns:
    """Gives pages turns, one page per turn of the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: FairQueue[tuple[Asker, Callable[[], bool]]] = FairQueue()

    def add(self, asker: Asker, work: Callable[[], bool]) -> None:
        """Call `work` once per turn until it returns True."""
        if not self._waiting:
            self._broker.turns.add(self)
        self._waiting.put(asker, (asker, work))

    def go_on(self) -> None:
        """Give the next page its turn."""
        asker, work = self._waiting.get()
        is_done = work()
        if not is_done:
            self._waiting.put(asker, (asker, work))
        if self._waiting:
            self._broker.turns.add(self)


class PageBuilder(Generic[Name]):
    """The first `limit` names after `after` that have an entry.

    `following` yields names in order, after a given one or from the first; names may appear, disappear and
    repeat between turns. `describe` returns the entry of a name, or None to skip it. `answer` makes a part of
    the answer from entries and, in the last part, the name after which the next page begins.
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
        """The last examined name."""
        self._last: Name | None = after
        """The last name with an entry."""
        self._left = limit
        self._room = PAGE_BYTES
        self._describe: Callable[[Name], Entry | None] = describe
        self._answer: Callable[[list[Any], Name | None], Any] = answer

    def work(self) -> bool:
        """Find entries for one turn; return True if the page is complete."""
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
