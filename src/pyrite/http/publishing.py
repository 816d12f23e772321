"""Publishing: a message in JSON, answered when it is safe."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyrite.http.requests import (
    Json,
    Problem,
    ask,
    body_of,
    bytes_in,
    checked_text,
    number_in,
    parameters,
    state_of,
    text_in,
)

KEYS = (
    "topic",
    "payload",
    "payload_base64",
    "qos",
    "retain",
    "payload_format",
    "message_expiry",
    "content_type",
    "response_topic",
    "correlation_data_base64",
    "user_properties",
)
MAX_USER_PROPERTIES = 1_000
MAX_USER_PROPERTY_BYTES = 256 * 1024
"""Pairs of a message, and characters in all of them: the broker takes them in one turn."""


async def publish(request: Request) -> Response:
    """Publish a message."""
    parameters(request)
    asked = await body_of(request, "publish", KEYS)
    payload = _payload(asked)
    most = state_of(request).settings["max_payload"]
    if len(payload) > most:
        raise Problem(413, f"a payload has at most {most} bytes here")
    message = _message(asked)
    if message["payload_format"] and not _is_text(payload):
        raise Problem(400, "payload_format: 1 says that the payload is UTF-8, and it is not")
    return JSONResponse(await ask(request, "publish", attached=payload, message=message))


def _payload(asked: Json) -> bytes:
    text, data = asked.get("payload"), bytes_in(asked, "payload_base64")
    if (text is None) == (data is None):
        raise Problem(400, "expected payload, a text, or payload_base64; and not both")
    if data is not None:
        return data
    if not isinstance(text, str):
        raise Problem(400, "payload: expected a text; write numbers and JSON in quotes")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Problem(400, "payload: expected characters that UTF-8 can write") from None


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _message(asked: Json) -> Json:
    """Return all but the payload, checked as MQTT would."""
    retain = asked.get("retain", False)
    if not isinstance(retain, bool):
        raise Problem(400, "retain: expected true or false")
    correlation = bytes_in(asked, "correlation_data_base64")
    if correlation is not None and len(correlation) > 65_535:
        raise Problem(400, "correlation_data_base64: expected at most 65535 bytes")
    response_topic = text_in(asked, "response_topic")
    if response_topic is not None and (not response_topic or set(response_topic) & set("+#")):
        raise Problem(400, "response_topic: expected a topic, which is not empty and has no wildcard")
    return {
        "topic": checked_text(asked.get("topic"), "topic"),
        "qos": number_in(asked, "qos", 0, 2, 0),
        "retain": retain,
        "payload_format": number_in(asked, "payload_format", 0, 1),
        "message_expiry": number_in(asked, "message_expiry", 0, 2**32 - 1),
        "content_type": text_in(asked, "content_type"),
        "response_topic": response_topic,
        "correlation_data_base64": None if correlation is None else asked["correlation_data_base64"],
        "user_properties": _user_properties(asked.get("user_properties")),
    }


def _user_properties(pairs: object) -> list[list[str]]:
    if pairs is None:
        return []
    if (
        not isinstance(pairs, list)
        or len(pairs) > MAX_USER_PROPERTIES
        or not all(isinstance(one, list) and len(one) == 2 for one in pairs)
    ):
        raise Problem(
            400, f'user_properties: expected at most {MAX_USER_PROPERTIES} pairs, [["key", "value"]]'
        )
    if sum(len(part) for pair in pairs for part in pair if isinstance(part, str)) > MAX_USER_PROPERTY_BYTES:
        raise Problem(413, f"user_properties: expected at most {MAX_USER_PROPERTY_BYTES} characters in all")
    return [[checked_text(part, "user_properties") for part in pair] for pair in pairs]
