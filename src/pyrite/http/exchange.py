"""One HTTP request: its caller, parameters and body, and what it holds in memory until it is answered."""

from __future__ import annotations

import asyncio
import base64
import re
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar, get_type_hints
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import ClientDisconnect, Request

from pyrite.http.protocol import ADMITTED, CERTIFICATE
from pyrite.http.validation import convert, parse_object
from pyrite.ipc.api.broker import CheckRight
from pyrite.ipc.api.endpoint import ApiRequest, Body, Endpoint
from pyrite.ipc.client import Client
from pyrite.ipc.messages import Given, HttpSettings, LogIn
from pyrite.ipc.messages import Request as BrokerRequest
from pyrite.ipc.problem import Problem
from pyrite.process.endpoints import origin_of

MAX_HELD = 256 * 1024 * 1024
"""Bytes of bodies and of large answers in memory at one time."""
MAX_USER_HELD = MAX_HELD // 4
"""Bytes of these for one user, or one address without a name; one body of any size allowed fits."""

A = TypeVar("A")
R = TypeVar("R", bound=ApiRequest[Any])
T = TypeVar("T")

_WEIGHT = re.compile(r"\bq=([01](?:\.\d*)?)")
"""The weight of a type in an Accept header."""


class Shared:
    """What all requests of the process share."""

    def __init__(self, client: Client, settings: HttpSettings) -> None:
        self.client = client
        self.settings = settings
        public_url = settings.public_url
        self.public_host = origin_of(public_url).partition("://")[2] if public_url else ""
        """The Host of requests that come through the proxy, if there is one."""
        self.held = 0
        """Bytes of bodies and of large answers in memory."""
        self.held_by: Counter[str] = Counter()
        """The same for each user."""
        self.max_body = settings.max_payload * 4 // 3 + 64 * 1024
        """Bytes of a body: the largest payload in base64, and what goes with it."""


