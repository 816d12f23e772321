"""Byte transport to a broker: TCP, TLS, WebSocket or Unix socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import cast

from pyrite.client.address import Address
from pyrite.client.errors import ConnectError

_HIGH_WATER = 1 << 20
"""Bytes in the send buffer above which publishers wait."""


class ClientTransport(asyncio.Protocol):
    """A byte stream to and from the broker."""

    def __init__(
        self, on_data: Callable[[bytes], None], on_lost: Callable[[ClientTransport, str], None]
    ) -> None:
        self.on_data = on_data
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.fault = ""
        """Why this side closed the connection, if it did."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports do not inherit from asyncio.Transport
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        self._begin()

    def _begin(self) -> None:
        self.opened.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.on_data(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._writable.set()
        text = self.fault or (str(error) if error else "the broker closed the connection")
        if not self.opened.done():
            self.opened.set_exception(ConnectError(text))
            self.opened.exception()  # retrieved here, in case the opener has given up
        self.closed.set_result(None)
        self._on_lost(self, text)

    @property
    def writable(self) -> bool:
        """True if the send buffer has room."""
        return self._writable.is_set()

    async def drained(self, everything: bool = False) -> None:
        """Wait until the send buffer has room, or with `everything` is empty, or the connection is lost."""
        assert self._transport is not None
        if everything:
            if not self._transport.get_write_buffer_size():
                return  # with TLS, an empty transport would stay paused until it has data again
            self._transport.set_write_buffer_limits(0)
        try:
            await self._writable.wait()
        finally:
            if everything and not self.closed.done():
                self._transport.set_write_buffer_limits(_HIGH_WATER)

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self, fault: str = "") -> None:
        """Close after the buffered data is sent."""
        self.fault = self.fault or fault
        if self._transport is not None:
            self._transport.close()

    def abort(self, fault: str = "") -> None:
        """Close at once."""
        self.fault = self.fault or fault
        if self._transport is not None:
            self._transport.abort()


async def open_transport(
    address: Address,
    tls: ssl.SSLContext | None,
    bind_address: str,
    on_data: Callable[[bytes], None],
    on_lost: Callable[[ClientTransport, str], None],
) -> ClientTransport:
    """Connect; raises ConnectError."""
    make: Callable[[], ClientTransport] = partial(ClientTransport, on_data, on_lost)
    if address.scheme in ("ws", "wss"):
        from pyrite.client.websocket import WebSocketTransport  # slow to load

        make = partial(WebSocketTransport, str(address), on_data, on_lost)
    try:
        if address.scheme == "unix":
            _, transport = await asyncio.get_running_loop().create_unix_connection(make, address.path)
        else:
            context = (tls or ssl.create_default_context()) if address.is_encrypted else None
            transport = await _connect(make, address, context, bind_address)
        try:
            await transport.opened
        except asyncio.CancelledError:
            transport.abort()
            raise
    except OSError as error:
        raise ConnectError(f"cannot connect to {address}: {error}") from error
    except ConnectError as error:
        raise ConnectError(f"cannot connect to {address}: {error}") from None
    return transport


async def _connect(
    make: Callable[[], ClientTransport], address: Address, tls: ssl.SSLContext | None, bind_address: str
) -> ClientTransport:
    """Connect to the first address that accepts; raises the last error if none does."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for number, (family, _, _, _, where) in enumerate(found, 1):
        try:
            _, transport = await loop.create_connection(
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
            return transport
    raise OSError(f"{address.host} has no address")
