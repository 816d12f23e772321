"""Pages of long lists: the first entries after a given name, in order.

Pages are made in turns. Each turn of the event loop belongs to one page, whatever the number of pages that
were asked for, and the pages of all users take turns. What a turn has found is sent at its end, so no turn
encodes more than it has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from pyrite.broker.core import TURN, Broker
from pyrite.process.fair import Asker, FairQueue
from pyrite.server.questions.problem import Message, Part, Reply, safely

Name = TypeVar("Name", str, bytes, int)

PART_BYTES = 256 * 1024
"""Attached bytes with which a turn ends: copying them takes time as well."""
PAGE_BYTES = 8 * 1024 * 1024
"""Bytes of names and attached bytes with which a page ends, before it has all the entries asked for."""

Entry = tuple[Message, bytes]
"""What is told of a name, and the bytes that go with it."""


class PageTurns:
    """Gives pages that are being made a turn each, one page a turn of the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: FairQueue[tuple[Asker, Callable[[], bool]]] = FairQueue()

    def add(self, asker: Asker, work: Callable[[], bool]) -> None:
        """Have `work` called in turns until it returns True."""
        if not self._waiting:
            self._broker.interrupted(self)
        self._waiting.put(asker, (asker, work))

    def go_on(self) -> None:
        """Let one page have its turn."""
        asker, work = self._waiting.get()
        is_done = work()
        if not is_done:
            self._waiting.put(asker, (asker, work))
        if self._waiting:
            self._broker.interrupted(self)


class Page(Generic[Name]):
    """Finds up to `limit` names that come after `after` and are described.

    `following` yields names in order, after a given one or from the first; names may come and go between two
    turns, and one may be there twice. `describe` returns what is told of a name, or None to leave it out.
    Entries are replied part by part; at the end `end` is given the name after which more begins, or None.
    """

    def __init__(
        self,
        broker: Broker,
        following: Callable[[Name | None], Iterator[Name]],
        after: Name | None,
        limit: int,
        describe: Callable[[Name], Entry | None],
        end: Callable[[Name | None], None],
        reply: Reply,
    ) -> None:
        self._broker = broker
        self._following: Callable[[Name | None], Iterator[Name]] = following
        self._at: Name | None = after
        self._last: Name | None = after
        """The last name that was described."""
        self._left = limit
        self._room = PAGE_BYTES
        self._describe: Callable[[Name], Entry | None] = describe
        self._end: Callable[[Name | None], None] = end
        self._reply = reply

    def work(self) -> bool:
        """Find some more names, for a turn; return whether that was the last."""
        until = self._broker.clock() + TURN
        is_done = True

        def look() -> None:
            nonlocal is_done
            is_done = self._look(until)

        safely(look, self._reply)
        return is_done

    def _look(self, until: float) -> bool:
        entries: list[Message] = []
        attached: list[bytes] = []
        size = 0
        more = over = False
        for name in self._following(self._at):
            if name == self._at:
                continue
            described = self._describe(name)
            if described is not None:
                if not self._left or self._room <= 0:
                    more = True
                    break
                about, data = described
                entries.append(about)
                attached.append(data)
                size += len(data)
                self._left -= 1
                self._room -= len(data) + (0 if isinstance(name, int) else len(name))
                self._last = name
            self._at = name
            if size >= PART_BYTES or self._broker.clock() > until:
                over = True
                break
        if entries:
            self._reply(Part(entries, b"".join(attached)))
        if over:
            return False
        self._end(self._last if more else None)
        return True
