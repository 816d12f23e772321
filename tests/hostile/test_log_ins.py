"""Passwords guessed from many addresses at once: known users are let in, and the broker can be stopped."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median

import pytest

from pyrite.access.users import User, hash_password, write_users
from pyrite.protocols.mqtt.packets import V5, Connect, encode
from tests.support.process import BrokerProcess

ADDRESSES = 12
"""From which it is guessed. One that fails five times is not heard for a while."""
CONNACK = 0x20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    write_users(tmp_path / "users", [User("ann", hash_password("the word of ann"))])
    (tmp_path / "pyrite.toml").write_text('listen = ["mqtt://127.0.0.1:0"]\n[access]\nusers = "users"\n')
    with BrokerProcess("--config", "pyrite.toml", "--ephemeral", cwd=tmp_path) as process:
        yield process


def log_in(port: int, address: str, name: str, word: str) -> int | None:
    """Log in, and return the reason code, or None without an answer."""
    with socket.create_connection(("127.0.0.1", port), 30, (address, 0)) as connection:
        connection.sendall(encode(Connect("", version=V5, username=name, password=word.encode()), V5))
        answer = connection.recv(64)
    if not answer or answer[0] != CONNACK:
        return None
    return answer[3 if answer[1] < 128 else 4]


def time_to_log_in(port: int) -> float:
    """Log in successfully, and return the seconds that it took."""
    began = time.monotonic()
    assert log_in(port, "127.0.0.1", "ann", "the word of ann") == 0
    return time.monotonic() - began


def test_a_flood_of_guesses_does_not_block_known_users(broker: BrokerProcess) -> None:
    port = broker.port()
    alone = median(time_to_log_in(port) for _ in range(3))
    over = threading.Event()
    answers: list[int | None] = []

    def guess(number: int) -> None:
        while not over.is_set():
            with suppress(OSError):
                answers.append(log_in(port, f"127.0.1.{number % ADDRESSES + 1}", f"user {number}", "guess"))
                over.wait(0.05)

    with ExitStack() as stack:
        guessing = [threading.Thread(target=guess, args=(number,)) for number in range(4 * ADDRESSES)]
        for one in guessing:
            stack.callback(one.join, 30)
        stack.callback(over.set)
        for one in guessing:
            one.start()
        for _ in range(3):
            took = time_to_log_in(port)  # one of each address may be checked before
            assert took < 2 * (ADDRESSES + 2) * max(alone, 0.05), f"{took:.1f} s, alone: {alone:.1f} s"
        broker.process.terminate()
        assert broker.process.wait(20) == 0
    assert 0 not in answers
    assert answers
    assert not [line for line in broker.log if "internal error" in line or "Traceback" in line]
    assert not [line for line in broker.log if "the word of ann" in line]
