"""The HTTP process's end of its socket to the broker: questions and their answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import count
from typing import Any

from pyrite.ipc.channel import frame, receive

WITHIN = 60.0
"""Seconds in which the broker must have answered: a publish may have to wait for the disk."""
READ_AHEAD = 1024 * 1024
"""Bytes of answers that are buffered before the broker has to wait."""


class BrokerGone(Exception):
    """The broker has ended, or does not answer."""


class Control:
    """Asks the broker; questions may overtake one another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._parts: dict[int, list[dict[str, Any]]] = {}
        """Parts of long answers, by the number of the question."""

    @classmethod
    async def open(cls, descriptor: int) -> Control:
        """Take over the socket that the process was born with."""
        return cls(*await asyncio.open_connection(sock=socket.socket(fileno=descriptor), limit=READ_AHEAD))

    async def settings(self) -> dict[str, Any]:
        """Return what the broker says first: how this process is to run."""
        return await receive(self._reader) or {}

    def say(self, **message: Any) -> None:
        """Tell the broker something."""
        self._writer.write(frame(message))

    async def ask(self, ask: str, attached: bytes | None = None, **question: Any) -> dict[str, Any]:
        """Ask the broker something, and return its answer; `attached` are bytes that go with it.

        The parts of a long answer are in `parts`.
        """
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]]
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        question |= {"number": number, "ask": ask}
        try:
            self._writer.write(frame(question, attached or b""))
            if attached:
                self._writer.write(attached)
            await self._writer.drain()
            async with asyncio.timeout(WITHIN):
                return await answer | {"parts": self._parts.pop(number, [])}
        except TimeoutError:
            self.say(left=number)
            raise BrokerGone("the broker does not answer") from None
        except OSError:
            raise BrokerGone("the broker has ended") from None
        except asyncio.CancelledError:
            self.say(left=number)
            raise
        finally:
            del self._asked[number]
            self._parts.pop(number, None)

    async def run(self, told: Callable[[dict[str, Any]], object]) -> None:
        """Take answers until the broker is gone; `told` is given what the broker says unasked."""
        try:
            while (message := await receive(self._reader)) is not None:
                if "number" not in message:
                    told(message)
                    continue
                waiting = self._asked.get(message["number"])
                if waiting is None or waiting.done():
                    continue
                if "part" in message:
                    self._parts.setdefault(message["number"], []).append(message)
                else:
                    waiting.set_result(message)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(BrokerGone("the broker has ended"))
