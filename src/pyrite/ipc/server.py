"""The broker's side of the socket to a child process: passes requests to handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, Union

from msgspec import Raw, Struct, msgpack

from pyrite.ipc.channel import encode, receive, send
from pyrite.ipc.messages import (
    Answer,
    Ask,
    Caller,
    ErrorAnswer,
    NewCertificates,
    Notice,
    Request,
    RightsChanged,
)
from pyrite.ipc.problem import Problem

A = TypeVar("A")

logger = logging.getLogger(__name__)


class Call(Generic[A]):
    """One request. The handler calls `reply` or `refuse` once, now or later."""

    def __init__(
        self,
        number: int,
        caller: Caller | None,
        request: Request[A],
        send: Callable[[Struct], object],
        backlog: Callable[[], int],
    ) -> None:
        self.number = number
        self.caller = caller
        self.request = request
        self._send = send
        self.backlog = backlog
        """Returns the bytes that wait to be sent to the child."""
        self.refused: Callable[[], object] | None = None
        """Called if the request is refused."""

    def reply(self, answer: A) -> None:
        """Send the answer, or the last part of a long answer."""
        self._send(Answer(self.number, True, Raw(encode(answer))))

    def send_part(self, answer: A) -> None:
        """Send one part of a long answer."""
        self._send(Answer(self.number, False, Raw(encode(answer))))

    def refuse(self, problem: Problem) -> None:
        if self.refused is not None:
            self.refused()
        self._send(ErrorAnswer(self.number, problem.status, problem.detail, problem.retry_after))

    def attempt(self, work: Callable[[], object]) -> None:
        """Call `work`; an exception refuses the request."""
        try:
            work()
        except Problem as problem:
            self.refuse(problem)
        except Exception:
            logger.exception("internal error")
            self.refuse(Problem(500, "internal error"))


Handler = Callable[[Call[Any]], object]


class RequestServer:
    """Serves the requests of one child process, also after it is restarted."""

    def __init__(
        self,
        handlers: Mapping[type[Request[Any]], Handler],
        hear: Callable[[Notice], object],
        work: Callable[[Callable[[], object]], object],
        clock: Callable[[], float],
        turn: float,
    ) -> None:
        self._handlers = handlers
        self._hear = hear
        """Called with messages of the child that are not requests."""
        self._work = work
        """Calls a handler, then flushes what the broker has to send."""
        self._clock = clock
        self._turn = turn
        """Seconds after which other work of the event loop gets a turn."""
        kinds: Any = Union[tuple(handlers)]  # noqa: UP007
        self._decoder: msgpack.Decoder[Ask[Any] | Notice] = msgpack.Decoder(Ask[kinds] | Notice)
        self._writer: asyncio.StreamWriter | None = None

    def tell(self, message: RightsChanged | NewCertificates) -> None:
        """Send the child a message, if it is running."""
        if self._writer is not None:
            send(self._writer, message)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, settings: Struct
    ) -> None:
        """Send the child its settings, and serve it until it closes the socket."""
        send(writer, settings)
        self._writer = writer
        until = 0.0
        try:
            while (message := await receive(reader, self._decoder)) is not None:
                if isinstance(message, Ask):
                    self._answer(message, writer)
                else:
                    self._hear(message)
                # Several requests may have arrived together; then the next read does not suspend.
                if self._clock() > until:
                    await asyncio.sleep(0)
                    until = self._clock() + self._turn
        finally:
            self._writer = None

    def _answer(self, asked: Ask[Any], writer: asyncio.StreamWriter) -> None:
        call: Call[Any] = Call(
            asked.number,
            asked.caller,
            asked.request,
            lambda message: send(writer, message),
            writer.transport.get_write_buffer_size,
        )
        handler = self._handlers[type(asked.request)]
        self._work(lambda: call.attempt(lambda: handler(call)))
