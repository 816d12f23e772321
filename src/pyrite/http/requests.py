"""What all handlers have in common: who asks, parameters, bodies, and problems (RFC 9457)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Coroutine, Iterator
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pyrite.http.control import Control
from pyrite.http.protocol import ADMITTED, CERTIFICATE
from pyrite.process.endpoints import origin_of

MAX_PAGE = 1_000
"""Entries of a page."""
MAX_HELD = 256 * 1024 * 1024
"""Bytes of bodies and of large answers that are in memory at one time."""
CHUNK = 256 * 1024
"""Bytes of a large answer that are handed over at a time: the rest waits until the client has taken some."""
MAX_USER_HELD = MAX_HELD // 4
"""Bytes of these for one user, or one address without a name; one body of any size allowed fits."""
HELD = "pyrite.held"
"""Where a request's scope says how many bytes it has in memory."""
USER = "pyrite.user"
"""Where it says for whom these bytes are."""
READ = "pyrite.read"
"""Where it says by which number the broker knows the read that the request is."""
READS = ("read", "pull")
"""Questions with which a read begins."""

Json = dict[str, Any]
T = TypeVar("T")

_WEIGHT = re.compile(r"\bq=([01](?:\.\d*)?)")
"""How much something is wanted, in Accept."""


class Problem(Exception):
    """Why a request is not granted: a status, and a text that says what is wrong and what is expected."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> Response:
        """Return it as it is sent."""
        title = HTTPStatus(self.status).phrase
        content = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        return JSONResponse(content, self.status, self.headers, "application/problem+json")


class State:
    """What the handlers of one process share."""

    def __init__(self, control: Control, settings: Json) -> None:
        self.control = control
        self.settings = settings
        public_url = settings["public_url"]
        self.public_host = origin_of(public_url).partition("://")[2] if public_url else ""
        """The Host of requests that come by way of a proxy, if that is known."""
        self.held = 0
        """Bytes of bodies and of large answers that are in memory."""
        self.held_by: Counter[str] = Counter()
        """The same for each user."""
        self.max_body = settings["max_payload"] * 4 // 3 + 64 * 1024
        """Bytes of a body: the largest payload in base64, and what goes with it."""


def state_of(request: Request) -> State:
    """Return what the handlers share."""
    state: State = request.app.state.shared
    return state


def is_proxied(request: Request) -> bool:
    """Tell whether a request comes by way of the proxy in front of this."""
    return bool(host := state_of(request).public_host) and request.headers.get("host") == host


# Who asks


def who_asks(request: Request) -> Json:
    """Return the name and password that a request gives, its certificate's name, and where it is from.

    A token is a password without a name.
    """
    address = request.client.host if request.client else "unknown"
    name, password = _credentials(request)
    certificate = request.scope.get(CERTIFICATE)
    return {"username": name, "password": password, "certificate": certificate, "address": address}


def _credentials(request: Request) -> tuple[str | None, str | None]:
    given = request.headers.get("authorization")
    if given is None:
        return None, None
    kind, _, value = given.strip().partition(" ")
    if kind.lower() == "bearer" and value.strip():
        return None, value.strip()
    if kind.lower() == "basic":
        try:
            name, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except ValueError:
            colon = ""
        if colon:
            return name, password
    raise unauthorized(
        request, "the Authorization header cannot be read: expected Basic (a name and a password), or Bearer"
    )


def unauthorized(request: Request, detail: str) -> Problem:
    """Return the problem of someone who is not let in.

    A page's script is not told of Basic, lest the browser open a dialogue of its own.
    """
    basic = 'Basic realm="pyrite", charset="UTF-8", '
    scripted = request.headers.get("sec-fetch-dest") == "empty"
    return Problem(401, detail, WWW_Authenticate=f'{"" if scripted else basic}Bearer realm="pyrite"')


async def ask(request: Request, question: str, attached: bytes | None = None, **what: Any) -> Any:
    """Ask the broker on behalf of who makes the request, and return what it found; or raise Problem."""
    found, _ = await ask_for_list(request, question, attached, **what)
    return found


async def ask_for_list(
    request: Request, question: str, attached: bytes | None = None, **what: Any
) -> tuple[Any, list[Json]]:
    """Do the same; return what the broker found besides, and the entries of the list."""
    control = state_of(request).control
    answer = await control.ask(question, attached, who=who_asks(request), **what)
    if question in READS:
        request.scope[READ] = answer["number"]
    if "status" in answer:
        if answer["status"] == 401:
            raise unauthorized(request, answer["detail"])
        after = answer.get("after")
        headers = {} if after is None else {"Retry_After": str(math.ceil(after))}
        raise Problem(answer["status"], answer["detail"], **headers)
    if question != "broker":  # which is answered to strangers too
        request.scope[ADMITTED]()
    entries = [one for part in answer["parts"] for one in _with_payloads(part)]
    return answer["found"], entries


def _with_payloads(part: Json) -> Iterator[Json]:
    """Yield the entries of a part, with the payloads of kept values among the attached bytes."""
    data, at = part.get("attached", b""), 0
    for entry in part["part"]:
        kept = entry.get("kept")
        if kept is not None and kept.pop("attached"):
            put_payload(kept, data[at : at + kept["size"]])
            at += kept["size"]
        yield entry


def put_payload(about: Json, payload: bytes) -> None:
    """Add a payload: as text, or if it is not UTF-8 in base64."""
    try:
        about["payload"] = payload.decode()
    except UnicodeDecodeError:
        about["payload_base64"] = base64.b64encode(payload).decode()


async def while_there(request: Request, asking: Coroutine[Any, Any, T]) -> T:
    """Return the answer to a question, or give it up when the client is gone: its body was read before."""
    question = asyncio.create_task(asking)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((question, gone), return_when=asyncio.FIRST_COMPLETED)
        if not question.done():
            raise Problem(400, "the client is gone")
        return question.result()
    finally:
        question.cancel()
        gone.cancel()


# Parameters


def parameters(request: Request, *names: str) -> dict[str, str]:
    """Return the query's parameters; Problem if there is one that is not known, or is there twice."""
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(request.scope["query_string"].decode(), True, errors="strict")
    except UnicodeDecodeError:
        raise Problem(400, "the query is not UTF-8") from None
    for name, value in pairs:
        if name not in names:
            expected = f"expected one of: {', '.join(names)}" if names else "expected none"
            raise Problem(400, f"there is no parameter {name!r}; {expected}")
        if name in found:
            raise Problem(400, f"the parameter {name!r} is there twice")
        found[name] = value
    return found


