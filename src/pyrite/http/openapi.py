"""The API's description (OpenAPI 3.1), as it is at /openapi.json."""

from __future__ import annotations

from typing import Any

from pyrite import __version__
from pyrite.http.messages import ARROW, MAX_ARROW, MAX_PULL, MAX_WAIT
from pyrite.http.requests import MAX_PAGE

Schema = dict[str, Any]

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
    503: "The broker, or the log, does not take it now.",
    507: "There is no room; nothing was kept.",
}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Schema, optional: tuple[str, ...] = (), **more: Any) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, **more}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _text(description: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": description} if description else {}), **more}


def _count(description: str = "", low: int = 0, high: int | None = None) -> Schema:
    found: Schema = {"type": "integer", "minimum": low}
    if high is not None:
        found["maximum"] = high
    return found | ({"description": description} if description else {})


def _or_null(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def _query(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _path(name: str, description: str) -> Schema:
    schema = _text(minLength=1)
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
    problem = {"application/problem+json": {"schema": _ref("Problem")}}
    for status in sorted({400, 503, *errors, *((401, 403) if log_in else ())}):
        responses[str(status)] = {"description": _STATUS[status], "content": problem}
    return {
        "summary": summary,
        "responses": responses,
        "security": [{}, {"basic": []}, {"bearer": []}] if log_in else [{}],
        **more,
    }


_LIMIT = _query("limit", _count("", 1, MAX_PAGE) | {"default": 100}, "How many, at most.")
_AFTER = _query("after", _text(), "What `next` of the page before says.")
_FILTER = _query("filter", _text(default="#", minLength=1), "A topic filter.")
_TOPIC = _path("topic", "A topic, with its slashes.")

_CLIENT = {
    "id": _text("The client's id."),
    "user": _or_null(_text("Under which name it was let in.")),
    "protocol": _text("What it speaks: MQTT 5, MQTT 3.1.1, line, and over what."),
    "address": _text("From where."),
    "connected_since": _or_null(_text("Since when (RFC 3339, UTC).", format="date-time")),
    "keep_alive": {"type": ["number", "null"], "description": "Its keep-alive, in seconds; 0 for none."},
    "subscriptions": _count("How many subscriptions it has."),
    "queued": _count("Messages that wait for it, in memory or in the log."),
    "sent": _or_null(_count("Bytes that were sent to it over this connection.")),
    "received": _or_null(_count("Bytes that came from it over this connection.")),
    "slow": {"type": "boolean", "description": "Whether it takes messages more slowly than they come."},
}
_PAIRS = _list({"type": "array", "items": _text(), "minItems": 2, "maxItems": 2})
_PROPERTIES = {
    "payload_format": _count("1 if the payload is text.", 0, 1),
    "message_expiry": _count("Seconds after which the message is of no use.", 0, 2**32 - 1),
    "content_type": _text("What the payload is."),
    "response_topic": _text("Where answers are expected."),
    "correlation_data_base64": _text("What answers carry.", contentEncoding="base64"),
    "user_properties": _PAIRS | {"description": "Pairs of a name and a value."},
}
_PAYLOAD = {
    "payload": _text("The payload, if it is UTF-8."),
    "payload_base64": _text("The payload, in base64, if not.", contentEncoding="base64"),
}
_MESSAGE = _object(
    {
        "stream": _text("In which stream it lies (pull only)."),
        "offset": _count("Where in its stream it lies."),
        "timestamp": _text("When it came (RFC 3339, UTC).", format="date-time"),
        "topic": _text(),
        **_PAYLOAD,
        "qos": _count("", 0, 2),
        "retain": {"type": "boolean"},
        "client_id": _text("Who published it, if that is known."),
        **_PROPERTIES,
    },
    ("stream", *_PAYLOAD, "client_id", *_PROPERTIES),
)
_NEXT_OFFSET = _or_null(_count("From where on there may be more; null if there is not."))

_SCHEMAS: Schema = {
    "Problem": _object(
        {
            "type": _text(),
            "title": _text(),
            "status": _count("", 400, 599),
            "detail": _text("What is wrong, and what is expected."),
        }
    ),
    "Ready": _object({"ready": {"type": "boolean"}, "reason": _or_null(_text("Why it is not."))}),
    "Broker": _object(
        {
            "version": _text(),
            "uptime_seconds": {"type": "number", "minimum": 0},
            "listeners": _list(_text("Where the broker listens.")),
            "websocket": _or_null(_text("Where a browser can speak MQTT.")),
            "users": {
                "type": "boolean",
                "description": "Whether one must log in: users exist, and no certificate was shown.",
            },
            "user": _or_null(_text("Under which name this request was let in.")),
        }
    ),
    "Client": _object(_CLIENT),
    "ClientInDetail": _object(
        {
            **_CLIENT,
            "subscribed": _list(
                _object(
                    {
                        "filter": _text(),
                        "qos": _count("", 0, 2),
                        "no_local": {"type": "boolean"},
                        "retain_as_published": {"type": "boolean"},
                        "retain_handling": _count("", 0, 2),
                    }
                )
            )
            | {"description": "Its subscriptions, the first 1,000."},
        }
    ),
    "Clients": _object({"clients": _list(_ref("Client")), "next": _or_null(_text())}),
    "Topic": _object(
        {
            "topic": _text(),
            "created": {"type": "boolean", "description": "Whether it was created, not only used."},
            "kept": {
                "description": "Its retained message; of a large one, only how large it is.",
                "anyOf": [
                    {"type": "null"},
                    _object(
                        {**_PAYLOAD, "size": _count("Bytes of the payload."), "qos": _count("", 0, 2)},
                        tuple(_PAYLOAD),
                    ),
                ],
            },
        }
    ),
    "Topics": _object({"topics": _list(_ref("Topic")), "next": _or_null(_text())}),
    "Streams": _object(
        {
            "streams": _list(
                _object(
                    {
                        "name": _text(),
                        "topics": _list(_text()),
                        "first": _count("The offset of the oldest message."),
                        "end": _count("The offset after that of the newest."),
                        "bytes": _count("Its size on disk."),
                        "segments": _count(),
                        "error": _or_null(_text("Why it cannot be written at present.")),
                    }
                )
            )
        }
    ),
    "Message": _MESSAGE,
    "Messages": _object(
        {
            "messages": _list(_ref("Message")),
            "next": _NEXT_OFFSET,
            "skipped": _list(_text("What was left out, as it is damaged or not kept any longer.")),
        }
    ),
    "Publish": _object(
        {
            "topic": _text(minLength=1),
            **_PAYLOAD,
            "qos": _count("With which quality of service it is given out.", 0, 2) | {"default": 0},
            "retain": {"type": "boolean", "default": False},
            **_PROPERTIES,
        },
        (*_PAYLOAD, "qos", "retain", *_PROPERTIES),
        oneOf=[{"required": ["payload"]}, {"required": ["payload_base64"]}],
        additionalProperties=False,
    ),
    "Published": _object(
        {
            "offset": _or_null(_count("Where in the log it lies; null if no stream captures its topic.")),
            "stream": _or_null(_text()),
        }
    ),
    "Pull": _object(
        {
            "filter": _text("A topic filter. A consumer that is not there is made with it.", minLength=1),
            "max": _count("How many messages, at most.", 1, MAX_PULL) | {"default": 1},
            "wait": {
                "type": "number",
                "minimum": 0,
                "maximum": MAX_WAIT,
                "default": 0,
                "description": "Seconds to wait for a message, if there is none.",
            },
        },
        ("filter", "max", "wait"),
        additionalProperties=False,
    ),
    "Pulled": _object({"messages": _list(_ref("Message")), "next": _NEXT_OFFSET}),
    "Acknowledge": _object(
        {
            "filter": _text("The consumer's filter, to be sure that it is the one.", minLength=1),
            "stream": _text("The stream of the messages.", default="default", minLength=1),
            "offset": _count("The message that was dealt with.", 0, 2**63 - 1),
            "offsets": _list(_count("", 0, 2**63 - 1)) | {"minItems": 1, "maxItems": MAX_PULL},
        },
        ("filter", "stream", "offset", "offsets"),
        oneOf=[{"required": ["offset"]}, {"required": ["offsets"]}],
        additionalProperties=False,
    ),
}

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
                _object({"status": {"const": "ok"}}),
                log_in=False,
            )
        },
        "/ready": {
            "get": _operation(
                "Whether clients are served as they should be", 200, _ref("Ready"), log_in=False
            )
        },
        "/metrics": {"get": _operation("Figures, for Prometheus; without log-in from this machine")},
        "/openapi.json": {"get": _operation("This description", 200, {"type": "object"}, log_in=False)},
        "/api/v1/broker": {"get": _operation("What this broker is, and who asks", 200, _ref("Broker"))},
        "/api/v1/clients": {
            "get": _operation(
                "The clients that are connected, by id", 200, _ref("Clients"), parameters=[_LIMIT, _AFTER]
            )
        },
        "/api/v1/clients/{id}": {
            "parameters": [_path("id", "A client's id; a slash in it is written %2F.")],
            "get": _operation("One client, with its subscriptions", 200, _ref("ClientInDetail"), (404,)),
            "delete": _operation("End a client's connection", 204, None, (404,)),
        },
        "/api/v1/topics": {
            "get": _operation(
                "Topics that were created, or have a retained message",
                200,
                _ref("Topics"),
                parameters=[_FILTER, _LIMIT, _AFTER],
            )
        },
        "/api/v1/topics/{topic}": {
            "parameters": [_TOPIC],
            "put": _operation("Create a topic", 201, None, (409,)),
            "delete": _operation("Delete a topic, and its retained message", 204, None, (404, 409)),
        },
        "/api/v1/streams": {"get": _operation("The streams of the log", 200, _ref("Streams"), (404,))},
        "/api/v1/streams/{name}/messages": {
            "parameters": [_path("name", "A stream.")],
            "get": _operation(
                "Messages of the log, in order",
                200,
                _ref("Messages"),
                (404,),
                parameters=[
                    _FILTER,
                    _query(
                        "from",
                        _text(default="earliest"),
                        "Where to begin: an offset, earliest, latest, -1h, or a time.",
                    ),
                    _query(
                        "limit",
                        _count("", 1, MAX_PAGE) | {"default": 100},
                        f"How many, at most; {MAX_ARROW} with `Accept: {ARROW}`.",
                    ),
                ],
            ),
        },
        "/api/v1/publish": {
            "post": _operation(
                "Publish a message; answered when it is safe",
                200,
                _ref("Published"),
                (409, 507, *_BODY_ERRORS),
                requestBody=_body(_ref("Publish")),
            )
        },
        "/api/v1/consumers/{name}/pull": {
            "parameters": [_path("name", "The name of a consumer.")],
            "post": _operation(
                "Be given messages, each once, unless it is not acknowledged within 30 s",
                200,
                _ref("Pulled"),
                (404, 409, 507, *_BODY_ERRORS),
                requestBody=_body(_ref("Pull")),
            ),
        },
        "/api/v1/consumers/{name}/acknowledge": {
            "parameters": [_path("name", "The name of a consumer.")],
            "post": _operation(
                "Say that messages were dealt with",
                204,
                None,
                (404, 409, *_BODY_ERRORS),
                requestBody=_body(_ref("Acknowledge")),
            ),
        },
    },
    "components": {
        "schemas": _SCHEMAS,
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
        "application/json": {"schema": _ref("Ready")},
        "application/problem+json": {"schema": _ref("Problem")},
    }
    text = {"text/plain": {"schema": _text()}}
    paths["/metrics"]["get"]["responses"]["200"]["content"] = text
    created = paths["/api/v1/topics/{topic}"]["put"]["responses"]
    created["204"] = {"description": "It was there."}
    messages = paths["/api/v1/streams/{name}/messages"]["get"]["responses"]["200"]
    messages["content"][ARROW] = {"schema": _text(format="binary")}
    messages["headers"] = {
        "Pyrite-Next": {"description": "With Arrow: what `next` is in JSON.", "schema": _count()}
    }


_complete()
