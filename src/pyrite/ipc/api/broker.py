"""Requests about the broker itself."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pyrite.ipc.api.endpoint import ApiRequest, Endpoint, Shown
from pyrite.ipc.messages import LogIn, Request


class Health(Shown):
    """The HTTP process and the broker answer."""

    status: Literal["ok"] = "ok"


class GetHealth(ApiRequest[Health]):
    """Check that the HTTP process and the broker answer."""

    log_in = LogIn.NONE
    endpoint = Endpoint("GET", "/health")


class Readiness(Shown):
    """The readiness of the broker."""

    ready: bool
    reason: Annotated[str | None, Meta(description="The reason, if it is not ready.")]


class GetReadiness(ApiRequest[Readiness]):
    """Check that the broker serves clients and can write its log."""

    log_in = LogIn.NONE
    endpoint = Endpoint("GET", "/ready")


class BrokerInfo(Shown):
    """The broker, and the caller."""

    version: Annotated[
        str | None, Meta(description="Null, like most fields, for a client without valid credentials.")
    ]
    uptime_seconds: Annotated[float, Meta(ge=0)] | None
    listeners: Annotated[list[str], Meta(description="The URLs on which the broker listens.")]
    websocket: Annotated[str | None, Meta(description="The URL for MQTT over WebSocket.")]
    users: Annotated[
        bool,
        Meta(description="True if a log-in is needed: users exist, and the client has no certificate."),
    ]
    user: Annotated[str | None, Meta(description="The authenticated user name of this request.")]
    reloads: Annotated[int, Meta(ge=0, description="Number of reloads of users and rules since the start.")]


class GetBroker(ApiRequest[BrokerInfo]):
    """The broker, and the caller."""

    log_in = LogIn.OPTIONAL
    endpoint = Endpoint("GET", "/api/v1/broker")


class CheckRight(Request[str]):
    """Check that a client has a right on some topic; the answer is its name for quotas."""

    right: str
