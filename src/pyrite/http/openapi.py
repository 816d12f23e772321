"""The API's description (OpenAPI 3.1), as it is at /openapi.json."""

from __future__ import annotations

from typing import Any

from pyrite import __version__
from pyrite.http.messages import ARROW, MAX_ARROW
from pyrite.http.requests import MAX_PAGE
from pyrite.http.schemas import SCHEMAS, Schema, count, record, ref, text

_STATUS = {
    200: "What was asked for.",
    201: "It is there now.",
    204: "Done.",
    400: "The request is wrong; the detail says what is expected.",
    401: "A name and a password, or a token, are needed, or wrong.",
    403: "Not authorized; the detail says for what.",
    404: "There is no such thing.",
    409: "It cannot be, as things are; the detail says why.",
    413: "The body, or the payload, is too large.",
    415: "The body is not application/json.",
    429: "Too many log-ins have failed, or a quota is spent; Retry-After says when to try again.",
    503: "The broker, or the log, does not take it now.",
    507: "There is no room; nothing was kept.",
}


def _query(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _path(name: str, description: str) -> Schema:
    schema = text(minLength=1)
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": description}


def _body(schema: Schema) -> Schema:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _operation(
    summary: str,
    answer: int = 200,
    schema: Schema | None = None,
    errors: tuple[int, ...] = (),
    log_in: bool = True,
    **more: Any,
) -> Schema:
    content = {} if schema is None else {"content": {"application/json": {"schema": schema}}}
    responses: Schema = {str(answer): {"description": _STATUS[answer], **content}}
    problem = {"application/problem+json": {"schema": ref("Problem")}}
    for status in sorted({400, 503, *errors, *((401, 403, 429) if log_in else ())}):
        responses[str(status)] = {"description": _STATUS[status], "content": problem}
    return {
        "summary": summary,
        "responses": responses,
        "security": [{}, {"basic": []}, {"bearer": []}] if log_in else [{}],
        **more,
    }


_LIMIT = _query("limit", count("", 1, MAX_PAGE) | {"default": 100}, "How many, at most.")
_AFTER = _query("after", text(), "What `next` of the page before says.")
_FILTER = _query("filter", text(default="#", minLength=1), "A topic filter.")
_TOPIC = _path("topic", "A topic, with its slashes.")

_BODY_ERRORS = (413, 415)

DESCRIPTION: Schema = {
    "openapi": "3.1.0",
    "info": {
        "title": "Pyrite",
        "version": __version__,
        "description": "What a Pyrite broker does, over HTTP. Users and rules are those of every protocol.",
    },
    "paths": {
        "/health": {
            "get": _operation(
                "Whether the process and the broker answer",
                200,
                record({"status": {"const": "ok"}}),
                log_in=False,
            )
        },
        "/ready": {
            "get": _operation("Whether clients are served as they should be", 200, ref("Ready"), log_in=False)
        },
        "/metrics": {"get": _operation("Figures, for Prometheus; without log-in from this machine")},
        "/openapi.json": {"get": _operation("This description", 200, {"type": "object"}, log_in=False)},
        "/api/v1/broker": {"get": _operation("What this broker is, and who asks", 200, ref("Broker"))},
        "/api/v1/clients": {
            "get": _operation(
                "The clients that are connected, by id", 200, ref("Clients"), parameters=[_LIMIT, _AFTER]
            )
        },
        "/api/v1/clients/{id}": {
            "parameters": [_path("id", "A client's id; a slash in it is written %2F.")],
            "get": _operation("One client, with its subscriptions", 200, ref("ClientInDetail"), (404,)),
            "delete": _operation("End a client's connection", 204, None, (404,)),
        },
        "/api/v1/topics": {
            "get": _operation(
                "Topics that were created, or have a retained message",
                200,
                ref("Topics"),
                parameters=[_FILTER, _LIMIT, _AFTER],
            )
        },
        "/api/v1/topics/{topic}": {
            "parameters": [_TOPIC],
            "get": _operation("One topic, with its retained message", 200, ref("Topic"), (404,)),
            "put": _operation("Create a topic", 201, None, (409,)),
            "delete": _operation("Delete a topic, and its retained message", 204, None, (404, 409)),
        },
        "/api/v1/tree": {
            "get": _operation(
                "The levels of topics that follow one, with what is below each",
                200,
                ref("Levels"),
                parameters=[
                    _query(
                        "below", text(), "The level whose next ones are wanted; the first ones without it."
                    ),
                    _LIMIT,
                    _AFTER,
                ],
            )
        },
        "/api/v1/streams": {"get": _operation("The streams of the log", 200, ref("Streams"), (404,))},
        "/api/v1/streams/{name}/messages": {
            "parameters": [_path("name", "A stream.")],
            "get": _operation(
                "Messages of the log, in order",
                200,
                ref("Messages"),
                (404,),
                parameters=[
                    _FILTER,
                    _query(
                        "from",
                        text(default="earliest"),
                        "Where to begin: an offset, earliest, latest, -1h, or a time.",
                    ),
                    _query(
                        "limit",
                        count("", 1, MAX_PAGE) | {"default": 100},
                        f"How many, at most; {MAX_ARROW} with `Accept: {ARROW}`.",
                    ),
                ],
            ),
        },
        "/api/v1/quotas": {
            "get": _operation(
                "What each user takes of what all share, by name; the caller's own without `admin` of `#`",
                200,
                ref("Quotas"),
                parameters=[
                    _query("limit", count("", 1, MAX_PAGE) | {"default": 100}, "How many, at most."),
                    _AFTER,
                ],
            )
        },
        "/api/v1/publish": {
            "post": _operation(
                "Publish a message; answered when it is safe",
                200,
                ref("Published"),
                (409, 507, *_BODY_ERRORS),
                requestBody=_body(ref("Publish")),
            )
        },
        "/api/v1/consumers/{name}/pull": {
            "parameters": [_path("name", "The name of a consumer.")],
            "post": _operation(
                "Be given messages, each once, unless it is not acknowledged within 30 s",
                200,
                ref("Pulled"),
                (404, 409, 507, *_BODY_ERRORS),
                requestBody=_body(ref("Pull")),
            ),
        },
        "/api/v1/consumers/{name}/acknowledge": {
            "parameters": [_path("name", "The name of a consumer.")],
            "post": _operation(
                "Say that messages were dealt with",
                204,
                None,
                (404, 409, *_BODY_ERRORS),
                requestBody=_body(ref("Acknowledge")),
            ),
        },
    },
    "components": {
        "schemas": SCHEMAS,
        "securitySchemes": {
            "basic": {"type": "http", "scheme": "basic"},
            "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        },
    },
}


def _complete() -> None:
    """Add what the general case does not have."""
    paths: Schema = DESCRIPTION["paths"]
    paths["/ready"]["get"]["responses"]["503"]["content"] = {
        "application/json": {"schema": ref("Ready")},
        "application/problem+json": {"schema": ref("Problem")},
    }
    paths["/metrics"]["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": text()}}
    created = paths["/api/v1/topics/{topic}"]["put"]["responses"]
    created["204"] = {"description": "It was there."}
    messages = paths["/api/v1/streams/{name}/messages"]["get"]["responses"]["200"]
    messages["content"][ARROW] = {"schema": text(format="binary")}
    messages["headers"] = {
        "Pyrite-Next": {"description": "With Arrow: what `next` is in JSON.", "schema": count()}
    }


_complete()
