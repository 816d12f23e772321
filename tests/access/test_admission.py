"""Password checks are queued by network, and the queues are bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyrite.broker.access import Accept, Access, Credentials, Refuse
from pyrite.broker.admission import CHECK_TIMEOUT, MAX_OF_ONE, MAX_WAITING
from pyrite.broker.core import Broker


class Slow(Access):
    """Accepts the right password after a slow check."""

    def takes_time(self, credentials: Credentials) -> bool:
        return True

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        if credentials.username == "broken":
            raise RuntimeError("a defect")
        if credentials.username == "careless":
            raise RuntimeError(f"{credentials} said something") from ValueError(credentials.password)
        if credentials.username == "careful":
            raise RuntimeError(f"{credentials} said something")
        if credentials.username == "leaving":
            raise SystemExit("as a mistaken library may")
        if credentials.username == "speechless":
            return None  # type: ignore[return-value]
        if credentials.username == "granted":
            return Refuse(0x01, "no code of a refusal")
        good = credentials.password == b"secret"
        return Accept(username=credentials.username) if good else Refuse(0x86, "wrong")


class Door:
    """A broker whose password checks run when the test says so."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Callable[[], Any], Callable[[Any], object]]] = []
        self.broker = Broker(access=Slow(), offload=lambda job, then: self._jobs.append((job, then)))
        self.told: list[tuple[str, int]] = []

    def knock(self, address: str, name: str, password: bytes = b"guess") -> None:
        def then(verdict: Accept | Refuse) -> None:
            self.told.append((name, verdict.code if isinstance(verdict, Refuse) else 0))

        self.broker.admission.decide(Credentials("c", name, password, address), then)

    def check(self, count: int) -> None:
        for _ in range(count):
            assert len(self._jobs) <= 1
            if self._jobs:
                job, then = self._jobs.pop()
                then(job())


def test_many_logins_from_one_network_delay_only_that_network() -> None:
    door = Door()
    for address in range(12):
        for number in range(5):
            door.knock(f"10.0.0.{address}", f"guess {number}")
    door.knock("10.0.1.1", "ann", b"secret")
    door.check(14)
    assert ("ann", 0) in door.told
    door.check(100)
    assert len(door.told) == 61


def test_waiting_logins_of_one_network_are_limited() -> None:
    door = Door()
    for number in range(MAX_OF_ONE + 2):
        door.knock(f"2001:db8::{number:x}", str(number), b"secret")
    assert door.told == [(str(MAX_OF_ONE + 1), 0x89)]
    door.knock("10.0.0.1", "ann", b"secret")
    door.check(3)
    assert ("ann", 0) in door.told


def test_waiting_logins_are_limited() -> None:
    door = Door()
    for number in range(MAX_WAITING + 2):
        door.knock(f"10.0.{number >> 8}.{number & 255}", str(number), b"secret")
    assert door.told == [(str(MAX_WAITING + 1), 0x89)]


def test_waiting_guesses_are_refused_after_earlier_ones_failed() -> None:
    door = Door()
    for number in range(20):
        door.knock("10.0.0.1", f"name {number}")
    door.check(20)
    assert [code for _, code in door.told] == [0x86] * 5 + [0x9F] * 15


@pytest.mark.parametrize("defect", ["broken", "leaving", "speechless", "granted"])
def test_an_exception_in_a_plug_in_does_not_count_as_a_guess(defect: str) -> None:
    door = Door()
    for _ in range(10):
        door.knock("10.0.0.1", defect)
    door.knock("10.0.0.1", "ann", b"secret")
    door.check(11)
    assert sorted(door.told) == sorted([(defect, 0x80)] * 10 + [("ann", 0)])


def test_an_error_of_a_plug_in_does_not_log_the_password(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    for name, password in (("careless", b"w\xc3\xb6rd"), ("careless", b"plain word"), ("careful", b"open")):
        door.knock("10.0.0.1", name, password)
        door.check(1)
    assert [code for _, code in door.told] == [0x80] * 3
    assert "RuntimeError (text withheld: it contains the client's password)" in caplog.text
    assert "username='careful'" in caplog.text, "the user name may be logged"
    assert not [one for one in ("wörd", "w\\xc3\\xb6rd", "plain word", "open") if one in caplog.text]


def test_a_check_that_hangs_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    door.broker.tick(1.0)
    for name in ("ann", "bob"):
        door.knock("10.0.0.1", name, b"secret")
    door.broker.tick(1.0 + CHECK_TIMEOUT - 1)
    assert door.told == []
    door.broker.tick(1.0 + CHECK_TIMEOUT + 1)
    assert door.told == [("ann", 0x89), ("bob", 0x89)]
    door.knock("10.0.0.1", "eve", b"secret")
    assert door.told[2:] == [("eve", 0x89)]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    door.check(1)
    assert len(door.told) == 3, "an address is logged once"
    door.knock("10.0.0.1", "ann", b"secret")
    door.check(1)
    assert door.told[3:] == [("ann", 0)]
