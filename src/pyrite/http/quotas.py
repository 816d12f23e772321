"""Quotas: what each user takes of what all share, and how much it may."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyrite.http.requests import MAX_PAGE, ask_for_list, number, parameters


async def page(request: Request) -> Response:
    """Tell of some accounts; of the caller's own, if it may not see those of others."""
    asked = parameters(request, "limit", "after")
    limit = number(asked.get("limit", "100"), "limit", 1, MAX_PAGE)
    found, accounts = await ask_for_list(request, "quotas", limit=limit, after=asked.get("after"))
    return JSONResponse({"accounts": accounts, **found})
