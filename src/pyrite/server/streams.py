"""MQTT over asyncio's streams: TLS; and plain sockets, on systems without epoll."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from pyrite.protocols.mqtt.connection import Connection

if TYPE_CHECKING:
    from pyrite.server.server import Server


HIGH_WATER = 64 * 1024
"""Bytes waiting for a client above which asyncio tells when they have gone down again."""


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the address of the client at the other end."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else "unix"


class StreamProtocol(asyncio.Protocol):
    """Joins one asyncio transport to one MQTT connection."""

    __slots__ = ("connection", "server")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection, if there is room for one more."""
        transport = cast(asyncio.Transport, transport)
        address = self.server.admit(peer_address(transport))
        if address is None:
            transport.abort()
            return
        # The connection must hear of it when what waits goes down, however little may wait.
        transport.set_write_buffer_limits(
            high=min(HIGH_WATER, self.server.config.limits.max_waiting_bytes // 2)
        )
        self.connection = Connection(self.server.broker, self.server.config.mqtt, transport, address)
        self.server.connections.add(self.connection)

    def data_received(self, data: bytes) -> None:
        """Feed the connection. HOT: once for every read."""
        if self.connection is not None:
            self.connection.feed(data)

    def resume_writing(self) -> None:
        """The client has taken most of what waited for it."""
        if self.connection is not None:
            self.connection.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        connection = self.connection
        if connection is not None:
            self.connection = None
            self.server.connections.discard(connection)
            self.server.dismiss(connection.credentials.address)
            connection.lost()
