"""The application: which handler is at which path, and what every answer carries."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyrite.http import about, clients, messages, publishing, quotas, topics
from pyrite.http.control import BrokerGone, Control
from pyrite.http.metrics import metrics
from pyrite.http.requests import Json, Problem, State, let_go

logger = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""What every answer carries: a page has its scripts from here alone, and is part of no other."""
SAFE = ("GET", "HEAD", "OPTIONS")


class Manners:
    """Turns away what a page of another site may have made a browser send, and adds the headers above."""

    def __init__(self, app: ASGIApp, local: bool, host: str, public_host: str) -> None:
        self._app = app
        self._local = local
        self._host = host
        self._public_host = public_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        wrong = self._wrong(Headers(scope=scope), scope["method"])
        app = self._app if wrong is None else wrong.response()
        try:
            await app(scope, receive, send_with_headers)
        except Exception:  # a mistake of ours ends this request, and no other
            if started:
                raise
            logger.exception("internal error: %s %r", scope["method"], scope["path"])
            await Problem(500, "internal error").response()(scope, receive, send_with_headers)

    def _wrong(self, headers: Headers, method: str) -> Problem | None:
        """Say what is wrong with where a request comes from, if anything is."""
        if len(headers.getlist("host")) > 1:
            return Problem(400, "expected one Host")
        host = headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            name = ""
        if self._local and not self._is_ours(name) and (not host or host != self._public_host):
            # A name that a site's owner has point here would have its pages count as ours.
            return Problem(
                421,
                f"the Host {host!r} is not served here: expected localhost, an address, or that "
                "of http.public_url",
            )
        origin = headers.get("origin")
        if method not in SAFE and origin is not None and origin.partition("://")[2] != host:
            return Problem(403, f"not authorized: a page of {origin!r} may change nothing here")
        return None

    def _is_ours(self, name: str) -> bool:
        try:
            ip_address(name)
        except ValueError:
            return name in ("localhost", self._host) or name.endswith(".localhost")
        return True


class NameConvertor(PathConvertor):
    """Takes any name in a path: with slashes, as topics have them, and the ends of lines, as they may."""

    regex = "(?s:.*)"


register_url_convertor("name", NameConvertor())


class At:
    """What is at a path: a handler for each method."""

    def __init__(self, **handlers: Callable[[Request], Awaitable[Response]]) -> None:
        if "GET" in handlers:
            handlers["HEAD"] = handlers["GET"]
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        handle = self._handlers.get(scope["method"])
        if handle is None:
            raise HTTPException(405, headers={"Allow": ", ".join(self._handlers)})
        request = Request(scope, receive, send)
        try:
            response = await handle(request)
            await response(scope, receive, send)
        finally:
            let_go(request)


class Dashboard(StaticFiles):
    """The files of the dashboard; a browser asks each time whether they are still the same."""

    def file_response(self, *arguments: object, **named: object) -> Response:
        """Return a file, or that it has not changed."""
        response = super().file_response(*arguments, **named)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return problem.response()


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail, headers = error.detail, dict(error.headers or {})
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path!r}; /openapi.json says what there is"
    elif error.status_code == 405:
        detail = f"{request.method} is not allowed here: expected {headers.setdefault('Allow', 'GET, HEAD')}"
    problem = Problem(error.status_code, detail)
    problem.headers = headers
    return problem.response()


async def _gone(request: Request, error: Exception) -> Response:
    return Problem(503, str(error), Retry_After="1").response()


def make_app(control: Control, settings: Json) -> Starlette:
    """Make the application."""
    state = State(control, settings)
    app = Starlette(
        routes=[
            Route("/health", At(GET=about.health)),
            Route("/ready", At(GET=about.ready)),
            Route("/metrics", At(GET=metrics)),
            Route("/openapi.json", At(GET=about.openapi)),
            Route("/api/v1/broker", At(GET=about.broker)),
            Route("/api/v1/clients", At(GET=clients.page)),
            Route("/api/v1/clients/{id:name}", At(GET=clients.one, DELETE=clients.disconnect)),
            Route("/api/v1/topics", At(GET=topics.page)),
            Route("/api/v1/topics/{topic:name}", At(GET=topics.one, PUT=topics.create, DELETE=topics.delete)),
            Route("/api/v1/tree", At(GET=topics.level)),
            Route("/api/v1/streams", At(GET=messages.streams)),
            Route("/api/v1/streams/{name:name}/messages", At(GET=messages.page)),
            Route("/api/v1/quotas", At(GET=quotas.page)),
            Route("/api/v1/publish", At(POST=publishing.publish)),
            Route("/api/v1/consumers/{name:name}/pull", At(POST=messages.pull)),
            Route("/api/v1/consumers/{name:name}/acknowledge", At(POST=messages.acknowledge)),
            Mount("/", Dashboard(directory=STATIC, html=True, check_dir=False)),
        ],
        middleware=[
            Middleware(Manners, local=settings["local"], host=settings["host"], public_host=state.public_host)
        ],
        exception_handlers={
            Problem: _problem,
            HTTPException: _http_problem,
            BrokerGone: _gone,
        },
    )
    app.router.redirect_slashes = False
    app.state.shared = state
    return app
