"""Requests about the broker itself."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pyrite.ipc.api.endpoint import ApiRequest, Endpoint, Shown
from pyrite.ipc.messages import LogIn, Request


class Health(Shown):
    """The process and the broker answer."""

    status: Literal["ok"] = "ok"


class GetHealth(ApiRequest[Health]):
    """Whether the process and the broker answer."""

    log_in = LogIn.NONE
    endpoint = Endpoint("GET", "/health")


class Readiness(Shown):
    """Whether clients are served as they should be."""

    ready: bool
    reason: Annotated[str | None, Meta(description="Why not.")]


class GetReadiness(ApiRequest[Readiness]):
    """Whether clients are served as they should be."""

    log_in = LogIn.NONE
    endpoint = Endpoint("GET", "/ready")


class BrokerInfo(Shown):
    """The broker, and who asks."""

    version: Annotated[
        str | None, Meta(description="Null, as most of this, for a client that is not let in.")
    ]
    uptime_seconds: Annotated[float, Meta(ge=0)] | None
    listeners: Annotated[list[str], Meta(description="Where the broker listens.")]
    websocket: Annotated[str | None, Meta(description="Where a browser can speak MQTT.")]
    users: Annotated[
        bool, Meta(description="Whether a log-in is needed: users exist, and no certificate was shown.")
    ]
    user: Annotated[str | None, Meta(description="The user name under which this request was let in.")]
    reloads: Annotated[
        int, Meta(ge=0, description="How often users and rules were read again since the broker started.")
    ]


class GetBroker(ApiRequest[BrokerInfo]):
    """What this broker is, and who asks."""

    log_in = LogIn.OPTIONAL
    endpoint = Endpoint("GET", "/api/v1/broker")


class CheckRight(Request[str]):
    """Whether a client has a right on some topic, before its body is read; its name for quotas."""

    right: str
