"""Bounds on connections: how many there may be, how large the head of a request, and how long it may take.

uvicorn has bounds of its own only for the time between two requests; someone who sends a byte a minute, or
does not read what was asked for, would keep a connection for good.
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
"""Connections at one time; each may have a body and an answer in memory."""
MAX_HEAD = 32 * 1024
"""Bytes of a request before its body: twice what most servers take, as filters and tokens may be long."""
REQUEST_TIME = 120.0
"""Seconds for a request to come and its answer to go, whole: enough for 64 MiB at 5 Mbit/s."""
STRANGER_TIME = 30.0
"""The same while the broker has not let the client in."""
MAX_STRANGERS_PER_ADDRESS = 200
"""Connections from one address on which no request was let in yet; one more ends the oldest of them."""

CERTIFICATE = "pyrite.certificate"
"""Where a request's scope says who has shown a certificate."""
ADMITTED = "pyrite.admitted"
"""Where it has what is called once the broker has let the client in."""


def _problem(status: HTTPStatus, detail: str) -> bytes:
    """Return the answer to what is no request that a handler could be given; the connection ends with it."""
    body = msgspec.json.encode(ProblemDetails(status, status.phrase, detail))
    head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


_TOO_LARGE = _problem(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request before its body has at most {MAX_HEAD} bytes"
)
_UNREADABLE = _problem(
    HTTPStatus.BAD_REQUEST,
    "this is no request of HTTP/1.1 that can be read: expected a method that is known, a path and a query "
    "with % for what is not ASCII, and either one Content-Length or chunks",
)


class BoundedProtocol(HttpToolsProtocol):
    """One connection, within bounds."""

    most = MAX_CONNECTIONS
    most_of_one = MAX_CONNECTIONS
    head_time = 10.0
    """Seconds in which the head of the first request must have come, and of each that has begun."""
    named_in = ""
    """Where in a client's certificate the name of the user is."""
    addresses: Counter[str]
    strangers: OrderedDict[BoundedProtocol, None]
    """Connections on which no request was let in yet, the oldest first."""
    strangers_at: dict[str, OrderedDict[BoundedProtocol, None]]
    """The same by address."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, if there is room for one more."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else "unknown"
        self.addresses[self._address] += 1
        self._user = certificate_user(transport, self.named_in)
        self._head = 0
        self._in_head = True
        self._in_body = False
        self._timer = self.loop.call_later(self.head_time, transport.abort)
        self.strangers[self] = None
        here = self.strangers_at.setdefault(self._address, OrderedDict())
        here[self] = None
        if self.addresses[self._address] > self.most_of_one:
            self.transport.abort()
        elif len(here) > MAX_STRANGERS_PER_ADDRESS:
            next(iter(here))._make_way()
        elif len(self.connections) > self.most:  # the newest may be the one that asks whether all is well
            next(iter(self.strangers))._make_way()

    def _make_way(self) -> None:
        """End this connection, as there are too many of strangers."""
        self._forget_stranger()
        self.transport.abort()

    def _forget_stranger(self) -> None:
        """Count this connection as a stranger's no longer."""
        if self.strangers.pop(self, True) is None:
            here = self.strangers_at[self._address]
            del here[self]
            if not here:
                del self.strangers_at[self._address]

    def _admitted(self) -> None:
        """Note that the broker has let the client in: it has time for its request."""
        self._forget_stranger()
        if not self.transport.is_closing():
            self._time(REQUEST_TIME)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        if self.transport.is_closing():
            return
        is_answered = self.cycle is not None and self.cycle.response_complete
        if is_answered and not self._in_head and not self._in_body:
            self._in_head, self._head = True, 0
            self._time(self.head_time)
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        # What came with the end of a head may be a body, of which there is another bound.
        if self._in_head and self._head > MAX_HEAD and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Say that what came is no request."""
        self.transport.write(_UNREADABLE)
        self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin a request: its head is there."""
        scope = cast(dict[str, Any], self.scope)
        scope[CERTIFICATE] = self._user
        scope[ADMITTED] = self._admitted
        self._in_head = False
        self._in_body = True
        self._time(STRANGER_TIME if self in self.strangers else REQUEST_TIME)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request's body."""
        self._in_body = False
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:  # it was refused before it was whole
            self._time(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """End a request: it is answered."""
        self._timer.cancel()
        super().on_response_complete()
        if self.cycle is not None and not self.cycle.response_complete:
            self._time(REQUEST_TIME)  # another came meanwhile
        elif self._in_body and not self.transport.is_closing():
            self._time(
                self.head_time
            )  # the rest is read and discarded: a client may not read until it has sent all

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._timer.cancel()
        self._forget_stranger()
        self.addresses[self._address] -= 1
        if not self.addresses[self._address]:
            del self.addresses[self._address]
        super().connection_lost(exc)

    def _time(self, seconds: float) -> None:
        """Have the connection closed unless what is under way ends in time."""
        self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort)


def bounded(settings: HttpSettings) -> type[BoundedProtocol]:
    """Return the protocol with the bounds of the settings."""
    return type(
        "Bounded",
        (BoundedProtocol,),
        {
            "most": min(MAX_CONNECTIONS, settings.max_connections),
            "most_of_one": settings.max_connections_per_address,
            "head_time": settings.connect_timeout,
            "named_in": settings.tls.certificate_user if settings.tls else "",
            "addresses": Counter(),
            "strangers": OrderedDict(),
            "strangers_at": {},
        },
    )
