"""One HTTP request: caller, parameters, body, and the memory it holds until it is answered."""

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
from pyrite.ipc.client import BrokerClient
from pyrite.ipc.messages import Given, HttpSettings, LogIn
from pyrite.ipc.messages import Request as BrokerRequest
from pyrite.ipc.problem import Problem
from pyrite.process.endpoints import origin_of

MAX_HELD = 256 * 1024 * 1024
"""Maximum bytes of bodies and large answers in memory."""
MAX_USER_HELD = MAX_HELD // 4
"""The same for one user, or one address without a user name; at least one body always fits."""

A = TypeVar("A")
R = TypeVar("R", bound=ApiRequest[Any])
T = TypeVar("T")

_WEIGHT = re.compile(r"\bq=([01](?:\.\d*)?)")
"""The weight of a type in an Accept header."""


class Shared:
    """State shared by all requests of the process."""

    def __init__(self, client: BrokerClient, settings: HttpSettings) -> None:
        self.client = client
        self.settings = settings
        public_url = settings.public_url
        self.public_host = origin_of(public_url).partition("://")[2] if public_url else ""
        """The Host of requests through the proxy; empty without a proxy."""
        self.held = 0
        """Bytes of bodies and large answers in memory."""
        self.held_by: Counter[str] = Counter()
        """The same by user."""
        self.max_body = settings.max_payload * 4 // 3 + 64 * 1024
        """Maximum bytes of a body: the largest payload in base64, and its properties."""


class HttpExchange:
    """One request, and the resources it holds until `close`."""

    def __init__(self, request: Request, shared: Shared) -> None:
        self.request = request
        self.shared = shared
        self.address = request.client.host if request.client else "unknown"
        self._user = self.address
        """The user whom held bytes are counted for; the address while the user is unknown."""
        self._held = 0
        self._read: int | None = None
        """The number of the read at the broker, if the request is a read."""

    def close(self) -> None:
        """Release held memory, and end the read at the broker."""
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
        """Count bytes in memory until the request is answered; raise Problem if there are too many."""
        shared = self.shared
        most_of_user = max(MAX_USER_HELD, shared.max_body)
        if shared.held + size > MAX_HELD or shared.held_by[self._user] + size > most_of_user:
            raise Problem(503, "too many large requests at the same time", 1.0, close=True)
        shared.held += size
        shared.held_by[self._user] += size
        self._held += size

    # The caller

    @property
    def is_proxied(self) -> bool:
        """True if the request came through the proxy."""
        host = self.shared.public_host
        return bool(host) and self.request.headers.get("host") == host

    def caller(self) -> Given:
        """Return the credentials of the client; raise Problem for a malformed header."""
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
            "malformed Authorization header: expected Basic with a user name and password, or Bearer",
        )

    async def ask(self, request: BrokerRequest[A]) -> A:
        """Send a request of the caller to the broker; return the answer or raise Problem."""
        client, caller = self.shared.client, self.caller()
        answer, number = await client.ask_numbered(request, caller)
        if request.is_read:
            self._read = number
        if request.log_in is LogIn.REQUIRED:
            self.request.scope[ADMITTED]()
        return answer

    async def while_connected(self, asking: Coroutine[Any, Any, T]) -> T:
        """Return the answer; cancel the request if the client disconnects. The body must have been read."""
        question = asyncio.create_task(asking)
        disconnect = asyncio.ensure_future(self.request.receive())
        try:
            await asyncio.wait((question, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not question.done():
                raise Problem(400, "the client has disconnected")
            return question.result()
        finally:
            question.cancel()
            disconnect.cancel()

    # The request

    async def parse(self, kind: type[R]) -> R:
        """Return the request in path, query and body; raise Problem if it is invalid.

        A body is read only from a client that has the endpoint's right on some topic.
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
            raise Problem(400, "the query string is not UTF-8") from None
        for name, value in pairs:
            if name in found:
                raise Problem(400, f"duplicate parameter {name!r}")
            found[name] = value
        return found

    def _name_in_path(self, endpoint: Endpoint) -> dict[str, str]:
        """Return the parameter in the path, which may contain slashes."""
        prefix, brace, rest = endpoint.path.partition("{")
        if not brace:
            return {}
        name, _, suffix = rest.partition("}")
        raw: bytes = self.request.scope["raw_path"]
        if not (raw.startswith(prefix.encode()) and raw.endswith(suffix.encode())):
            raise Problem(404, f"expected {prefix}NAME{suffix}, with % in the name only: got {raw.decode()}")
        data = unquote_to_bytes(raw[len(prefix) : len(raw) - len(suffix)])
        try:
            return {name: data.decode()}
        except UnicodeDecodeError:
            raise Problem(400, "the path is not UTF-8") from None

    def prefers(self, kind: str) -> bool:
        """Return True if the client accepts a type and likes it no less than JSON (RFC 9110, 12.5.1)."""
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
        if int(headers.get("content-length", 0)) > most:  # the parser has checked the number
            raise _too_large(most)
        self._user = await self.ask(CheckRight(right))
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":  # other sites' pages cannot send it without a preflight
            raise Problem(415, "expected a body with Content-Type application/json")
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
            raise Problem(400, "the body is incomplete") from None
        return b"".join(parts)


def _too_large(most: int) -> Problem:
    return Problem(413, f"the body is larger than {most} bytes", close=True)


def body_type(kind: type[ApiRequest[Any]]) -> type[Body]:
    """Return the type of a request's body."""
    found: type[Body] = get_type_hints(kind)["body"]
    return found
