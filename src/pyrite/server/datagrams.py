"""The line protocol's UDP socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any, cast

from pyrite.protocols.line.datagrams import Address, Datagrams

if TYPE_CHECKING:
    from pyrite.server.server import Server

logger = logging.getLogger(__name__)

BUFFER = 4 * 1024 * 1024
"""Bytes of datagrams that the kernel is asked to keep while the broker is busy."""


class DatagramProtocol(asyncio.DatagramProtocol):
    """Joins one UDP socket to the clients that send to it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None
        self.datagrams = Datagrams(server.broker, server.config.line, self._send)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Handle a datagram, and send what comes of it."""
        server = self._server
        server.awake = True
        try:
            self.datagrams.received(data, addr[:2])
            server.broker.output.flush()
        except Exception:  # whatever it is, it must not take the socket down
            logger.exception("internal error")
        finally:
            server.sleep()

    def error_received(self, exc: Exception) -> None:
        """Take note of an answer that found no one: it is for the client to come back."""
        logger.debug("UDP: %s", exc)

    def _send(self, data: bytes, address: Address) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, address)

    def close(self) -> None:
        """Close the socket."""
        if self._transport is not None:
            self._transport.close()


def bind_datagrams(host: str, port: int) -> socket.socket:
    """Open a UDP socket."""
    family, kind, protocol, _, where = socket.getaddrinfo(
        host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        bound.bind(where)
    except OSError:
        bound.close()
        raise
    return bound
