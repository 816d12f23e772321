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


class Kept(Payload):
    """A retained message; of a large one, only its size."""

    size: Annotated[int, Meta(ge=0, description="Bytes of the payload.")]
    qos: Qos


class Topic(Shown):
    """A topic."""

    topic: str
    created: Annotated[bool, Meta(description="Whether it was created, not only used.")]
    kept: Annotated[Kept | None, Meta(description="Its retained message; of a large one, only its size.")]

    def show_text(self) -> None:
        """Show the payload of the retained message as text if it is UTF-8."""
        if self.kept is not None:
            self.kept.show_text()


class Topics(Page):
    """Topics that were created, or have a retained message."""

    list_name = "topics"

    topics: list[Topic]
    next: Next


class ListTopics(ApiRequest[Topics]):
    """Topics that were created, or have a retained message."""

    endpoint = Endpoint("GET", "/api/v1/topics")
    filter: Filter = "#"
    limit: Limit = 100
    after: After = ""


class GetTopic(ApiRequest[Topic]):
    """One topic, with its retained message."""

    endpoint = Endpoint("GET", "/api/v1/topics/{topic}", (404,))
    topic: TopicName


class Created(Struct):
    """What became of a request to create a topic."""

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

    created: Annotated[int, Meta(ge=0, description="Topics below it that were created.")]
    kept: Annotated[int, Meta(ge=0, description="Topics below it that have a retained message.")]


class Level(Topic):
    """A level of topics."""

    name: Annotated[str, Meta(description="The level alone.")]
    below: Below


class Levels(Page):
    """Levels of topics."""

    list_name = "levels"

    levels: list[Level]
    next: Next


class ListLevels(ApiRequest[Levels]):
    """The levels of topics that follow one, with what is below each."""

    endpoint = Endpoint("GET", "/api/v1/tree")
    below: (
        Annotated[str, Meta(description="The level whose next ones are wanted; without it, the first ones.")]
        | UnsetType
    ) = UNSET
    limit: Limit = 100
    after: After = ""
