"""The connection to a broker: its address, and bytes to and from it; TCP, TLS, WebSocket or a Unix socket."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast
from urllib.parse import unquote, urlsplit

from pyrite.client.errors import ConnectError

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443, "unix": 0}
_HIGH_WATER = 1 << 20
"""Bytes that may wait to be sent before publishers have to."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's URL in its parts."""

    scheme: str
    host: str
    port: int
    path: str
    username: str | None
    password: str | None

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken there."""
        return self.scheme in ("mqtts", "wss")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def shown(url: str) -> str:
    """Return a URL as an error may show it: without a user name and a password."""
    return re.sub("//.*@", "//(not shown)@", url)


def parse_address(url: str) -> Address:
    """Take a URL apart; raises ValueError if it is none that a broker can have."""
    said = repr(shown(url))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # whose words may be those of the password
        raise ValueError(f"{said} cannot be read: expected a host, and a port from 1 to 65535") from None
    if parts.scheme not in PORTS:
        raise ValueError(
            f"{said} is no broker's URL: expected mqtt://, mqtts://, ws://, wss:// or unix:///path"
        )
    if parts.scheme == "unix":
        if parts.netloc or not parts.path:
            raise ValueError(f"{said} has no path: expected unix:///path")
        return Address("unix", "", 0, unquote(parts.path), None, None)
    if not parts.hostname:
        raise ValueError(f"{said} does not say a host")
    path = parts.path
    if parts.scheme in ("ws", "wss"):
        path = (path or "/mqtt") + (f"?{parts.query}" if parts.query else "")
    elif path.strip("/"):
        raise ValueError(f"{said} has a path, which {parts.scheme}:// has no use for")
    else:
        path = ""
    username = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return Address(parts.scheme, parts.hostname, port or PORTS[parts.scheme], path, username, password)


class Wire(asyncio.Protocol):
    """Bytes to and from the broker."""

    def __init__(self, on_data: Callable[[bytes], None], on_lost: Callable[[Wire, str], None]) -> None:
        self.on_data = on_data
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.fault = ""
        """Why this side ended the connection, if it did."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by name
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        self._begin()

    def _begin(self) -> None:
        self.opened.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Pass on what has come."""
        self.on_data(data)

    def pause_writing(self) -> None:
        """Let publishers wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let them go on."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everyone who waits."""
        self._writable.set()
        text = self.fault or (str(error) if error else "the broker closed the connection")
        if not self.opened.done():
            self.opened.set_exception(ConnectError(text))
            self.opened.exception()  # the one who opens may have given up already
        self.closed.set_result(None)
        self._on_lost(self, text)

    @property
    def writable(self) -> bool:
        """Whether there is room for more."""
        return self._writable.is_set()

    async def drained(self, everything: bool = False) -> None:
        """Return when there is room for more, or `everything` is sent, or the connection is gone."""
        assert self._transport is not None
        if everything:
            if not self._transport.get_write_buffer_size():
                return  # with TLS, one that has nothing to send would be paused until there is something
            self._transport.set_write_buffer_limits(0)
        try:
            await self._writable.wait()
        finally:
            if everything and not self.closed.done():
                self._transport.set_write_buffer_limits(_HIGH_WATER)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._transport is not None
        self._transport.write(data)

    def pause_reading(self) -> None:
        """Take nothing more from the broker for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take what comes again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self, fault: str = "") -> None:
        """Close when everything is sent."""
        self.fault = self.fault or fault
        if self._transport is not None:
            self._transport.close()

    def abort(self, fault: str = "") -> None:
        """Close at once."""
        self.fault = self.fault or fault
        if self._transport is not None:
            self._transport.abort()


async def open_wire(
    address: Address,
    tls: ssl.SSLContext | None,
    bind_address: str,
    on_data: Callable[[bytes], None],
    on_lost: Callable[[Wire, str], None],
) -> Wire:
    """Connect; raises ConnectError if that does not work."""
    make: Callable[[], Wire] = partial(Wire, on_data, on_lost)
    if address.scheme in ("ws", "wss"):
        from pyrite.client.websocket import WebSocketWire  # which takes a while to load

        make = partial(WebSocketWire, str(address), on_data, on_lost)
    try:
        if address.scheme == "unix":
            _, wire = await asyncio.get_running_loop().create_unix_connection(make, address.path)
        else:
            context = (tls or ssl.create_default_context()) if address.is_encrypted else None
            wire = await _connect(make, address, context, bind_address)
        try:
            await wire.opened
        except asyncio.CancelledError:
            wire.abort()
            raise
    except OSError as error:
        raise ConnectError(f"cannot connect to {address}: {error}") from error
    except ConnectError as error:
        raise ConnectError(f"cannot connect to {address}: {error}") from None
    return wire


async def _connect(
    make: Callable[[], Wire], address: Address, tls: ssl.SSLContext | None, bind_address: str
) -> Wire:
    """Connect to the first address of a host that answers; raises what the last one did if none does."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for number, (family, _, _, _, where) in enumerate(found, 1):
        try:
            _, wire = await loop.create_connection(
                make,
                str(where[0]),
                address.port,
                family=family,
                ssl=tls,
                server_hostname=address.host if tls else None,
                local_addr=(bind_address, 0) if bind_address else None,
            )
        except ssl.SSLError:
            raise
        except OSError:
            if number == len(found):
                raise
        else:
            return wire
    raise OSError(f"{address.host} has no address")
