"""Requests for the broker's metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from pyrite.ipc.api.endpoint import ApiRequest, Endpoint, Shown
from pyrite.ipc.messages import LogIn, Request

COUNTER: Literal["counter"] = "counter"
GAUGE: Literal["gauge"] = "gauge"


class Value(Struct):
    """A value of a metric."""

    value: int | float
    labels: dict[str, str] = field(default_factory=dict)


class Sample(Struct):
    """A metric and its current values."""

    name: Annotated[str, Meta(description="The name in Prometheus, without `pyrite_`.")]
    kind: Annotated[str, Meta(description="counter or gauge.")]
    unit: Annotated[str, Meta(description="bytes, messages, seconds, or empty.")]
    help: str
    topics: Annotated[list[str], Meta(description="The topics under `$SYS/broker/`.")]
    values: Annotated[list[Value], Meta(description="One value, or one for each stream.")]


class Samples(Shown):
    """The metrics of the broker and of the HTTP process."""

    metrics: list[Sample]


class GetMetrics(ApiRequest[Samples]):
    """Metrics, with their names under `$SYS`."""

    endpoint = Endpoint("GET", "/api/v1/metrics")


class ScrapeMetrics(ApiRequest[Samples]):
    """Metrics for Prometheus; from this machine without log-in."""

    endpoint = Endpoint("GET", "/metrics")


class ScrapeLocalMetrics(Request[Samples]):
    """Metrics for Prometheus, for a client of this machine."""

    log_in = LogIn.NONE
