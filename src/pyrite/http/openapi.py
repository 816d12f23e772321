"""The description of the API (OpenAPI 3.1), generated from its requests and answers."""

from __future__ import annotations

from typing import Any

import msgspec

from pyrite import __version__
from pyrite.http.exchange import body_type
from pyrite.http.messages import ARROW
from pyrite.http.validation import schema_of
from pyrite.ipc.api import ENDPOINTS
from pyrite.ipc.api.broker import GetReadiness, Readiness
from pyrite.ipc.api.endpoint import ApiRequest, ProblemDetails
from pyrite.ipc.api.log import ReadMessages
from pyrite.ipc.api.metrics import ScrapeMetrics
from pyrite.ipc.api.topics import CreateTopic
from pyrite.ipc.messages import LogIn, answer_type

Schema = dict[str, Any]

_REFERENCE = "#/components/schemas/{name}"
_STATUS = {
    200: "The answer.",
    201: "Created.",
    204: "Done.",
    400: "The request is invalid; the detail says what is expected.",
    401: "Missing or wrong credentials: a user name and password, or a token.",
    403: "Not authorized; the detail names the missing right.",
    404: "Not found.",
    409: "In conflict with the current state; the detail says why.",
    413: "The body, or the payload, is too large.",
    415: "The body is not application/json.",
    429: "Too many failed log-ins, or a quota is used up; Retry-After says when to try again.",
    503: "The broker or the log is unavailable.",
    507: "No room; nothing was stored.",
}
_REFUSALS = (400, 503)
_LOG_IN_REFUSALS = (401, 403, 429)
_BODY_REFUSALS = (413, 415)


def _json(schema: Schema, media_type: str = "application/json") -> Schema:
    return {media_type: {"schema": schema}}


def _answer(kind: type[ApiRequest[Any]]) -> Any:
    """Return the type of an endpoint's JSON answer, or NoneType."""
    if kind in (CreateTopic, ScrapeMetrics):
        return type(None)
    return kind.endpoint.answer or answer_type(kind)


def _bodies() -> dict[type[ApiRequest[Any]], Any]:
    return {kind: body_type(kind) for kind in ENDPOINTS if kind.endpoint.body_right}


def _parameters(kind: type[ApiRequest[Any]]) -> list[Schema]:
    endpoint = kind.endpoint
    found = []
    for name, schema in schema_of(kind).items():
        if name in ("type", "body"):
            continue
        in_path = f"{{{name}}}" in endpoint.path
        schema = dict(schema)
        parameter: Schema = {"name": name, "in": "path" if in_path else "query", "required": in_path}
        if "description" in schema:
            parameter["description"] = schema.pop("description")
        if in_path:
            schema.setdefault("minLength", 1)
        found.append({**parameter, "schema": schema})
    return found


def _operation(kind: type[ApiRequest[Any]], references: dict[Any, Schema]) -> Schema:
    endpoint, answer = kind.endpoint, _answer(kind)
    needs_log_in = kind.log_in is not LogIn.NONE
    status = 204 if answer is type(None) else 200
    content = {} if answer is type(None) else {"content": _json(references[answer])}
    refusals = {*_REFUSALS, *endpoint.errors}
    if needs_log_in:
        refusals.update(_LOG_IN_REFUSALS)
    operation: Schema = {
        "summary": (kind.__doc__ or "").removesuffix("."),
        "security": [{}, {"basic": []}, {"bearer": []}] if needs_log_in else [{}],
    }
    parameters = _parameters(kind)
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body_right:
        refusals.update(_BODY_REFUSALS)
        operation["requestBody"] = {
            "required": True,
            "content": _json(schema_of(kind)["body"] | references[body_type(kind)]),
        }
    problem = _json(references[ProblemDetails], "application/problem+json")
    operation["responses"] = {str(status): {"description": _STATUS[status], **content}} | {
        str(one): {"description": _STATUS[one], "content": problem} for one in sorted(refusals)
    }
    return operation


def _complete(operations: dict[type[ApiRequest[Any]], Schema], references: dict[Any, Schema]) -> None:
    """Add answers that the types do not express."""
    unready = operations[GetReadiness]["responses"]["503"]["content"]
    unready.update(_json(references[Readiness]))
    scraped = operations[ScrapeMetrics]["responses"]
    scraped.pop("204")
    scraped["200"] = {"description": _STATUS[200], "content": _json({"type": "string"}, "text/plain")}
    created = operations[CreateTopic]["responses"]
    created["201"] = {"description": _STATUS[201]}
    created["204"] = {"description": "The topic existed before."}
    messages = operations[ReadMessages]["responses"]["200"]
    messages["content"].update(_json({"type": "string", "format": "binary"}, ARROW))
    messages["headers"] = {
        "Pyrite-Next": {
            "description": "In Arrow answers: `next` of the JSON answer.",
            "schema": {"type": "integer", "minimum": 0},
        }
    }


def _describe() -> Schema:
    bodies = _bodies()
    types = [ProblemDetails, *dict.fromkeys([*map(_answer, ENDPOINTS), *bodies.values()])]
    types = [one for one in types if one is not type(None)]
    found, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    references = dict(zip(types, found, strict=True))
    operations = {kind: _operation(kind, references) for kind in ENDPOINTS}
    _complete(operations, references)
    paths: dict[str, Schema] = {
        "/openapi.json": {
            "get": {
                "summary": "This description",
                "security": [{}],
                "responses": {"200": {"description": _STATUS[200], "content": _json({"type": "object"})}},
            }
        }
    }
    for kind, operation in operations.items():
        endpoint = kind.endpoint
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pyrite",
            "version": __version__,
            "description": "The HTTP API of Pyrite. Users and rules are those of all protocols.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    }


DESCRIPTION = _describe()
