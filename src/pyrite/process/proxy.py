"""The PROXY protocol, versions 1 and 2: the address of a client behind a load balancer.

A load balancer sends a header before the client's first byte. From trusted addresses the header is
required, from others it is not looked for: guessing would let any client name an address of its choice. The
bytes after the header are not read here, because they belong to TLS or to the protocol.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from pyrite.errors import PyriteError

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
"""The first bytes of version 2."""
PREFIX = b"PROXY "
"""The first bytes of version 1."""
MAX_LINE = 107
"""Bytes of the longest header of version 1."""
MAX_LENGTH = 2_048
"""Bytes after the fixed part of version 2 that are accepted: addresses, and extensions, which are ignored."""
FIXED = 16
"""Bytes of the fixed part of version 2."""
MAX_UNREAD = 1_024
"""Connections that may be in their header at one time."""

Network = IPv4Network | IPv6Network
Peer = tuple[str, int]


@dataclass(slots=True)
class ProxyOptions:
    """The [proxy] table: for mqtt://, mqtts://, ws://, wss:// and line:// listeners."""

    trusted: list[str] = field(default_factory=list)
    """Addresses and networks of load balancers that send a PROXY protocol header before each connection."""


class BadHeader(PyriteError):
    """The bytes are not a valid header."""


class Header:
    """Parses the header of one connection.

    `feed` takes received bytes and returns how many of them belong to the header, until `is_complete`. Then
    `client` is the client's address, or None if the load balancer speaks for itself, as in its health checks.
    """

    __slots__ = ("_data", "client", "is_complete")

    def __init__(self) -> None:
        self._data = b""
        self.is_complete = False
        self.client: Peer | None = None

    def feed(self, data: bytes) -> int:
        """Take bytes; return how many belong to the header; raise BadHeader if they cannot be one."""
        before = len(self._data)
        together = self._data + data[: FIXED + MAX_LENGTH]
        size = min(len(together), len(SIGNATURE))
        if together[:size] == SIGNATURE[:size]:
            end = self._second(together)
        elif together[: len(PREFIX)] == PREFIX[: min(size, len(PREFIX))]:
            end = self._first(together)
        else:
            raise BadHeader("no PROXY protocol header")
        self._data = together[:end]
        return end - before

    def _first(self, data: bytes) -> int:
        """Parse version 1, a line of text; return the end of what belongs to it."""
        end = data.find(b"\n", 0, MAX_LINE)
        if end < 0:
            if len(data) >= MAX_LINE:
                raise BadHeader("the header is too long")
            return len(data)
        line = data[: end + 1]
        if not line.endswith(b"\r\n"):
            raise BadHeader("the header does not end with CR LF")
        words = line[:-2].split(b" ")
        if words[1] == b"UNKNOWN":
            self.is_complete = True
            return end + 1
        if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
            raise BadHeader("expected PROXY TCP4 or TCP6, two addresses and two ports")
        family = IPv4Address if words[1] == b"TCP4" else IPv6Address
        try:
            source, _ = (family(word.decode("ascii")) for word in words[2:4])
            port, _ = (_port(word) for word in words[4:])
        except ValueError:
            raise BadHeader("an address or a port is invalid") from None
        self.client = (str(source), port)
        self.is_complete = True
        return end + 1

    def _second(self, data: bytes) -> int:
        """Parse version 2, which is binary; return the end of what belongs to it."""
        if len(data) < FIXED:
            return len(data)
        command, family, length = struct.unpack_from("!BBH", data, len(SIGNATURE))
        if command >> 4 != 2 or command & 15 > 1:
            raise BadHeader("unknown version or command")
        if length > MAX_LENGTH:
            raise BadHeader("the header is too long")
        end: int = FIXED + length
        if len(data) < end:
            return len(data)
        size = {0x11: 4, 0x21: 16}.get(family)
        if command & 15 == 1 and size is not None:
            if length < 2 * size + 4:
                raise BadHeader("the header is too short for its addresses")
            address = ip_address(data[FIXED : FIXED + size])
            (port,) = struct.unpack_from("!H", data, FIXED + 2 * size)
            self.client = (str(address), port)
        elif command & 15 == 1 and family:
            raise BadHeader("expected TCP over IPv4 or IPv6")
        self.is_complete = True
        return end


def _port(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or int(word) > 65_535:
        raise ValueError
    return int(word)


class Proxies:
    """Reads the headers of connections from trusted addresses.

    A load balancer has `time` seconds for a header. `refused` is called with its address and the reason if it
    sends none.
    """

    def __init__(
        self, options: ProxyOptions, time: float, refused: Callable[[str, bool, str], object]
    ) -> None:
        self._networks = networks_of(options)
        self._time = time
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._unread: dict[socket.socket, tuple[Header, asyncio.TimerHandle]] = {}

    def trusts(self, peer: object) -> bool:
        """Return True if a connection from this address begins with a header."""
        if not self._networks or not isinstance(peer, tuple):
            return False
        address = ip_address(peer[0].partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)

    def read(
        self, connection: socket.socket, peer: Peer, accepted: Callable[[socket.socket, object], object]
    ) -> None:
        """Read a connection's header; then call `accepted` with the connection and the client's address."""
        if len(self._unread) >= MAX_UNREAD:
            self._refused(peer[0], False, "PROXY protocol: too many connections without a header")
            connection.close()
            return
        timer = self._loop.call_later(self._time, self._refuse, connection, peer, "no header in time")
        self._unread[connection] = Header(), timer
        self._loop.add_reader(connection, self._ready, connection, peer, accepted)

    def close(self) -> None:
        """Close all connections that are in their header."""
        for connection in list(self._unread):
            self._forget(connection)
            connection.close()

    def _ready(
        self, connection: socket.socket, peer: Peer, accepted: Callable[[socket.socket, object], object]
    ) -> None:
        header, _ = self._unread[connection]
        try:
            seen = connection.recv(FIXED + MAX_LENGTH, socket.MSG_PEEK)
            if not seen:
                self._refuse(connection, peer, "the connection was closed within the header")
                return
            connection.recv(header.feed(seen))
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse(connection, peer, error.strerror or str(error))
            return
        except BadHeader as error:
            self._refuse(connection, peer, str(error))
            return
        if header.is_complete:
            self._forget(connection)
            accepted(connection, header.client or peer)

    def _refuse(self, connection: socket.socket, peer: Peer, reason: str) -> None:
        self._forget(connection)
        connection.close()
        self._refused(peer[0], False, f"PROXY protocol: {reason}")

    def _forget(self, connection: socket.socket) -> None:
        _, timer = self._unread.pop(connection)
        timer.cancel()
        self._loop.remove_reader(connection)


def networks_of(options: ProxyOptions) -> list[Network]:
    """Return the trusted networks; raise ValueError for an invalid one."""
    return [ip_network(text) for text in options.trusted]
