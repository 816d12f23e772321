"""Handlers of the API: most forward a request to the broker, and return its answer as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response

from pyrite.http import messages, tables
from pyrite.http.exchange import HttpExchange
from pyrite.http.metrics import CONTENT_TYPE, lines, own_sample
from pyrite.ipc.api.broker import GetBroker, GetReadiness
from pyrite.ipc.api.endpoint import ApiRequest, Shown
from pyrite.ipc.api.log import Pull, ReadMessages
from pyrite.ipc.api.metrics import GetMetrics, Samples, ScrapeLocalMetrics, ScrapeMetrics
from pyrite.ipc.api.publishing import PublishMessage
from pyrite.ipc.api.tables import LoadTable
from pyrite.ipc.api.topics import CreateTopic
from pyrite.ipc.messages import LogIn
from pyrite.ipc.problem import Problem
from pyrite.process.endpoints import is_loopback

Handler = Callable[[HttpExchange, Any], Awaitable[Response]]


def as_json(found: Any, status: int = HTTPStatus.OK) -> Response:
    """Return the broker's answer as JSON."""
    if isinstance(found, Shown):
        found.show_text()
    return Response(msgspec.json.encode(found), status, media_type="application/json")


async def forward(exchange: HttpExchange, asked: ApiRequest[Any]) -> Response:
    """Forward a request to the broker."""
    if asked.log_in is LogIn.NONE:
        found = await exchange.shared.client.ask(asked)
    else:
        found = await exchange.ask(asked)
    return Response(status_code=HTTPStatus.NO_CONTENT) if found is None else as_json(found)


async def readiness(exchange: HttpExchange, asked: GetReadiness) -> Response:
    """Return the readiness, also as a status."""
    found = await exchange.shared.client.ask(asked)
    return as_json(found, HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE)


async def broker(exchange: HttpExchange, asked: GetBroker) -> Response:
    """Describe the broker, with a WebSocket URL that the client can reach."""
    found = await exchange.ask(asked)
    if found.websocket is not None:
        if exchange.is_proxied:
            found.websocket = beside(exchange.shared.settings.public_url, found.websocket)
        else:
            found.websocket = reachable(found.websocket, exchange.request.url.hostname)
    return as_json(found)


def beside(public_url: str, url: str) -> str:
    """Return the URL of the WebSocket behind a proxy: next to the dashboard, with the listener's path."""
    return f"ws{urlsplit(public_url).geturl().removeprefix('http').rstrip('/')}{urlsplit(url).path}"


def reachable(url: str, host: str | None) -> str:
    """Replace a wildcard host such as 0.0.0.0 by the host in the client's request."""
    parts = urlsplit(url)
    try:
        everywhere = ip_address(parts.hostname or "").is_unspecified
    except ValueError:
        everywhere = False
    if not everywhere or not host:
        return url
    return parts._replace(netloc=f"{f'[{host}]' if ':' in host else host}:{parts.port}").geturl()


async def create_topic(exchange: HttpExchange, asked: CreateTopic) -> Response:
    """Create a topic; 201 if it is new."""
    found = await exchange.ask(asked)
    return Response(status_code=HTTPStatus.CREATED if found.is_new else HTTPStatus.NO_CONTENT)


async def publish(exchange: HttpExchange, asked: PublishMessage) -> Response:
    """Publish a message, unless its payload is too large."""
    most = exchange.shared.settings.max_payload
    if asked.body.pack() > most:
        raise Problem(413, f"the payload is larger than {most} bytes")
    return as_json(await exchange.ask(asked))


async def metrics(exchange: HttpExchange, asked: GetMetrics) -> Response:
    """Return the metrics of the broker and of this process."""
    found = await exchange.ask(asked)
    found.metrics.append(own_sample())
    return as_json(found)


async def scrape(exchange: HttpExchange, asked: ScrapeMetrics) -> Response:
    """Return metrics in Prometheus's text format; clients on this machine need no log-in."""
    client = exchange.request.client
    found: Samples
    if client is not None and is_loopback(client.host) and not exchange.is_proxied:
        found = await exchange.shared.client.ask(ScrapeLocalMetrics())
    else:
        found = await exchange.ask(asked)
    text = "".join(line for sample in [*found.metrics, own_sample()] for line in lines(sample))
    return Response(text, media_type=CONTENT_TYPE)


SPECIAL: dict[type[ApiRequest[Any]], Handler] = {
    GetReadiness: readiness,
    GetBroker: broker,
    CreateTopic: create_topic,
    PublishMessage: publish,
    GetMetrics: metrics,
    ScrapeMetrics: scrape,
    ReadMessages: messages.read,
    Pull: messages.pull,
    LoadTable: tables.load,
}
"""The handlers of requests that are not just forwarded."""
