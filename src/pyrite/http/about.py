"""What is asked of the broker itself: whether it is well, what it is."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyrite.http.openapi import DESCRIPTION
from pyrite.http.requests import Json, ask, is_proxied, parameters, state_of


async def health(request: Request) -> Response:
    """Tell whether this process and the broker answer."""
    parameters(request)
    answer = await state_of(request).control.ask("health")
    return JSONResponse(answer["found"])


async def ready(request: Request) -> Response:
    """Tell whether clients are served as they should be."""
    parameters(request)
    found = (await state_of(request).control.ask("ready"))["found"]
    return JSONResponse(found, 200 if found["ready"] else 503)


async def broker(request: Request) -> Response:
    """Tell what this broker is, and who asks."""
    parameters(request)
    found: Json = await ask(request, "broker")
    if found["websocket"] is not None:
        if is_proxied(request):
            found["websocket"] = beside(state_of(request).settings["public_url"], found["websocket"])
        else:
            found["websocket"] = reachable(found["websocket"], request.url.hostname)
    return JSONResponse(found)


async def openapi(request: Request) -> Response:
    """Return the description of all this."""
    return JSONResponse(DESCRIPTION)


def beside(public_url: str, url: str) -> str:
    """Return where a proxy has the WebSocket: beside the dashboard, at the path that the listener has."""
    return f"ws{urlsplit(public_url).geturl().removeprefix('http').rstrip('/')}{urlsplit(url).path}"


def reachable(url: str, host: str | None) -> str:
    """Put the host that the client knows this machine by in place of one that means all addresses."""
    parts = urlsplit(url)
    try:
        everywhere = ip_address(parts.hostname or "").is_unspecified
    except ValueError:
        everywhere = False
    if not everywhere or not host:
        return url
    return parts._replace(netloc=f"{f'[{host}]' if ':' in host else host}:{parts.port}").geturl()
