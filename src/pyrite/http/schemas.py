"""What bodies and answers of the API look like: the schemas of its description."""

from __future__ import annotations

from typing import Any

from pyrite.http.messages import MAX_PULL, MAX_WAIT

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    """Return a schema that is described elsewhere."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(properties: Schema, optional: tuple[str, ...] = (), **more: Any) -> Schema:
    """Return the schema of an object; what is not optional is required."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, **more}


def list_of(of: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": of}


def text(description: str = "", **more: Any) -> Schema:
    """Return the schema of a text."""
    return {"type": "string", **({"description": description} if description else {}), **more}


def count(description: str = "", low: int = 0, high: int | None = None) -> Schema:
    """Return the schema of a whole number."""
    found: Schema = {"type": "integer", "minimum": low}
    if high is not None:
        found["maximum"] = high
    return found | ({"description": description} if description else {})


def or_null(schema: Schema) -> Schema:
    """Return a schema that null fits as well."""
    return schema | {"type": [schema["type"], "null"]}


_CLIENT = {
    "id": text("The client's id."),
    "user": or_null(text("Under which name it was let in.")),
    "protocol": text("What it speaks: MQTT 5, MQTT 3.1.1, line, and over what."),
    "address": text("From where."),
    "connected_since": or_null(text("Since when (RFC 3339, UTC).", format="date-time")),
    "keep_alive": {"type": ["number", "null"], "description": "Its keep-alive, in seconds; 0 for none."},
    "subscriptions": count("How many subscriptions it has."),
    "queued": count("Messages that wait for it, in memory or in the log."),
    "sent": or_null(count("Bytes that were sent to it over this connection.")),
    "received": or_null(count("Bytes that came from it over this connection.")),
    "slow": {"type": "boolean", "description": "Whether it takes messages more slowly than they come."},
}
_PAIRS = list_of({"type": "array", "items": text(), "minItems": 2, "maxItems": 2})
_PROPERTIES = {
    "payload_format": count("1 if the payload is text.", 0, 1),
    "message_expiry": count("Seconds after which the message is of no use.", 0, 2**32 - 1),
    "content_type": text("What the payload is."),
    "response_topic": text("Where answers are expected."),
    "correlation_data_base64": text("What answers carry.", contentEncoding="base64"),
    "user_properties": _PAIRS | {"description": "Pairs of a name and a value."},
}
_PAYLOAD = {
    "payload": text("The payload, if it is UTF-8."),
    "payload_base64": text("The payload, in base64, if not.", contentEncoding="base64"),
}
_MESSAGE = record(
    {
        "stream": text("In which stream it lies (pull only)."),
        "offset": count("Where in its stream it lies."),
        "timestamp": text("When it came (RFC 3339, UTC).", format="date-time"),
        "topic": text(),
        **_PAYLOAD,
        "qos": count("", 0, 2),
        "retain": {"type": "boolean"},
        "client_id": text("Who published it, if that is known."),
        **_PROPERTIES,
    },
    ("stream", *_PAYLOAD, "client_id", *_PROPERTIES),
)
_TOPIC_FIELDS = {
    "topic": text(),
    "created": {"type": "boolean", "description": "Whether it was created, not only used."},
    "kept": {
        "description": "Its retained message; of a large one, only how large it is.",
        "anyOf": [
            {"type": "null"},
            record(
                {**_PAYLOAD, "size": count("Bytes of the payload."), "qos": count("", 0, 2)},
                tuple(_PAYLOAD),
            ),
        ],
    },
}

_QUOTA = record(
    {
        "used": {"type": "number", "minimum": 0, "description": "How much is in use."},
        "limit": {"type": ["number", "null"], "description": "How much may be; null for no quota."},
    }
)
_QUOTAS = {
    "sessions": _QUOTA,
    "connections": _QUOTA,
    "subscriptions": _QUOTA,
    "consumers": _QUOTA,
    "retained_messages": _QUOTA,
    "retained_bytes": _QUOTA,
    "stored_bytes": _QUOTA,
    "message_rate": _QUOTA,
    "byte_rate": _QUOTA,
    "concurrent_reads": _QUOTA,
}

SCHEMAS: Schema = {
    "Quotas": record(
        {
            "accounts": list_of(
                record(
                    {
                        "user": or_null(text("The user's name; null for an address.")),
                        "address": or_null(
                            text("The address, where names are not checked, or none is given.")
                        ),
                        "quotas": record(_QUOTAS),
                    }
                )
            ),
            "next": or_null(text("What to give as `after` for the next page; null for none.")),
        }
    ),
    "Problem": record(
        {
            "type": text(),
            "title": text(),
            "status": count("", 400, 599),
            "detail": text("What is wrong, and what is expected."),
        }
    ),
    "Ready": record({"ready": {"type": "boolean"}, "reason": or_null(text("Why it is not."))}),
    "Broker": record(
        {
            "version": or_null(text("Null, as most of this, for who is not let in.")),
            "uptime_seconds": {"type": ["number", "null"], "minimum": 0},
            "listeners": list_of(text("Where the broker listens.")),
            "websocket": or_null(text("Where a browser can speak MQTT.")),
            "users": {
                "type": "boolean",
                "description": "Whether one must log in: users exist, and no certificate was shown.",
            },
            "user": or_null(text("Under which name this request was let in.")),
            "reloads": count("How often users and rules were read again since the broker started."),
        }
    ),
    "Client": record(_CLIENT),
    "ClientInDetail": record(
        {
            **_CLIENT,
            "subscribed": list_of(
                record(
                    {
                        "filter": text(),
                        "qos": count("", 0, 2),
                        "no_local": {"type": "boolean"},
                        "retain_as_published": {"type": "boolean"},
                        "retain_handling": count("", 0, 2),
                    }
                )
            )
            | {"description": "Its subscriptions, the first 1,000."},
        }
    ),
    "Clients": record({"clients": list_of(ref("Client")), "next": or_null(text())}),
    "Topic": record(_TOPIC_FIELDS),
    "Topics": record({"topics": list_of(ref("Topic")), "next": or_null(text())}),
    "Levels": record(
        {
            "levels": list_of(
                record(
                    {
                        "name": text("The level alone."),
                        **_TOPIC_FIELDS,
                        "below": record(
                            {
                                "created": count("Topics below it that were created."),
                                "kept": count("Topics below it that have a retained message."),
                            }
                        ),
                    }
                )
            ),
            "next": or_null(text()),
        }
    ),
    "Streams": record(
        {
            "streams": list_of(
                record(
                    {
                        "name": text(),
                        "topics": list_of(text()) | {"description": "Its filters that the caller may pull."},
                        "first": count("The offset of the oldest message."),
                        "end": count("The offset after that of the newest."),
                        "bytes": count("Its size on disk."),
                        "segments": count(),
                        "error": or_null(text("Why it cannot be written at present.")),
                    }
                )
            ),
            "withheld": {
                "type": "boolean",
                "description": "Whether streams or filters are left out that the caller may not pull.",
            },
        }
    ),
    "Message": _MESSAGE,
    "Messages": record(
        {
            "messages": list_of(ref("Message")),
            "next": or_null(count("From where on there may be more; null if there is not.")),
            "skipped": list_of(text("What was left out, as it is damaged or not kept any longer.")),
        }
    ),
    "Publish": record(
        {
            "topic": text(minLength=1),
            **_PAYLOAD,
            "qos": count("With which quality of service it is given out.", 0, 2) | {"default": 0},
            "retain": {"type": "boolean", "default": False},
            **_PROPERTIES,
        },
        (*_PAYLOAD, "qos", "retain", *_PROPERTIES),
        oneOf=[{"required": ["payload"]}, {"required": ["payload_base64"]}],
        additionalProperties=False,
    ),
    "Published": record(
        {
            "offset": or_null(count("Where in the log it lies; null if no stream captures its topic.")),
            "stream": or_null(text()),
        }
    ),
    "Pull": record(
        {
            "filter": text("A topic filter. A consumer that is not there is made with it.", minLength=1),
            "max": count("How many messages, at most.", 1, MAX_PULL) | {"default": 1},
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
    "Pulled": record({"messages": list_of(ref("Message"))}),
    "Acknowledge": record(
        {
            "filter": text("The consumer's filter, to be sure that it is the one.", minLength=1),
            "stream": text("The stream of the messages.", default="default", minLength=1),
            "offset": count("The message that was dealt with.", 0, 2**63 - 1),
            "offsets": list_of(count("", 0, 2**63 - 1)) | {"minItems": 1, "maxItems": MAX_PULL},
        },
        ("filter", "stream", "offset", "offsets"),
        oneOf=[{"required": ["offset"]}, {"required": ["offsets"]}],
        additionalProperties=False,
    ),
}
