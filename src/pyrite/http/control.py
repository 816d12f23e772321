"""The socket between the broker and its HTTP process: a line of JSON for each question and each answer."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from itertools import count
from typing import Any

WITHIN = 60.0
"""Seconds in which the broker must have answered: a publish may have to wait for the disk."""
MAX_LINE = 64 * 1024 * 1024
"""Bytes of an answer."""


class BrokerGone(Exception):
    """The broker has ended, or does not answer."""


class Control:
    """Asks the broker; questions may overtake one another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @classmethod
    async def open(cls, descriptor: int) -> Control:
        """Take over the socket that the process was born with."""
        return cls(*await asyncio.open_connection(sock=socket.socket(fileno=descriptor), limit=MAX_LINE))

    async def settings(self) -> dict[str, Any]:
        """Return what the broker says first: how this process is to run."""
        found: dict[str, Any] = json.loads(await self._reader.readline() or b"{}")
        return found

    def say(self, **message: Any) -> None:
        """Tell the broker something."""
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def ask(self, ask: str, attached: bytes | None = None, **question: Any) -> dict[str, Any]:
        """Ask the broker something, and return its answer; `attached` are bytes that go with it."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]]
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        question |= {"number": number, "ask": ask}
        try:
            if attached is None:
                self.say(**question)
            else:
                self.say(**question, attached=len(attached))
                self._writer.write(attached)
            await self._writer.drain()
            async with asyncio.timeout(WITHIN):
                return await answer
        except TimeoutError:
            raise BrokerGone("the broker does not answer") from None
        except OSError:
            raise BrokerGone("the broker has ended") from None
        except asyncio.CancelledError:
            self.say(left=number)
            raise
        finally:
            del self._asked[number]

    async def run(self, told: Callable[[dict[str, Any]], object]) -> None:
        """Take answers until the broker is gone; `told` is given what the broker says unasked."""
        try:
            while line := await self._reader.readline():
                message = json.loads(line)
                if "number" not in message:
                    told(message)
                    continue
                waiting = self._asked.get(message["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
        except (OSError, ValueError):
            pass
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(BrokerGone("the broker has ended"))
