"""Clients: who is connected, and ending a connection."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyrite.http.requests import MAX_PAGE, Json, Problem, ask, ask_for_list, name_in_path, number, parameters

PREFIX = "/api/v1/clients/"


async def page(request: Request) -> Response:
    """Tell of some clients."""
    asked = parameters(request, "limit", "after")
    limit = number(asked.get("limit", "100"), "limit", 1, MAX_PAGE)
    found, clients = await ask_for_list(request, "clients", limit=limit, after=asked.get("after"))
    return JSONResponse({"clients": [_dated(one) for one in clients], **found})


async def one(request: Request) -> Response:
    """Tell of one client."""
    parameters(request)
    found, subscribed = await ask_for_list(request, "client", id=_id(request))
    return JSONResponse(_dated(found) | {"subscribed": subscribed})


async def disconnect(request: Request) -> Response:
    """End a client's connection."""
    parameters(request)
    await ask(request, "disconnect", id=_id(request))
    return Response(status_code=204)


def _id(request: Request) -> str:
    client_id = name_in_path(request, PREFIX)
    if not client_id:
        raise Problem(404, "expected the id of a client in the path")
    return client_id


def _dated(client: Json) -> Json:
    since = client["connected_since"]
    if since is not None:
        text = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
        client["connected_since"] = text.replace("+00:00", "Z")
    return client
