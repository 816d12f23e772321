"""The child's side of the socket to the broker: requests, and their answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

from msgspec import Struct, msgpack

from pyrite.ipc.channel import READ_AHEAD, receive, send
from pyrite.ipc.messages import (
    Answer,
    Ask,
    Caller,
    Cancel,
    EndRead,
    ErrorAnswer,
    FromBroker,
    Listing,
    NewCertificates,
    Notice,
    Request,
    RightsChanged,
    answer_type,
)
from pyrite.ipc.problem import Problem

A = TypeVar("A")
S = TypeVar("S", bound=Struct)


class _Pending(Generic[A]):
    """A request that waits for its answer."""

    def __init__(self, answer: asyncio.Future[A], kind: Any) -> None:
        self.answer = answer
        self.decoder: msgpack.Decoder[A] = msgpack.Decoder(kind)
        self.parts: list[A] = []


class BrokerClient:
    """Sends requests to the broker; answers may arrive in any order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience: float) -> None:
        self._reader = reader
        self._writer = writer
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._pending: dict[int, _Pending[Any]] = {}

    @classmethod
    async def open(cls, descriptor: int, settings: type[S], patience: float) -> tuple[BrokerClient, S]:
        """Return a client on the socket that the process was started with, and the settings of the process.

        A request that is not answered within `patience` seconds fails.
        """
        reader, writer = await asyncio.open_connection(
            sock=socket.socket(fileno=descriptor), limit=READ_AHEAD
        )
        found = await receive(reader, msgpack.Decoder(settings))
        if found is None:
            raise Problem(503, "the broker has ended")
        return cls(reader, writer, patience), found

    def tell(self, notice: Notice) -> None:
        """Send a message that has no answer."""
        send(self._writer, notice)

    async def tell_last(self, notice: Notice) -> None:
        """Send a last message, and close the socket."""
        self.tell(notice)
        self._writer.close()
        await self._writer.wait_closed()

    def end_read(self, number: int) -> None:
        """Tell the broker, from any thread, that a read has ended."""
        self._loop.call_soon_threadsafe(self.tell, EndRead(number))

    async def ask(self, request: Request[A], caller: Caller | None = None) -> A:
        """Return the broker's answer; raise Problem if it refuses or does not answer."""
        found, _ = await self.ask_numbered(request, caller)
        return found

    async def ask_numbered(self, request: Request[A], caller: Caller | None = None) -> tuple[A, int]:
        """Return the answer and the number of the request, which identifies a read to the broker."""
        number = next(self._numbers)
        answer: asyncio.Future[A] = self._loop.create_future()
        self._pending[number] = _Pending(answer, answer_type(type(request)))
        try:
            send(self._writer, Ask(number, caller, request))
            await self._writer.drain()
            async with asyncio.timeout(self._patience):
                return await answer, number
        except TimeoutError:
            self.tell(Cancel(number))
            raise Problem(503, "the broker does not answer", 1.0) from None
        except OSError:
            raise _broker_ended() from None
        except asyncio.CancelledError:
            self.tell(Cancel(number))
            raise
        finally:
            del self._pending[number]

    def ask_from_thread(self, request: Request[A], caller: Caller | None = None) -> tuple[A, int]:
        """Like `ask_numbered`, but from another thread, which blocks until the answer arrives."""
        return asyncio.run_coroutine_threadsafe(self.ask_numbered(request, caller), self._loop).result()

    async def run(self, told: Callable[[RightsChanged | NewCertificates], object]) -> None:
        """Receive answers until the broker has ended; call `told` with messages that answer no request."""
        decoder: msgpack.Decoder[FromBroker] = msgpack.Decoder(FromBroker)
        try:
            while (message := await receive(self._reader, decoder)) is not None:
                if isinstance(message, Answer | ErrorAnswer):
                    pending = self._pending.get(message.number)
                    if pending is not None and not pending.answer.done():
                        _take(pending, message)
                else:
                    told(message)
        except (OSError, asyncio.IncompleteReadError):
            pass
        for one in self._pending.values():
            if not one.answer.done():
                one.answer.set_exception(_broker_ended())


def _broker_ended() -> Problem:
    return Problem(503, "the broker has ended", 1.0)


def _take(pending: _Pending[Any], message: Answer | ErrorAnswer) -> None:
    if isinstance(message, ErrorAnswer):
        pending.answer.set_exception(Problem(message.status, message.detail, message.retry_after))
        return
    pending.parts.append(pending.decoder.decode(message.body))
    if message.is_last:
        pending.answer.set_result(_joined(pending.parts))


def _joined(parts: list[Any]) -> Any:
    """Join the parts of a long answer: the last part gets the entries of all."""
    whole = parts[-1]
    if isinstance(whole, Listing) and len(parts) > 1:
        name = whole.list_name
        setattr(whole, name, [entry for part in parts for entry in getattr(part, name)])
    return whole
