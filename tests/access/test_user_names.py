"""Log-ins do not reveal which user names are known: neither their answers nor the work that they cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from argon2 import PasswordHasher

from pyrite.access.guard import Guard
from pyrite.access.users import User
from pyrite.broker.access import Accept, Credentials, Refuse
from pyrite.broker.admission import MAX_LOCKED, MAX_OF_ONE
from pyrite.broker.attempts import FREE
from pyrite.broker.core import Broker
from tests.support.passwords import quick_hash

HERE = "10.0.0.1"
MAX_CHEAP_RECEIVERS = PasswordHasher(time_cost=2, memory_cost=16, parallelism=1)
Answer = tuple[int, str]


class Door:
    """A broker with users, and the hashes that were computed for each log-in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **users: str) -> None:
        self.hashed: list[str] = []
        verify = PasswordHasher.verify

        def counted(hasher: PasswordHasher, hashed: Any, password: Any) -> bool:
            self.hashed.append(hashed.split("$")[3])  # what the hash costs
            return verify(hasher, hashed, password)

        monkeypatch.setattr(PasswordHasher, "verify", counted)
        self._jobs: list[tuple[Callable[[], Any], Callable[[Any], object]]] = []
        guard = Guard({name: User(name, hashed) for name, hashed in users.items()}, [], anonymous=False)
        self.broker = Broker(access=guard, offload=lambda job, then: self._jobs.append((job, then)))
        self.told: list[tuple[str, Answer]] = []

    def knock(self, name: str, password: bytes = b"guess", address: str = HERE) -> None:
        """Begin a log-in."""

        def then(verdict: Accept | Refuse) -> None:
            answer = (verdict.code, verdict.reason) if isinstance(verdict, Refuse) else (0, "")
            self.told.append((name, answer))

        self.broker.admission.decide(Credentials("c", name, password, address), then)

    def check(self) -> bool:
        """Do the next check, if any."""
        if not self._jobs:
            return False
        job, then = self._jobs.pop()
        then(job())
        return True

    def log_in(self, name: str, password: bytes = b"guess", address: str = HERE) -> tuple[Answer, list[str]]:
        """Log in; return the answer and the costs of the hashes that were computed."""
        before = len(self.hashed)
        self.knock(name, password, address)
        while self.check():
            pass
        return self.told[-1][1], self.hashed[before:]


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(monkeypatch, known=quick_hash("right"))


def lock(door: Door, address: str = HERE) -> None:
    for number in range(FREE):
        door.log_in(f"{address} {number}", address=address)


def test_known_and_unknown_names_cost_the_same_before_and_during_a_lockout(
    door: Door,
) -> None:
    assert door.log_in("known", b"right") == ((0, ""), [COST])
    assert door.log_in("known") == door.log_in("unknown") == ((0x86, WRONG), [COST])
    lock(door)
    for _ in range(FREE - 1):
        assert door.log_in("known") == door.log_in("unknown") == ((0x9F, WAIT), [COST])
    for _ in range(3):
        assert door.log_in("known") == door.log_in("unknown") == ((0x9F, WAIT), []), "names have locks, too"


COST = "m=8,t=1,p=1"
WRONG = "wrong user name or password"
WAIT = "too many failed log-ins; try again in 1 s"


def test_nor_is_a_known_name_told_apart_when_locks_end_and_begin_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, unknown = (Door(monkeypatch, **{name: quick_hash("right")}) for name in ("ann", "bob"))
    for door, name in ((known, "ann"), (unknown, "bob")):
        door.log_in(name, b"right")
        lock(door)
    answers = set()
    for number in range(400):
        before = len(known.hashed), len(unknown.hashed)
        answer, _ = known.log_in("ann")
        assert unknown.log_in("ann")[0] == answer, f"log-in {number}"
        assert len(known.hashed) - before[0] == len(unknown.hashed) - before[1]
        answers.add(answer[0])
        for door in (known, unknown):
            door.broker.tick(number / 4)
    assert answers == {0x86, 0x9F}


def test_a_right_password_under_a_name_new_to_a_locked_address_gets_the_answer_of_a_wrong_one(
    door: Door,
) -> None:
    lock(door)
    assert door.log_in("known", b"right") == door.log_in("unknown", b"right") == ((0x9F, WAIT), [COST])
    door.broker.tick(2.0)
    assert door.log_in("known", b"right")[0][0] == 0


def test_an_unknown_name_costs_as_much_as_a_known_one_for_any_hash_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = Door(monkeypatch, costly=MAX_CHEAP_RECEIVERS.hash("a"), quick=quick_hash("b"))
    costs = {}
    for number in range(64):
        first, second = (door.log_in(f"name {number}", address=f"10.0.{at}.{number}")[1] for at in (1, 2))
        assert first == second, "each time the same"
        costs[first[0]] = True
    assert costs.keys() == {"m=8,t=1,p=1", "m=16,t=2,p=1"}


def test_log_ins_of_other_networks_are_checked_before_those_of_locked_ones(door: Door) -> None:
    door.log_in("known", b"right")
    lock(door)
    for number in range(20):
        door.knock(f"guess {number}")
    door.knock("known", b"right")
    for network in range(10):
        door.knock("known", b"right", f"10.0.1.{network}")
    for _ in range(11):  # the first guess was being checked when the others came
        door.check()
    assert [name for name, (code, _) in door.told[-11:] if code == 0] == ["known"] * 10
    while door.check():
        pass
    assert door.told[-1] == ("known", (0, "")), "and one that has come from there before is let in"


def test_waiting_log_ins_of_locked_networks_leave_room_for_others(door: Door) -> None:
    for network in range(MAX_LOCKED // MAX_OF_ONE + 4):
        lock(door, f"10.0.2.{network}")
    for network in range(MAX_LOCKED // MAX_OF_ONE + 4):
        for number in range(MAX_OF_ONE + 1):
            door.knock(f"guess {number}", address=f"10.0.2.{network}")
    assert door.told[-1][1][0] == 0x89
    door.knock("known", b"right", "10.0.3.1")
    for _ in range(2):
        door.check()
    assert door.told[-1] == ("known", (0, ""))
