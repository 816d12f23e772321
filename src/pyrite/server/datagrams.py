"""The line protocol's UDP socket, read without uvloop, which would handle 32 datagrams in a row."""

from __future__ import annotations

import asyncio
import logging
import socket
from time import monotonic
from typing import TYPE_CHECKING

from pyrite.broker.timers import TURN
from pyrite.protocols.line.datagrams import Address, Datagrams
from pyrite.protocols.line.frames import MAX_DATAGRAM

if TYPE_CHECKING:
    from pyrite.server.server import Server

logger = logging.getLogger(__name__)

BUFFER = 4 * 1024 * 1024
"""Receive buffer of the socket, in bytes."""


class DatagramSocket:
    """One UDP socket: handles datagrams for a turn, then other clients get theirs."""

    def __init__(self, server: Server, bound: socket.socket) -> None:
        self._server = server
        self._socket = bound
        self._loop = asyncio.get_running_loop()
        self.datagrams = Datagrams(server.broker, server.config.line, self._send)
        self._loop.add_reader(bound.fileno(), self._readable)

    def _readable(self) -> None:
        server = self._server
        began = monotonic()
        server.awake = True
        try:
            while self._receive() and monotonic() < began + TURN:
                pass
            server.broker.output.flush()
        except Exception:  # the socket must stay open
            logger.exception("internal error")
        finally:
            server.sleep()
            server.worked_since(began)

    def _receive(self) -> bool:
        """Handle a datagram; return False if there is none."""
        try:
            data, address = self._socket.recvfrom(MAX_DATAGRAM)
        except BlockingIOError:
            return False
        except OSError as error:  # an answer could not be delivered
            logger.debug("UDP: %s", error)
            return True
        self.datagrams.received(data, address[:2])
        return True

    def _send(self, data: bytes, address: Address) -> None:
        """Send a datagram; it is lost if the kernel has no room, like any datagram on the network."""
        try:
            self._socket.sendto(data, address)
        except OSError as error:
            logger.debug("UDP: %s", error)

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()


def bind_datagrams(host: str, port: int) -> socket.socket:
    """Return a UDP socket bound to an address."""
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
