"""Pages of very many names: the right ones, and others have their turn meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyrite.broker.core import Broker
from pyrite.server.questions.pages import STEP, Page
from pyrite.server.questions.problem import Problem


def ask(names: list[str], after: str | None, limit: int, most_turns: int) -> tuple[list[str], bool]:
    """Return a page, found in so many turns at most."""
    broker = Broker()
    told: list[tuple[list[str], bool]] = []
    wrong: list[Any] = []

    def then(page: list[str], more: bool) -> None:
        told.append((page, more))

    def following(after: str | None) -> Iterator[str]:
        return iter([name for name in names if after is None or name > after])

    Page(broker, following, after, limit, lambda name: not name.endswith("7"), then, wrong.append)
    turns = 1
    while broker.has_interrupted:
        broker.take_turns()
        turns += 1
        assert turns <= most_turns
    assert not wrong
    (found,) = told
    return found


@pytest.mark.parametrize("count", [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP + 5])
@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_all_pages_together_are_all_names_in_order(count: int, limit: int) -> None:
    names = sorted(f"name-{number}" for number in range(count))
    wanted = [name for name in names if not name.endswith("7")]
    doubled = sorted(names + names[: count // 3])
    after: str | None = None
    at = 0
    for _ in range(20):
        page, more = ask(doubled, after, limit, len(doubled) // STEP + 1)
        assert page == wanted[at : at + limit]
        at += len(page)
        assert more is (at < len(wanted))
        if not more:
            break
        after = page[-1]


def test_a_mistake_is_answered_and_ends_no_one_elses_turn() -> None:
    broker = Broker()
    wrong: list[Any] = []

    def fail(name: str) -> bool:
        if name == "z":
            raise RuntimeError("a mistake")
        return True

    def following(after: str | None) -> Iterator[str]:
        return iter(["a"] * STEP if after is None else ["z"])

    Page(broker, following, None, 5, fail, lambda page, more: None, wrong.append)
    others: list[str] = []
    broker.soon(lambda: others.append("had a turn"))
    broker.take_turns()
    (problem,) = wrong
    assert isinstance(problem, Problem)
    assert problem.status == 500
    assert others == ["had a turn"]


def test_names_that_come_and_go_between_two_turns_disturb_nothing() -> None:
    broker = Broker()
    names = [f"{number:05}" for number in range(3 * STEP)]
    told: list[tuple[list[str], bool]] = []

    def following(after: str | None) -> Iterator[str]:
        return iter([name for name in names if after is None or name > after])

    def then(page: list[str], more: bool) -> None:
        told.append((page, more))

    wanted = {names[10], names[2 * STEP], names[2 * STEP + 1]}
    Page(broker, following, None, 5, lambda name: name in wanted, then, print)
    assert broker.has_interrupted
    del names[:STEP]  # with those that were seen, one that is wanted
    names.append("99999")
    wanted.add("99999")
    while broker.has_interrupted:
        broker.take_turns()
    assert told == [(sorted(wanted), False)]
