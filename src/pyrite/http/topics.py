"""Topics: which there are, in a list or level by level; creating and deleting them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyrite.http.requests import MAX_PAGE, ask, ask_for_list, name_in_path, number, parameters

PREFIX = "/api/v1/topics/"


async def page(request: Request) -> Response:
    """Tell of some topics, with their kept values."""
    asked = parameters(request, "filter", "limit", "after")
    limit = number(asked.get("limit", "100"), "limit", 1, MAX_PAGE)
    found, topics = await ask_for_list(
        request, "topics", filter=asked.get("filter", "#"), limit=limit, after=asked.get("after")
    )
    return JSONResponse({"topics": topics, **found})


async def one(request: Request) -> Response:
    """Tell of one topic, with its kept value."""
    parameters(request)
    _, (found,) = await ask_for_list(request, "topic", topic=name_in_path(request, PREFIX))
    return JSONResponse(found)


async def level(request: Request) -> Response:
    """Tell of some of the levels that follow one."""
    asked = parameters(request, "below", "limit", "after")
    limit = number(asked.get("limit", "100"), "limit", 1, MAX_PAGE)
    found, levels = await ask_for_list(
        request, "tree", below=asked.get("below"), limit=limit, after=asked.get("after")
    )
    return JSONResponse({"levels": levels, **found})


async def create(request: Request) -> Response:
    """Create a topic."""
    parameters(request)
    found = await ask(request, "create", topic=name_in_path(request, PREFIX))
    return Response(status_code=201 if found["created"] else 204)


async def delete(request: Request) -> Response:
    """Delete a topic and its kept value."""
    parameters(request)
    await ask(request, "delete", topic=name_in_path(request, PREFIX))
    return Response(status_code=204)
