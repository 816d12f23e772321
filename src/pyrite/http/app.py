"""The ASGI application: routes, errors, and security headers."""

from __future__ import annotations

import logging
import math
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyrite.http import tables
from pyrite.http.exchange import HttpExchange, Shared
from pyrite.http.handlers import SPECIAL, Handler, forward
from pyrite.http.openapi import DESCRIPTION
from pyrite.ipc.api import ENDPOINTS
from pyrite.ipc.api.endpoint import ApiRequest, ProblemDetails
from pyrite.ipc.client import BrokerClient
from pyrite.ipc.messages import HttpSettings
from pyrite.ipc.problem import Problem

logger = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer: pages load scripts from this origin only, and cannot be embedded."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class SecurityMiddleware:
    """Refuses cross-site requests, and adds security headers to every answer."""

    def __init__(self, app: ASGIApp, settings: HttpSettings, public_host: str) -> None:
        self._app = app
        self._settings = settings
        self._public_host = public_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        problem = self._check(Headers(scope=scope), scope["method"])
        app = self._app if problem is None else problem_response(problem)
        try:
            await app(scope, receive, send_with_headers)
        except Exception:  # ends this request only
            if started:
                raise
            logger.exception("internal error: %s %r", scope["method"], scope["path"])
            await problem_response(Problem(500, "internal error"))(scope, receive, send_with_headers)

    def _check(self, headers: Headers, method: str) -> Problem | None:
        """Return a Problem for a wrong Host or a foreign Origin."""
        if len(headers.getlist("host")) > 1:
            return Problem(400, "expected one Host header")
        host = headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            name = ""
        if self._settings.is_local and not self._is_own(name) and (not host or host != self._public_host):
            # Otherwise, a site could point its name here and read answers (DNS rebinding).
            return Problem(
                421,
                f"wrong Host {host!r}: expected localhost, an address, or the host of http.public_url",
            )
        origin = headers.get("origin")
        if method not in SAFE_METHODS and origin is not None and origin.partition("://")[2] != host:
            return Problem(403, f"not authorized: pages of {origin!r} may not change anything")
        return None

    def _is_own(self, name: str) -> bool:
        try:
            ip_address(name)
        except ValueError:
            return name in ("localhost", self._settings.host) or name.endswith(".localhost")
        return True


class NameConvertor(PathConvertor):
    """A name in a path; it may contain slashes and line ends, as topics may."""

    regex = "(?s:.*)"


register_url_convertor("name", NameConvertor())


class Resource:
    """A path of the API, with the request type of each method."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._kinds: dict[str, type[ApiRequest[Any]]] = {}

    def add(self, method: str, kind: type[ApiRequest[Any]]) -> None:
        """Add a method; GET also adds HEAD."""
        self._kinds[method] = kind
        if method == "GET":
            self._kinds["HEAD"] = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = self._kinds.get(scope["method"])
        if kind is None:
            raise HTTPException(405, headers={"Allow": ", ".join(self._kinds)})
        exchange = HttpExchange(Request(scope, receive, send), self._shared)
        try:
            asked = await exchange.parse(kind)
            handle: Handler = SPECIAL.get(kind, forward)
            response = await handle(exchange, asked)
            await response(scope, receive, send)
        finally:
            exchange.close()


class Dashboard(StaticFiles):
    """The files of the dashboard, which browsers revalidate each time."""

    def file_response(self, *arguments: object, **named: object) -> Response:
        response = super().file_response(*arguments, **named)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


def problem_response(problem: Problem, request: Request | None = None) -> Response:
    """Return a Problem as an HTTP response (RFC 9457)."""
    headers = {}
    if problem.status == 401:
        # Scripts are not offered Basic, or the browser would open its own log-in dialogue.
        by_script = request is not None and request.headers.get("sec-fetch-dest") == "empty"
        basic = "" if by_script else 'Basic realm="pyrite", charset="UTF-8", '
        headers["WWW-Authenticate"] = f'{basic}Bearer realm="pyrite"'
    if problem.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(problem.retry_after))
    if problem.close:
        headers["Connection"] = "close"
    content = ProblemDetails(problem.status, HTTPStatus(problem.status).phrase, problem.detail)
    body = msgspec.json.encode(content)
    if request is not None and request.url.path.startswith(tables.PREFIX):
        body = tables.with_iceberg_error(content)
    return Response(body, problem.status, headers, media_type="application/problem+json")


async def _refuse(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return problem_response(problem, request)


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail, headers = error.detail, dict(error.headers or {})
    if error.status_code == 404:
        detail = f"no such path: {request.url.path!r}; /openapi.json lists all paths"
    elif error.status_code == 405:
        allowed = headers.setdefault("Allow", "GET, HEAD")
        detail = f"{request.method} is not allowed for this path: expected {allowed}"
    response = problem_response(Problem(error.status_code, detail), request)
    response.headers.update(headers)
    return response


async def _describe(description: bytes, request: Request) -> Response:
    return Response(description, media_type="application/json")


def _routes(shared: Shared) -> list[BaseRoute]:
    paths: dict[str, Resource] = {}
    for kind in ENDPOINTS:
        endpoint = kind.endpoint
        path = endpoint.path.replace("}", ":name}")
        paths.setdefault(path, Resource(shared)).add(endpoint.method, kind)
    return [Route(path, handler) for path, handler in paths.items()]


def make_app(client: BrokerClient, settings: HttpSettings) -> Starlette:
    shared = Shared(client, settings)
    app = Starlette(
        routes=[
            *_routes(shared),
            Route("/openapi.json", partial(_describe, msgspec.json.encode(DESCRIPTION))),
            Mount("/", Dashboard(directory=STATIC, html=True, check_dir=False)),
        ],
        middleware=[Middleware(SecurityMiddleware, settings=settings, public_host=shared.public_host)],
        exception_handlers={Problem: _refuse, HTTPException: _refuse_route},
    )
    app.router.redirect_slashes = False
    return app