class Exchange:
    """One request, and what it holds until `close`."""

    def __init__(self, request: Request, shared: Shared) -> None:
        self.request = request
        self.shared = shared
        self.address = request.client.host if request.client else "unknown"
        self._user = self.address
        """For whom bytes are held: the user, once known, or the address."""
        self._held = 0
        self._read: int | None = None
        """The number by which the broker knows the read that the request is."""

    def close(self) -> None:
        """Release what the request holds: it is answered."""
        shared, user = self.shared, self._user
        if self._held:
            shared.held -= self._held
            shared.held_by[user] -= self._held
            if not shared.held_by[user]:
                del shared.held_by[user]
            self._held = 0
        if self._read is not None:
            shared.client.end_read(self._read)
            self._read = None

    def hold(self, size: int) -> None:
        """Count bytes that are in memory until the request is answered; Problem if there are too many."""
        shared = self.shared
        most_of_user = max(MAX_USER_HELD, shared.max_body)
        if shared.held + size > MAX_HELD or shared.held_by[self._user] + size > most_of_user:
            raise Problem(503, "too many large requests at one time", 1.0, close=True)
        shared.held += size
        shared.held_by[self._user] += size
        self._held += size

    # The caller

    @property
    def is_proxied(self) -> bool:
        """Whether the request comes through the proxy in front of this."""
        host = self.shared.public_host
        return bool(host) and self.request.headers.get("host") == host

    def caller(self) -> Given:
        """Return what the client has shown of who it is; Problem if that cannot be read."""
        name, password = self._credentials()
        return Given(name, password, self.request.scope.get(CERTIFICATE), self.address)

    def _credentials(self) -> tuple[str | None, str | None]:
        given = self.request.headers.get("authorization")
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
        raise Problem(
            401,
            "the Authorization header cannot be read: expected Basic (a name and a password), or Bearer",
        )

    async def ask(self, request: BrokerRequest[A]) -> A:
        """Return the broker's answer to the caller; or raise Problem."""
        client, caller = self.shared.client, self.caller()
        answer, number = await client.ask_numbered(request, caller)
        if request.is_read:
            self._read = number
        if request.log_in is LogIn.REQUIRED:
            self.request.scope[ADMITTED]()
        return answer

    async def while_connected(self, asking: Coroutine[Any, Any, T]) -> T:
        """Return the answer, or cancel the request when the client leaves: its body was read before."""
        question = asyncio.create_task(asking)
        gone = asyncio.ensure_future(self.request.receive())
        try:
            await asyncio.wait((question, gone), return_when=asyncio.FIRST_COMPLETED)
            if not question.done():
                raise Problem(400, "the client is gone")
            return question.result()
        finally:
            question.cancel()
            gone.cancel()

    # What is asked

    async def parse(self, kind: type[R]) -> R:
        """Return the request for the broker that path, query and body make; Problem if they do not fit.

        A body is read only from a client that has its right on some topic.
        """
        endpoint = kind.endpoint
        values: dict[str, Any] = {**self._parameters(), **self._name_in_path(endpoint)}
        if endpoint.body_right:
            values["body"] = await self._body(endpoint.body_right, body_type(kind))
        return convert(values, kind, "parameter", strict=False)

    def _parameters(self) -> dict[str, str]:
        found: dict[str, str] = {}
        try:
            pairs = parse_qsl(self.request.scope["query_string"].decode(), True, errors="strict")
        except UnicodeDecodeError:
            raise Problem(400, "the query is not UTF-8") from None
        for name, value in pairs:
            if name in found:
                raise Problem(400, f"duplicate parameter {name!r}")
            found[name] = value
        return found

    def _name_in_path(self, endpoint: Endpoint) -> dict[str, str]:
        """Return the name in the path, by its parameter; it may have slashes in it."""
        prefix, brace, rest = endpoint.path.partition("{")
        if not brace:
            return {}
        name, _, suffix = rest.partition("}")
        raw: bytes = self.request.scope["raw_path"]
        if not (raw.startswith(prefix.encode()) and raw.endswith(suffix.encode())):
            raise Problem(
                404, f"expected {prefix}NAME{suffix}, in which only the name has %: got {raw.decode()}"
            )
        data = unquote_to_bytes(raw[len(prefix) : len(raw) - len(suffix)])
        try:
            return {name: data.decode()}
        except UnicodeDecodeError:
            raise Problem(400, "the path is not UTF-8") from None

    def prefers(self, kind: str) -> bool:
        """Return whether an answer of some type is wanted, and no less than JSON (RFC 9110, 12.5.1)."""
        weights: dict[str, float] = {}
        for one in ",".join(self.request.headers.getlist("accept")).lower().split(","):
            name, _, rest = one.partition(";")
            weight = _WEIGHT.search(rest)
            weights[name.strip()] = 1.0 if weight is None else float(weight[1])
        others = [weights[one] for one in ("application/json", "application/*", "*/*") if one in weights]
        return weights.get(kind, 0.0) >= max(others[0] if others else 0.0, 0.001)

    async def _body(self, right: str, kind: type[Body]) -> Body:
        most = self.shared.max_body
        headers = self.request.headers
        if int(headers.get("content-length", 0)) > most:  # the parser has checked that it is a number
            raise _too_large(most)
        self._user = await self.ask(CheckRight(right))
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":  # which pages of other sites cannot send without asking first
            raise Problem(415, "expected a body of Content-Type application/json")
        body = convert(parse_object(await self._read_body(most)), kind, "key")
        try:
            body.check()
        except ValueError as error:
            raise Problem(400, str(error)) from None
        return body

    async def _read_body(self, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async for part in self.request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                self.hold(len(part))
                parts.append(part)
        except ClientDisconnect:
            raise Problem(400, "the body is not complete") from None
        return b"".join(parts)


def _too_large(most: int) -> Problem:
    return Problem(413, f"a body has at most {most} bytes here", close=True)


def body_type(kind: type[ApiRequest[Any]]) -> type[Body]:
    """Return the type of a request's body."""
    found: type[Body] = get_type_hints(kind)["body"]
    return found
