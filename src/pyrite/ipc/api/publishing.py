"""Requests that publish a message."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from pyrite.ipc.api.endpoint import (
    MAX_TEXT_BYTES,
    ApiRequest,
    Body,
    Endpoint,
    Shown,
    check_texts,
    encoded_size,
)
from pyrite.ipc.problem import Problem

MAX_USER_PROPERTIES = 1_000
MAX_USER_PROPERTY_CHARACTERS = 256 * 1024
"""Maximum number and total length of the user properties of a message, handled in one turn."""


class NewMessage(Body, kw_only=True):
    """A message to publish, with either `payload` or `payload_base64`."""

    topic: Annotated[str, Meta(min_length=1)]
    payload: Annotated[str, Meta(description="The payload, as text.")] | UnsetType = UNSET
    payload_base64: Annotated[bytes, Meta(description="The payload, in base64.")] | UnsetType = UNSET
    qos: Annotated[int, Meta(ge=0, le=2, description="The QoS with which it is delivered.")] = 0
    retain: bool = False
    payload_format: Annotated[int, Meta(ge=0, le=1, description="1 for text.")] | UnsetType = UNSET
    message_expiry: (
        Annotated[int, Meta(ge=0, le=2**32 - 1, description="Seconds until it expires.")] | UnsetType
    ) = UNSET
    content_type: Annotated[str, Meta(description="The MIME type of the payload.")] | UnsetType = UNSET
    response_topic: Annotated[str, Meta(description="The topic for responses.")] | UnsetType = UNSET
    correlation_data_base64: (
        Annotated[bytes, Meta(max_length=MAX_TEXT_BYTES, description="Repeated in responses.")] | UnsetType
    ) = UNSET
    user_properties: (
        Annotated[
            list[tuple[str, str]],
            Meta(max_length=MAX_USER_PROPERTIES, description="Pairs of a name and a value."),
        ]
        | UnsetType
    ) = UNSET

    def check(self) -> None:
        if (self.payload is UNSET) == (self.payload_base64 is UNSET):
            raise ValueError("expected either payload, a string, or payload_base64")
        if self.payload is not UNSET:
            encoded_size("payload", self.payload)
        check_texts(topic=self.topic, content_type=self.content_type, response_topic=self.response_topic)
        response_topic = self.response_topic
        if response_topic is not UNSET and (not response_topic or set(response_topic) & set("+#")):
            raise ValueError("response_topic: expected a nonempty topic without wildcards")
        if self.payload_format == 1 and self.payload_base64 is not UNSET:
            try:
                self.payload_base64.decode()
            except UnicodeDecodeError:
                raise ValueError("payload_format: 1 means UTF-8, but the payload is not UTF-8") from None
        if self.user_properties is not UNSET:
            self._check_user_properties(self.user_properties)

    def _check_user_properties(self, pairs: list[tuple[str, str]]) -> None:
        if sum(len(part) for pair in pairs for part in pair) > MAX_USER_PROPERTY_CHARACTERS:
            raise Problem(
                413, f"user_properties: expected at most {MAX_USER_PROPERTY_CHARACTERS} characters in all"
            )
        for pair in pairs:
            for part in pair:
                check_texts(user_properties=part)

    def pack(self) -> int:
        """Move the payload to `payload_base64`, where the broker expects it; return its size."""
        if self.payload is not UNSET:
            self.payload_base64 = self.payload.encode()
            self.payload = UNSET
        assert self.payload_base64 is not UNSET
        return len(self.payload_base64)


class Published(Shown):
    """The place of a published message."""

    offset: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="The offset; null if no stream captures the topic."),
    ]
    stream: str | None


class PublishMessage(ApiRequest[Published]):
    """Publish a message; answered once it is durable."""

    endpoint = Endpoint("POST", "/api/v1/publish", (409, 507), body_right="publish")
    body: Annotated[
        NewMessage,
        Meta(extra_json_schema={"oneOf": [{"required": ["payload"]}, {"required": ["payload_base64"]}]}),
    ]
