"""MQTT straight over a byte stream: TCP, TLS and Unix sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from pyrite.protocols.mqtt.connection import Connection

if TYPE_CHECKING:
    from pyrite.server.server import Server


class StreamProtocol(asyncio.Protocol):
    """Joins one asyncio transport to one MQTT connection."""

    __slots__ = ("address", "connection", "server")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = ""
        self.connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection, if there is room for one more."""
        transport = cast(asyncio.Transport, transport)
        self.address = self.server.address_of(transport)
        if not self.server.admit(self.address):
            transport.abort()
            return
        self.connection = Connection(self.server.broker, self.server.config.mqtt, transport, self.address)
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
            self.server.dismiss(self.address)
            connection.lost()
