"""The connection to a broker: its address, and bytes to and from it; TCP, TLS, WebSocket or a Unix socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote, urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from pyrite.client.errors import ConnectError

_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443, "unix": 0}
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

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_address(url: str) -> Address:
    """Take a URL apart; raises ValueError if it is none that a broker can have."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError(
            f"{url!r} is no broker's URL: expected mqtt://, mqtts://, ws://, wss:// or unix:///path"
        )
    if parts.scheme == "unix":
        if parts.netloc or not parts.path:
            raise ValueError(f"{url!r} has no path: expected unix:///path")
        return Address("unix", "", 0, unquote(parts.path), None, None)
    if not parts.hostname:
        raise ValueError(f"{url!r} does not say a host")
    path = parts.path
    if parts.scheme in ("ws", "wss"):
        path = (path or "/mqtt") + (f"?{parts.query}" if parts.query else "")
    elif path.strip("/"):
        raise ValueError(f"{url!r} has a path, which {parts.scheme}:// has no use for")
    else:
        path = ""
    username = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return Address(parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], path, username, password)


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

    async def drained(self) -> None:
        """Return when there is room for more, or the connection is gone."""
        await self._writable.wait()

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


class WebSocketWire(Wire):
    """Bytes in binary messages of the WebSocket subprotocol `mqtt` (6)."""

    def __init__(
        self, uri: str, on_data: Callable[[bytes], None], on_lost: Callable[[Wire, str], None]
    ) -> None:
        super().__init__(on_data, on_lost)
        # A message may be cut into WebSocket frames anywhere, so their size means nothing [MQTT-6.0.0-2].
        self._socket = ClientProtocol(parse_uri(uri), subprotocols=[Subprotocol("mqtt")], max_size=None)

    def _begin(self) -> None:
        self._socket.send_request(self._socket.connect())
        self._send()

    def _send(self) -> None:
        for data in self._socket.data_to_send():
            if data:
                super().write(data)

    def write(self, data: bytes) -> None:
        """Send bytes as one binary message."""
        self._socket.send_binary(data)
        self._send()

    def data_received(self, data: bytes) -> None:
        """Take the frames apart."""
        socket = self._socket
        socket.receive_data(data)
        events = socket.events_received()
        self._send()
        for event in events:
            if isinstance(event, Frame):
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    self.on_data(bytes(event.data))
                elif event.opcode is Opcode.TEXT:
                    self.end("the broker sent text, where MQTT is binary")  # [MQTT-6.0.0-1]
            elif socket.handshake_exc is None and not self.opened.done():
                self.opened.set_result(None)
        error = socket.handshake_exc
        if error is not None:
            self.end(f"the WebSocket handshake failed: {error}")
        elif socket.close_expected():
            self.end(self.fault or "the broker closed the WebSocket")


async def open_wire(
    address: Address,
    tls: ssl.SSLContext | None,
    on_data: Callable[[bytes], None],
    on_lost: Callable[[Wire, str], None],
) -> Wire:
    """Connect; raises ConnectError if that does not work."""
    loop = asyncio.get_running_loop()
    context = (tls or ssl.create_default_context()) if address.scheme in ("mqtts", "wss") else None
    wires: list[Wire] = []

    def make() -> Wire:
        if address.scheme in ("ws", "wss"):
            wire: Wire = WebSocketWire(str(address), on_data, on_lost)
        else:
            wire = Wire(on_data, on_lost)
        wires.append(wire)
        return wire

    try:
        if address.scheme == "unix":
            await loop.create_unix_connection(make, address.path)
        else:
            await loop.create_connection(make, address.host, address.port, ssl=context)
        await wires[-1].opened
    except (OSError, WebSocketException) as error:
        raise ConnectError(f"cannot connect to {address}: {error}") from error
    except ConnectError as error:
        raise ConnectError(f"cannot connect to {address}: {error}") from None
    except asyncio.CancelledError:
        if wires:
            wires[-1].abort()
        raise
    return wires[-1]
