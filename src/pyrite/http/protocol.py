"""Limits on connections: their number, the size of request headers, and time.

uvicorn limits only the time between two requests. A client that sends a byte a minute, or does not read its
answer, would keep a connection forever.

An *unknown* connection is one on which the broker has not authenticated a request yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from http import HTTPStatus
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pyrite.ipc.api.endpoint import ProblemDetails
from pyrite.ipc.messages import HttpSettings
from pyrite.process.tls import certificate_user

MAX_CONNECTIONS = 1_000
"""Maximum connections; each may have a body and an answer in memory."""
MAX_HEAD = 32 * 1024
"""Maximum bytes of a request before its body: twice the usual limit, for long filters and tokens."""
REQUEST_TIME = 120.0
"""Seconds to receive a request, or to send its answer: enough for 64 MiB at 5 Mbit/s."""
UNKNOWN_TIME = 30.0
"""The same on an unknown connection."""
MAX_UNKNOWN_PER_ADDRESS = 200
"""Maximum unknown connections from one address; one more closes the oldest."""

CERTIFICATE = "pyrite.certificate"
"""Key of a request's scope: the user name in the client's certificate."""
ADMITTED = "pyrite.admitted"
"""Key of a request's scope: a function to call once the broker has authenticated the client."""


def _problem(status: HTTPStatus, detail: str) -> bytes:
    """Return the answer to an unreadable request, after which the connection is closed."""
    body = msgspec.json.encode(ProblemDetails(status, status.phrase, detail))
    head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


_TOO_LARGE = _problem(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request headers are larger than {MAX_HEAD} bytes"
)
_UNREADABLE = _problem(
    HTTPStatus.BAD_REQUEST,
    "not a valid HTTP/1.1 request: expected a known method, a path and query with % for characters that are "
    "not ASCII, and either one Content-Length or chunks",
)


class BoundedProtocol(HttpToolsProtocol):
    """One connection with limits."""

    most = MAX_CONNECTIONS
    most_of_one = MAX_CONNECTIONS
    head_time = 10.0
    """Seconds to receive the headers of the first request, and of each one that has begun."""
    named_in = ""
    """The part of a client certificate with the user name."""
    addresses: Counter[str]
    unknown: OrderedDict[BoundedProtocol, None]
    """Unknown connections, oldest first."""
    unknown_at: dict[str, OrderedDict[BoundedProtocol, None]]
    """The same by address."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and close the oldest unknown connection if there are too many."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else "unknown"
        self.addresses[self._address] += 1
        self._user = certificate_user(transport, self.named_in)
        self._head = 0
        self._in_head = True
        self._in_body = False
        self._timer = self.loop.call_later(self.head_time, transport.abort)
        self.unknown[self] = None
        here = self.unknown_at.setdefault(self._address, OrderedDict())
        here[self] = None
        if self.addresses[self._address] > self.most_of_one:
            self.transport.abort()
        elif len(here) > MAX_UNKNOWN_PER_ADDRESS:
            next(iter(here))._make_way()
        elif len(self.connections) > self.most:  # the newest may be a health check
            next(iter(self.unknown))._make_way()

    def _make_way(self) -> None:
        """Close this connection to make room for another."""
        self._forget_unknown()
        self.transport.abort()

    def _forget_unknown(self) -> None:
        """Remove this connection from the unknown ones."""
        if self.unknown.pop(self, True) is None:
            here = self.unknown_at[self._address]
            del here[self]
            if not here:
                del self.unknown_at[self._address]

    def _admitted(self) -> None:
        """Record that the broker has authenticated the client, which now has more time."""
        self._forget_unknown()
        if not self.transport.is_closing():
            self._time(REQUEST_TIME)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a request."""
        if self.transport.is_closing():
            return
        is_answered = self.cycle is not None and self.cycle.response_complete
        if is_answered and not self._in_head and not self._in_body:
            self._in_head, self._head = True, 0
            self._time(self.head_time)
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        # Bytes after the headers belong to the body, which has its own limit.
        if self._in_head and self._head > MAX_HEAD and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer an unreadable request."""
        self.transport.write(_UNREADABLE)
        self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin a request."""
        scope = cast(dict[str, Any], self.scope)
        scope[CERTIFICATE] = self._user
        scope[ADMITTED] = self._admitted
        self._in_head = False
        self._in_body = True
        self._time(UNKNOWN_TIME if self in self.unknown else REQUEST_TIME)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:  # refused before the body was complete
            self._time(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        self._timer.cancel()
        super().on_response_complete()
        if self.cycle is not None and not self.cycle.response_complete:
            self._time(REQUEST_TIME)  # the next request arrived in the meantime
        elif self._in_body and not self.transport.is_closing():
            # The rest is read and discarded: the client may not read until it has sent all.
            self._time(self.head_time)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._forget_unknown()
        self.addresses[self._address] -= 1
        if not self.addresses[self._address]:
            del self.addresses[self._address]
        super().connection_lost(exc)

    def _time(self, seconds: float) -> None:
        """Close the connection after so many seconds, unless another time is set before."""
        self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort)


def bounded(settings: HttpSettings) -> type[BoundedProtocol]:
    """Return the protocol with the limits of the settings."""
    return type(
        "Bounded",
        (BoundedProtocol,),
        {
            "most": min(MAX_CONNECTIONS, settings.max_connections),
            "most_of_one": settings.max_connections_per_address,
            "head_time": settings.connect_timeout,
            "named_in": settings.tls.certificate_user if settings.tls else "",
            "addresses": Counter(),
            "unknown": OrderedDict(),
            "unknown_at": {},
        },
    )
