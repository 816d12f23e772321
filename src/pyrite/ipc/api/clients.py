"""Requests about connected clients."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from pyrite.ipc.api.endpoint import After, ApiRequest, Count, Endpoint, Limit, Next, Page, Qos, Shown
from pyrite.ipc.messages import Listing


class ClientInfo(Shown):
    """A connected client."""

    id: Annotated[str, Meta(description="The client identifier.")]
    user: Annotated[str | None, Meta(description="The authenticated user name.")]
    protocol: Annotated[str, Meta(description="MQTT 5, MQTT 3.1.1 or line, with the transport.")]
    address: str
    connected_since: Annotated[datetime, Meta(tz=True)] | None
    keep_alive: Annotated[float | None, Meta(description="The keep-alive interval in seconds; 0 for none.")]
    subscriptions: Count
    queued: Annotated[
        int, Meta(ge=0, description="Messages waiting for the client, in memory or in the log.")
    ]
    sent: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Bytes sent over this connection.")]
    received: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Bytes received over this connection."),
    ]
    slow: Annotated[bool, Meta(description="True if messages arrive faster than the client receives them.")]


class ClientPage(Page):
    """Connected clients."""

    list_name = "clients"

    clients: list[ClientInfo]
    next: Next


class ListClients(ApiRequest[ClientPage]):
    """Connected clients, by identifier."""

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


class ClientDetails(ClientInfo, Listing):
    """A connected client, with its subscriptions."""

    list_name = "subscribed"

    subscribed: Annotated[list[ClientSubscription], Meta(description="Its first 1,000 subscriptions.")]


ClientId = Annotated[str, Meta(min_length=1, description="A client identifier, with slashes written as %2F.")]


class GetClient(ApiRequest[ClientDetails]):
    """One client, with its subscriptions."""

    endpoint = Endpoint("GET", "/api/v1/clients/{id}", (404,))
    id: ClientId


class DisconnectClient(ApiRequest[None]):
    """Close a client's connection."""

    endpoint = Endpoint("DELETE", "/api/v1/clients/{id}", (404,))
    id: ClientId
