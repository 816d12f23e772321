"""Pages of very long lists: their entries, and turns for other requests meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import msgpack

from pyrite.broker.core import Broker
from pyrite.broker.timers import TURN
from pyrite.ipc.api.clients import GetClient
from pyrite.ipc.messages import Answer, Refusal
from pyrite.ipc.server import Call
from pyrite.process.fair import Asker
from pyrite.server.api.pages import Entry, PageBuilder, PageTurns

STEP = 50
"""Names that are looked at in one turn, by the clock of these tests."""


class Asked:
    """A page of names that do not end with 7, with a clock that advances with every look."""

    def __init__(
        self,
        following: Callable[[str | None], Iterator[str]],
        after: str | None,
        limit: int,
        describe: Callable[[str], Entry | None],
    ) -> None:
        self.time = 0.0
        self.broker = Broker(clock=self._clock)
        self.found: list[str] = []
        self.ends: list[str | None] = []
        self.problems: list[Refusal] = []
        turns = PageTurns(self.broker)
        call: Call[Any] = Call(1, None, GetClient("x"), self._send, lambda: 0)
        page = PageBuilder(self.broker, call, following, after, limit, describe, lambda *found: found)
        turns.add(Asker(), page.work)

    def _clock(self) -> float:
        self.time += TURN / STEP
        return self.time

    def _send(self, message: object) -> None:
        if isinstance(message, Refusal):
            self.problems.append(message)
            return
        assert isinstance(message, Answer)
        names, last = msgpack.decode(message.body)
        self.found += names
        if message.is_last:
            self.ends.append(last)

    def finish(self) -> int:
        """Give the page all its turns; return the number of turns."""
        turns = 0
        while self.broker.turns.has_work:
            self.broker.turns.take()
            turns += 1
        return turns


def about(name: str) -> Entry | None:
    return None if name.endswith("7") else (name, 0)


@pytest.mark.parametrize("count", [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP + 5])
@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_all_pages_together_contain_all_names_in_order(count: int, limit: int) -> None:
    names = sorted(f"name-{number}" for number in range(count))
    wanted = [name for name in names if not name.endswith("7")]
    doubled = sorted(names + names[: count // 3])
    after: str | None = None
    at = 0
    for _ in range(20):
        page = Asked(
            lambda after: iter([name for name in doubled if after is None or name > after]),
            after,
            limit,
            about,
        )
        assert page.finish() <= len(doubled) // (STEP - 2) + 1
        assert not page.problems
        assert page.found == wanted[at : at + limit]
        at += len(page.found)
        more = at < len(wanted)
        assert page.ends == [page.found[-1] if more else None]
        if not more:
            break
        after = page.found[-1]


def test_an_exception_is_answered_and_does_not_end_other_pages() -> None:
    def fail(name: str) -> Entry:
        if name == "z":
            raise RuntimeError("a mistake")
        return name, 0

    page = Asked(lambda after: iter(["a", "z"]), None, 5, fail)
    others: list[str] = []
    page.broker.turns.soon(lambda: others.append("had a turn"))
    page.finish()
    (problem,) = page.problems
    assert problem.status == 500
    assert others == ["had a turn"]


def test_names_may_come_and_go_between_two_turns() -> None:
    names = [f"{number:05}" for number in range(3 * STEP)]
    wanted = {names[10], names[2 * STEP], names[2 * STEP + 1]}
    page = Asked(
        lambda after: iter([name for name in names if after is None or name > after]),
        None,
        5,
        lambda name: (name, 0) if name in wanted else None,
    )
    page.broker.turns.take()
    assert page.broker.turns.has_work
    del names[: STEP // 2]  # with those that were seen, one that is wanted
    names.append("99999")
    wanted.add("99999")
    page.finish()
    assert page.found == sorted(wanted)
    assert page.ends == [None]


def test_one_page_at_a_time_has_a_turn() -> None:
    broker = Broker()
    turns = PageTurns(broker)
    had: list[str] = []

    def ask(user: str) -> None:
        left = 2

        def work() -> bool:
            nonlocal left
            left -= 1
            had.append(user)
            return not left

        turns.add(Asker(user), work)

    for _ in range(100):
        ask("ann")
    ask("bob")
    for number in range(202):
        assert len(had) == number
        broker.turns.take()
    assert not broker.turns.has_work
    assert [at for at, user in enumerate(had) if user == "bob"] == [1, 3]
