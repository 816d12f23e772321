"""Requests about connected clients."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from pyrite.ipc.api.endpoint import After, ApiRequest, Count, Endpoint, Limit, Next, Page, Qos, Shown
from pyrite.ipc.messages import Listing


class Client(Shown):
    """A connected client."""

    id: Annotated[str, Meta(description="The client id.")]
    user: Annotated[str | None, Meta(description="The user name under which it was let in.")]
    protocol: Annotated[str, Meta(description="MQTT 5, MQTT 3.1.1 or line, and over what.")]
    address: str
    connected_since: Annotated[datetime, Meta(tz=True)] | None
    keep_alive: Annotated[float | None, Meta(description="Its keep-alive, in seconds; 0 for none.")]
    subscriptions: Count
    queued: Annotated[int, Meta(ge=0, description="Messages that wait for it, in memory or in the log.")]
    sent: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Bytes sent to it over this connection.")
    ]
    received: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Bytes received from it over this connection.")
    ]
    slow: Annotated[bool, Meta(description="Whether it takes messages more slowly than they come.")]


class Clients(Page):
    """Connected clients."""

    list_name = "clients"

    clients: list[Client]
    next: Next


class ListClients(ApiRequest[Clients]):
    """The clients that are connected, by id."""

    endpoint = Endpoint("GET", "/api/v1/clients")
    limit: Limit = 100
    after: After = ""


class ClientSubscription(Struct):
    """A subscription of a client."""

    filter: str
    qos: Qos
    no_local: bool
    retain_as_published: bool
    retain_handling: Annotated[int, Meta(ge=0, le=2)]


class ClientDetails(Client, Listing):
    """A connected client, with its subscriptions."""

    list_name = "subscribed"

    subscribed: Annotated[list[ClientSubscription], Meta(description="Its first 1,000 subscriptions.")]


ClientId = Annotated[str, Meta(min_length=1, description="A client id; a slash in it is written %2F.")]


class GetClient(ApiRequest[ClientDetails]):
    """One client, with its subscriptions."""

    endpoint = Endpoint("GET", "/api/v1/clients/{id}", (404,))
    id: ClientId


class Disconnect(ApiRequest[None]):
    """Close a client's connection."""

    endpoint = Endpoint("DELETE", "/api/v1/clients/{id}", (404,))
    id: ClientId
