"""The Iceberg REST catalog: tables are loaded from the data folder, and errors look as Iceberg's clients
expect.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from starlette.responses import Response

from pyrite.http.exchange import HttpExchange
from pyrite.http.messages import LargeResponse, in_thread
from pyrite.ipc.api.endpoint import ProblemDetails
from pyrite.ipc.api.tables import PREFIX, LoadTable
from pyrite.ipc.problem import Problem
from pyrite.tables import catalog

__all__ = ["PREFIX", "load", "with_iceberg_error"]

_TYPES = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NoSuchTableException",
    503: "ServiceUnavailableException",
}


async def load(exchange: HttpExchange, asked: LoadTable) -> Response:
    """Return the newest metadata of a table."""
    await exchange.ask(asked)
    data = exchange.shared.settings.data
    assert data is not None
    found = await in_thread(exchange, catalog.entry, Path(data), asked.name)
    if found is None:
        raise Problem(503, f"the table {asked.name!r} is being made; try again", 1.0)
    exchange.hold(len(found.metadata))
    location = json.dumps(found.metadata_location).encode()
    body = b'{"metadata-location":%s,"metadata":%s,"config":{}}' % (location, found.metadata)
    return LargeResponse(body, media_type="application/json")


def with_iceberg_error(details: ProblemDetails) -> bytes:
    """Return a problem as JSON that also has what Iceberg's clients look for."""
    status = details.status
    error = {"message": details.detail, "type": _TYPES.get(status, details.title), "code": status}
    return msgspec.json.encode({**msgspec.to_builtins(details), "error": error})
