"""Messages of the log: read from a position on, or pulled by a named consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyrite.http import reading
from pyrite.http.requests import (
    Json,
    LargeResponse,
    Problem,
    State,
    ask,
    body_of,
    hold,
    name_in_path,
    number,
    number_in,
    parameters,
    prefers,
    state_of,
    text_in,
    while_there,
    who_asks,
)
from pyrite.process.fair import Asker, FairQueue
from pyrite.storage.query import QueryError

T = TypeVar("T")

ARROW = "application/vnd.apache.arrow.stream"
MAX_JSON = 1_000
MAX_ARROW = 100_000
"""Messages of one answer, in JSON and in Arrow."""
JSON_BYTES = 16 * 1024 * 1024
ARROW_BYTES = 64 * 1024 * 1024
"""Bytes of one answer, but for a single message that is larger; what is left out is at `next`."""
READERS = 4
"""Answers that are made at one time: each may take up that much memory a few times over."""
MAX_WAIT = 30
"""Seconds that a pull may wait for a message."""
MAX_PULL = 1_000

_readers = ThreadPoolExecutor(READERS, "reading")
_waiting: FairQueue[asyncio.Future[None]] = FairQueue()
"""Those that wait for a reader: users take turns, and no one waits for all that another has asked."""
_busy = 0
"""Readers at work."""


async def in_thread(request: Request, call: Callable[..., T], *arguments: Any) -> T:
    """Do what takes time beside the event loop."""
    global _busy
    loop = asyncio.get_running_loop()
    if _busy >= READERS:
        turn: asyncio.Future[None] = loop.create_future()
        who = who_asks(request)
        address = str(who["address"])
        _waiting.put(Asker(who["username"] or who["certificate"] or address, address), turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                _pass_on()
            raise
    else:
        _busy += 1
    task = loop.run_in_executor(_readers, call, *arguments)
    task.add_done_callback(lambda _: _pass_on())
    return await task


def _pass_on() -> None:
    """Let the next have the reader that has become free."""
    global _busy
    while _waiting:
        turn = _waiting.get()
        if not turn.done():
            turn.set_result(None)
            return
    _busy -= 1


def log_of(state: State) -> reading.Log:
    """Return the log; Problem if nothing is kept."""
    if state.settings["data"] is None:
        raise Problem(404, "there is no log: this broker keeps nothing on disk")
    return reading.Log(Path(state.settings["data"]))


async def streams(request: Request) -> Response:
    """Tell which streams there are."""
    parameters(request)
    found: Json = await ask(request, "streams")
    if found["streams"]:
        log = log_of(state_of(request))
        for one in found["streams"]:
            one |= await in_thread(request, log.sizes, one["name"])
    return JSONResponse(found)


async def page(request: Request) -> Response:
    """Return messages of a stream, in JSON or in Arrow."""
    asked = parameters(request, "filter", "from", "limit")
    arrow = prefers(request, ARROW)
    limit = number(asked.get("limit", "100"), "limit", 1, MAX_ARROW if arrow else MAX_JSON)
    stream, topic_filter = name_in_path(request, "/api/v1/streams/", "/messages"), asked.get("filter", "#")
    log = log_of(state_of(request))
    await ask(request, "read", stream=stream, filter=topic_filter)
    position = asked.get("from", "earliest")

    def answer() -> Response:
        try:
            found = log.find(stream, topic_filter, position, limit, ARROW_BYTES if arrow else JSON_BYTES)
        except QueryError as wrong:
            raise Problem(400, f"from: {wrong}") from None
        if arrow:
            headers = {} if found.next is None else {"Pyrite-Next": str(found.next)}
            return LargeResponse(reading.arrow_stream(found), 200, headers, ARROW)
        messages = [one for batch in found.batches for one in reading.objects(batch)]
        content = {"messages": messages, "next": found.next, "skipped": found.skipped}
        return LargeResponse(json.dumps(content, ensure_ascii=False), media_type="application/json")

    response = await in_thread(request, answer)
    hold(request, len(response.body))
    response.headers["Vary"] = "Accept"
    return response


async def pull(request: Request) -> Response:
    """Give out messages of a consumer."""
    parameters(request)
    asked = await body_of(request, "pull", ("filter", "max", "wait"))
    wait = asked.get("wait", 0)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= MAX_WAIT:
        raise Problem(400, f"wait: expected seconds, from 0 to {MAX_WAIT}")
    log = log_of(state_of(request))
    places = await while_there(
        request,
        ask(
            request,
            "pull",
            name=_consumer(request, "/pull"),
            filter=text_in(asked, "filter"),
            max=number_in(asked, "max", 1, MAX_PULL, 1),
            wait=wait,
        ),
    )
    # What there is no room for is given out again when its time has come: it was not acknowledged.
    messages = await in_thread(
        request, log.fetch, [(stream, offset) for stream, offset in places], JSON_BYTES
    )
    response = LargeResponse(
        json.dumps({"messages": messages}, ensure_ascii=False), media_type="application/json"
    )
    hold(request, len(response.body))
    return response


async def acknowledge(request: Request) -> Response:
    """Note that messages were dealt with."""
    parameters(request)
    asked = await body_of(request, "pull", ("filter", "stream", "offset", "offsets"))
    offsets = asked.get("offsets", [asked["offset"]] if "offset" in asked else None)
    if "offset" in asked and "offsets" in asked:
        raise Problem(400, "expected offset or offsets, and not both")
    if (
        not isinstance(offsets, list)
        or not 1 <= len(offsets) <= MAX_PULL
        or not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 2**63 for one in offsets)
    ):
        raise Problem(400, f"expected offset, a whole number, or offsets, a list of at most {MAX_PULL}")
    log_of(state_of(request))
    await ask(
        request,
        "acknowledge",
        name=_consumer(request, "/acknowledge"),
        filter=text_in(asked, "filter"),
        stream=text_in(asked, "stream", "default"),
        offsets=offsets,
    )
    return Response(status_code=204)


def _consumer(request: Request, action: str) -> str:
    name = name_in_path(request, "/api/v1/consumers/", action)
    if not name or len(name) > 256 or not name.isprintable():
        raise Problem(400, "expected the name of a consumer: up to 256 printable characters")
    return name
