"""Requests about the log: its streams, and messages read or pulled from it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from pyrite.ipc.api.endpoint import (
    ApiRequest,
    Body,
    Count,
    Endpoint,
    Filter,
    Page,
    Payload,
    Qos,
    Shown,
    check_texts,
)

MAX_JSON_MESSAGES = 1_000
MAX_ARROW_MESSAGES = 100_000
"""Maximum messages of one answer, as JSON and as Arrow."""
MAX_PULL = 1_000
"""Maximum messages of one pull, and offsets of one acknowledgement."""
MAX_WAIT = 30
"""Maximum seconds that a pull waits for a message."""
MAX_CONSUMER_NAME = 256

Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ConsumerName = Annotated[str, Meta(min_length=1, max_length=MAX_CONSUMER_NAME, description="A consumer.")]


class StreamInfo(Struct):
    """A stream of the log."""

    name: str
    topics: Annotated[list[str], Meta(description="The filters that the caller may pull.")]
    first: Annotated[int, Meta(ge=0, description="The offset of the oldest message.")]
    end: Annotated[int, Meta(ge=0, description="The offset after the newest message.")]
    bytes: Annotated[int, Meta(ge=0, description="Its size on disk.")]
    segments: Count
    error: Annotated[str | None, Meta(description="Why it cannot be written currently.")]


class Streams(Shown):
    """The streams of the log."""

    streams: list[StreamInfo]
    withheld: Annotated[
        bool, Meta(description="True if streams or filters are missing because the caller may not pull them.")
    ]


class ListStreams(ApiRequest[Streams]):
    """The streams of the log."""

    endpoint = Endpoint("GET", "/api/v1/streams", (404,))


class ReaderInfo(Struct):
    """A program that reads a stream under a name."""

    name: str
    user: Annotated[str, Meta(description="Its user; the address of a reader without one.")]
    stream: str
    offset: Annotated[int, Meta(ge=0, description="Where it continues.")]
    lag: Annotated[int, Meta(ge=0, description="Messages of the stream that it has not read yet.")]
    seconds: Annotated[float, Meta(ge=0, description="Seconds since it was heard of.")]


class Readers(Shown):
    """Programs that read the log under a name."""

    readers: list[ReaderInfo]


class ListReaders(ApiRequest[Readers]):
    """The named readers of the log; without the right `admin` on `#`, only the caller's."""

    endpoint = Endpoint("GET", "/api/v1/readers")


class StoredMessage(Payload, kw_only=True):
    """A message of the log."""

    stream: Annotated[str, Meta(description="The stream; only in a pull.")] | UnsetType = UNSET
    offset: Annotated[int, Meta(ge=0, description="The number of the message in its stream.")]
    timestamp: Annotated[datetime, Meta(tz=True, description="When the broker received it.")]
    topic: str
    qos: Qos
    retain: bool
    client_id: Annotated[str, Meta(description="The publisher, if known.")] | UnsetType = UNSET
    payload_format: Annotated[int, Meta(ge=0, le=1, description="1 for text.")] | UnsetType = UNSET
    message_expiry: (
        Annotated[int, Meta(ge=0, le=2**32 - 1, description="Seconds until it expires.")] | UnsetType
    ) = UNSET
    content_type: str | UnsetType = UNSET
    response_topic: str | UnsetType = UNSET
    correlation_data_base64: bytes | UnsetType = UNSET
    user_properties: list[tuple[str, str]] | UnsetType = UNSET


class MessagePage(Page):
    """Messages of the log."""

    list_name = "messages"

    messages: list[StoredMessage]
    next: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="The offset to continue from; null if there are no more messages."),
    ]
    skipped: Annotated[list[str], Meta(description="What is missing because it is damaged or was removed.")]


class ReadMessages(ApiRequest[None]):
    """Messages of the log, in order."""

    is_read = True
    endpoint = Endpoint("GET", "/api/v1/streams/{name}/messages", (404,), answer=MessagePage)
    name: Annotated[str, Meta(description="A stream.")]
    filter: Filter = "#"
    start: Annotated[str, Meta(description="The start: an offset, earliest, latest, -1h, or a time.")] = (
        field(default="earliest", name="from")
    )
    limit: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_ARROW_MESSAGES,
            description=f"Maximum number of messages; in JSON at most {MAX_JSON_MESSAGES}.",
        ),
    ] = 100


class PulledMessages(Page):
    """Messages that a consumer fetched."""

    list_name = "messages"

    messages: list[StoredMessage]


class PullOptions(Body):
    """The options of a pull."""

    filter: (
        Annotated[
            str,
            Meta(
                min_length=1, description="A topic filter. A consumer that does not exist is created with it."
            ),
        ]
        | UnsetType
    ) = UNSET
    max: Annotated[int, Meta(ge=1, le=MAX_PULL, description="Maximum number of messages.")] = 1
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT, description="Seconds to wait for a first message.")] = 0

    def check(self) -> None:
        check_texts(filter=self.filter)


class Pull(ApiRequest[PulledMessages]):
    """Fetch messages, each once, unless it is not acknowledged within 30 s."""

    is_read = True
    endpoint = Endpoint("POST", "/api/v1/consumers/{name}/pull", (404, 409, 507), body_right="pull")
    name: ConsumerName
    body: PullOptions


class Acknowledged(Body):
    """Processed messages: either `offset` or `offsets`."""

    filter: (
        Annotated[str, Meta(min_length=1, description="The consumer's filter, as a safeguard.")] | UnsetType
    ) = UNSET
    stream: Annotated[str, Meta(min_length=1, description="The stream of the messages.")] = "default"
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1, description="The processed message.")] | UnsetType = UNSET
    offsets: Annotated[list[Offset], Meta(min_length=1, max_length=MAX_PULL)] | UnsetType = UNSET

    def check(self) -> None:
        if (self.offset is UNSET) == (self.offsets is UNSET):
            raise ValueError("expected either offset or offsets")
        check_texts(filter=self.filter, stream=self.stream)


class Acknowledge(ApiRequest[None]):
    """Acknowledge processed messages."""

    endpoint = Endpoint("POST", "/api/v1/consumers/{name}/acknowledge", (404, 409), body_right="pull")
    name: ConsumerName
    body: Annotated[
        Acknowledged,
        Meta(extra_json_schema={"oneOf": [{"required": ["offset"]}, {"required": ["offsets"]}]}),
    ]