def prefers(request: Request, kind: str) -> bool:
    """Tell whether an answer of some type is wanted, and no less than JSON (RFC 9110, 12.5.1)."""
    weights: dict[str, float] = {}
    for one in ",".join(request.headers.getlist("accept")).lower().split(","):
        name, _, rest = one.partition(";")
        weight = _WEIGHT.search(rest)
        weights[name.strip()] = 1.0 if weight is None else float(weight[1])
    others = [weights[one] for one in ("application/json", "application/*", "*/*") if one in weights]
    return weights.get(kind, 0.0) >= max(others[0] if others else 0.0, 0.001)


def number(text: str, name: str, low: int, high: int) -> int:
    """Read a number in a range."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high):
        raise Problem(400, f"{name}={text!r}: expected a number from {low} to {high}")
    return int(text)


def name_in_path(request: Request, prefix: str, suffix: str = "") -> str:
    """Return what is between `prefix` and `suffix` in the path, as UTF-8; it may have slashes in it."""
    raw: bytes = request.scope["raw_path"]
    if not (raw.startswith(prefix.encode()) and raw.endswith(suffix.encode())):
        raise Problem(404, f"expected {prefix}NAME{suffix}, in which only the name has %: got {raw.decode()}")
    return _utf8(unquote_to_bytes(raw[len(prefix) : len(raw) - len(suffix)]), "the path")


def _utf8(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Problem(400, f"{what} is not UTF-8") from None


# Bodies


async def body_of(request: Request, action: str, known: tuple[str, ...]) -> Json:
    """Return a request's body, a JSON object; Problem if it is none, too large, or has an unknown key.

    It is read only if the broker says that its sender may do such an `action` at all.
    """
    most = state_of(request).max_body
    if int(request.headers.get("content-length", 0)) > most:  # a number, or it were no request
        raise _too_large(most)
    request.scope[USER] = await ask(request, "enter", action=action)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which pages of other sites cannot send without asking first
        raise Problem(415, "expected a body of Content-Type application/json")
    data = await _read(request)
    try:
        found = json.loads(data, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Problem(400, "expected a JSON object")
    for name, value in found.items():
        if name not in known:
            raise Problem(400, f"there is no key {name!r}; expected some of: {', '.join(known)}")
        if value is None:
            raise Problem(400, f"{name}: null is no value; leave the key out if there is none")
    return found


def _object(pairs: list[tuple[str, Any]]) -> Json:
    """Return an object of JSON; Problem if it has a key twice, of which one would be lost."""
    found: Json = {}
    for name, value in pairs:
        if name in found:
            raise Problem(400, f"the key {name!r} is there twice")
        found[name] = value
    return found


def _too_large(most: int) -> Problem:
    return Problem(413, f"a body has at most {most} bytes here", Connection="close")


async def _read(request: Request) -> bytes:
    most = state_of(request).max_body
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise _too_large(most)
            hold(request, len(part))
            parts.append(part)
    except ClientDisconnect:
        raise Problem(400, "the body is not complete") from None
    return b"".join(parts)


def hold(request: Request, size: int) -> None:
    """Count bytes that are in memory until the request is answered; Problem if there are too many."""
    state = state_of(request)
    user = request.scope.setdefault(USER, request.client.host if request.client else "unknown")
    most_of_one = max(MAX_USER_HELD, state.max_body)
    if state.held + size > MAX_HELD or state.held_by[user] + size > most_of_one:
        raise Problem(503, "too many large requests at one time", Retry_After="1", Connection="close")
    state.held += size
    state.held_by[user] += size
    request.scope[HELD] = request.scope.get(HELD, 0) + size


def let_go(request: Request) -> None:
    """Count what a request had in memory no longer, and tell the broker that its read is over."""
    state, size = state_of(request), request.scope.pop(HELD, 0)
    if size:
        user = request.scope[USER]
        state.held -= size
        state.held_by[user] -= size
        if not state.held_by[user]:
            del state.held_by[user]
    if READ in request.scope:
        state.control.say(ended=request.scope.pop(READ))


class LargeResponse(Response):
    """An answer that is handed over a piece at a time, as the client takes it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, len(self.body), CHUNK):
            await send({"type": "http.response.body", "body": self.body[at : at + CHUNK], "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def text_in(asked: Json, name: str, default: str | None = None) -> str | None:
    """Return a text of a body: UTF-8, without the null character, as MQTT wants it."""
    value = asked.get(name, default)
    if value is None:
        return default
    return checked_text(value, name)


def checked_text(value: object, name: str) -> str:
    """Return a text that MQTT can carry."""
    if not isinstance(value, str) or "\0" in value:
        raise Problem(400, f"{name}: expected a text, without the null character")
    try:
        if len(value.encode()) > 65_535:
            raise Problem(400, f"{name}: a text has at most 65535 bytes")
    except UnicodeEncodeError:
        raise Problem(400, f"{name}: expected characters that UTF-8 can write") from None
    return value


def number_in(asked: Json, name: str, low: int, high: int, default: int | None = None) -> int | None:
    """Return a whole number of a body."""
    value = asked.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Problem(400, f"{name}: expected a whole number from {low} to {high}")
    return value


def bytes_in(asked: Json, name: str) -> bytes | None:
    """Return bytes of a body, which are there in base64."""
    value = asked.get(name)
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            raise ValueError
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise Problem(400, f"{name}: expected base64") from None
