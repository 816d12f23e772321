"""Quotas: what each user takes of what all share, and how much it may."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyrite.http.requests import ask, number, parameters

MAX_ACCOUNTS = 100
"""Accounts in one answer: the broker tells of them in one turn."""


async def page(request: Request) -> Response:
    """Tell of some accounts; of the caller's own, if it may not see those of others."""
    asked = parameters(request, "limit", "after")
    limit = number(asked.get("limit", "100"), "limit", 1, MAX_ACCOUNTS)
    return JSONResponse(await ask(request, "quotas", limit=limit, after=asked.get("after")))
