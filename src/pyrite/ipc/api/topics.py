"""Requests about topics: in a list, or level by level; creating and deleting them."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from pyrite.ipc.api.endpoint import (
    After,
    ApiRequest,
    Endpoint,
    Filter,
    Limit,
    Next,
    Page,
    Payload,
    Qos,
    Shown,
)

TopicName = Annotated[str, Meta(description="A topic, with its slashes.")]


class RetainedInfo(Payload):
    """A retained message; only the size of a large one."""

    size: Annotated[int, Meta(ge=0, description="Bytes of the payload.")]
    qos: Qos


class TopicInfo(Shown):
    """A topic."""

    topic: str
    created: Annotated[bool, Meta(description="True if it was created explicitly.")]
    kept: Annotated[RetainedInfo | None, Meta(description="Its retained message.")]

    def show_text(self) -> None:
        if self.kept is not None:
            self.kept.show_text()


class TopicPage(Page):
    """Topics."""

    list_name = "topics"

    topics: list[TopicInfo]
    next: Next


class ListTopics(ApiRequest[TopicPage]):
    """Topics that were created or have a retained message."""

    endpoint = Endpoint("GET", "/api/v1/topics")
    filter: Filter = "#"
    limit: Limit = 100
    after: After = ""


class GetTopic(ApiRequest[TopicInfo]):
    """One topic, with its retained message."""

    endpoint = Endpoint("GET", "/api/v1/topics/{topic}", (404,))
    topic: TopicName


class Created(Struct):
    """The result of creating a topic."""

    is_new: bool


class CreateTopic(ApiRequest[Created]):
    """Create a topic."""

    endpoint = Endpoint("PUT", "/api/v1/topics/{topic}", (409,), answer=None)
    topic: TopicName


class DeleteTopic(ApiRequest[None]):
    """Delete a topic and its retained message."""

    endpoint = Endpoint("DELETE", "/api/v1/topics/{topic}", (404, 409))
    topic: TopicName


class Below(Struct):
    """Topics below a level."""

    created: Annotated[int, Meta(ge=0, description="Number of created topics below it.")]
    kept: Annotated[int, Meta(ge=0, description="Number of topics below it with a retained message.")]


class LevelInfo(TopicInfo):
    """A level of topics."""

    name: Annotated[str, Meta(description="The last level of the topic.")]
    below: Below


class LevelPage(Page):
    """Levels of topics."""

    list_name = "levels"

    levels: list[LevelInfo]
    next: Next


class ListLevels(ApiRequest[LevelPage]):
    """The levels of topics below a level, with the number of topics below each."""

    endpoint = Endpoint("GET", "/api/v1/tree")
    below: (
        Annotated[str, Meta(description="The level above; without it, the first levels are returned.")]
        | UnsetType
    ) = UNSET
    limit: Limit = 100
    after: After = ""
