"""Endpoints that read messages from a position, or pull them with a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pyrite.http import reading
from pyrite.http.exchange import HttpExchange
from pyrite.ipc.api.log import MAX_JSON_MESSAGES, MessagePage, Pull, ReadMessages
from pyrite.ipc.problem import Problem
from pyrite.process.fair import Asker, FairQueue
from pyrite.storage.query import QueryError

T = TypeVar("T")

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
JSON_BYTES = 16 * 1024 * 1024
ARROW_BYTES = 64 * 1024 * 1024
"""Maximum bytes of one answer, unless a single message is larger; `next` is where the rest begins."""
READERS = 4
"""Answers that are encoded at the same time: each may need that memory several times."""
CHUNK = 256 * 1024
"""Bytes of a large answer that are sent at once."""

_readers = ThreadPoolExecutor(READERS, "reading")
_waiting: FairQueue[asyncio.Future[None]] = FairQueue()
"""Requests waiting for a reader; users take turns."""
_busy = 0
"""Number of readers in use."""


class LargeResponse(Response):
    """An answer that is sent in chunks, as fast as the client receives them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, len(self.body), CHUNK):
            await send({"type": "http.response.body", "body": self.body[at : at + CHUNK], "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def in_thread(exchange: HttpExchange, call: Callable[..., T], *arguments: Any) -> T:
    """Run a slow call in a reader thread."""
    global _busy
    loop = asyncio.get_running_loop()
    if _busy >= READERS:
        turn: asyncio.Future[None] = loop.create_future()
        caller = exchange.caller()
        user = caller.username or caller.certificate or caller.address
        _waiting.put(Asker(user, caller.address), turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                _free_reader()
            raise
    else:
        _busy += 1
    task = loop.run_in_executor(_readers, call, *arguments)
    task.add_done_callback(lambda _: _free_reader())
    return await task


def _free_reader() -> None:
    """Pass a free reader to the next request."""
    global _busy
    while _waiting:
        turn = _waiting.get()
        if not turn.done():
            turn.set_result(None)
            return
    _busy -= 1


def _log(exchange: HttpExchange) -> reading.MessageSearch:
    data = exchange.shared.settings.data
    if data is None:
        raise Problem(404, "no log: the broker keeps nothing on disk")
    return reading.MessageSearch(Path(data))


async def read(exchange: HttpExchange, asked: ReadMessages) -> Response:
    """Read messages of a stream, as JSON or Arrow."""
    as_arrow = exchange.prefers(ARROW)
    if not as_arrow and asked.limit > MAX_JSON_MESSAGES:
        raise Problem(400, f"limit: expected a whole number from 1 to {MAX_JSON_MESSAGES}")
    log = _log(exchange)
    await exchange.ask(asked)

    def answer() -> Response:
        size = ARROW_BYTES if as_arrow else JSON_BYTES
        try:
            found = log.find(asked.name, asked.filter, asked.start, asked.limit, size)
        except QueryError as wrong:
            raise Problem(400, f"from: {wrong}") from None
        if as_arrow:
            headers = {} if found.next is None else {"Pyrite-Next": str(found.next)}
            return LargeResponse(reading.arrow_stream(found), 200, headers, ARROW)
        rows = [one for batch in found.batches for one in reading.messages(batch)]
        return LargeResponse(
            msgspec.json.encode(MessagePage(rows, found.next, found.skipped)), media_type=JSON
        )

    response = await in_thread(exchange, answer)
    exchange.hold(len(response.body))
    response.headers["Vary"] = "Accept"
    return response


async def pull(exchange: HttpExchange, asked: Pull) -> Response:
    """Pull messages with a consumer."""
    _log(exchange)
    pulled = await exchange.while_connected(exchange.ask(asked))

    def answer() -> Response:
        pulled.show_text()
        return LargeResponse(msgspec.json.encode(pulled), media_type=JSON)

    response = await in_thread(exchange, answer)
    exchange.hold(len(response.body))
    return response
