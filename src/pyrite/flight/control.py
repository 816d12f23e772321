"""The Flight process's end of its socket to the broker: questions and their answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any

from pyrite.ipc.channel import frame, receive_blocking

WITHIN = 600.0
"""Seconds in which the broker must have answered: a commit may have to wait for the disk."""


class BrokerGone(Exception):
    """The broker has ended, or does not answer."""


class Control:
    """Asks the broker. From any thread; questions may overtake one another."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._file = connected.makefile("rb")
        self._lock = threading.Lock()
        self._numbers = count()
        self._asked: dict[int, Future[dict[str, Any]]] = {}
        self.changes = 0
        """How often the broker has said that others may do other things than before."""

    def settings(self) -> dict[str, Any]:
        """Return what the broker says first: how this process is to run."""
        return receive_blocking(self._file) or {}

    def start(self, told: Callable[[dict[str, Any]], object], gone: Callable[[], object]) -> None:
        """Begin to take answers, in a thread.

        There `told` is given what the broker says unasked, and `gone` is called when the broker is.
        """
        threading.Thread(target=self._read, args=(told, gone), name="control", daemon=True).start()

    def say(self, **message: Any) -> None:
        """Tell the broker something."""
        with self._lock:
            try:
                self._socket.sendall(frame(message))
            except OSError:
                raise BrokerGone("the broker has ended") from None

    def ask(self, **question: Any) -> dict[str, Any]:
        """Ask the broker something, and return its answer."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = answer
        try:
            self.say(number=number, **question)
            return answer.result(WITHIN)
        except TimeoutError:
            raise BrokerGone("the broker does not answer") from None
        finally:
            del self._asked[number]

    def _read(self, told: Callable[[dict[str, Any]], object], gone: Callable[[], object]) -> None:
        try:
            while (message := receive_blocking(self._file)) is not None:
                if "changed" in message:
                    self.changes += 1
                    continue
                if "number" not in message:
                    told(message)
                    continue
                waiting = self._asked.get(message["number"])
                if waiting is not None:
                    waiting.set_result(message)
        except (OSError, ValueError):
            pass
        gone()
        for waiting in list(self._asked.values()):
            waiting.set_exception(BrokerGone("the broker has ended"))
