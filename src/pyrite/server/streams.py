"""Connections over asyncio transports: TLS, and plain sockets on systems without epoll."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, cast

from pyrite.broker.link import Transport
from pyrite.broker.timers import TURN
from pyrite.process.accept import address_of
from pyrite.process.tls import certificate_user
from pyrite.protocols.conversation import Conversation
from pyrite.server.kernel import is_half_closed
from pyrite.server.listeners import Listener

if TYPE_CHECKING:
    from pyrite.server.server import Server

HIGH_WATER = 64 * 1024
"""Bytes of pending output above which asyncio reports when they were sent."""
LARGE_READ = 64 * 1024
"""Bytes after which other clients get a turn; uvloop would read up to 8 MiB from one client."""
MAX_HELD = 1024 * 1024
"""Maximum bytes received from a TLS client after log-in while it waits for its turn."""


MAX_WRITE_BYTES = 64 * 1024
"""Bytes that are encrypted at once, in some 0.2 ms. More are written in turns."""


def is_encrypted(transport: Transport) -> bool:
    """Return True if a connection's transport is TLS."""
    return isinstance(transport, StreamProtocol) and transport.is_encrypted


class Round:
    """One round of the event loop, in which all streams together are read from for a turn.

    asyncio hands over what every ready stream has sent before anything else has its turn.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until: float | None = None
        """The end of the turn; None before the first read of the round."""

    def is_over(self) -> bool:
        """Return whether reads have to wait for a later turn."""
        if self._until is not None:
            return monotonic() > self._until
        self._until = monotonic() + TURN
        self._loop.call_soon(self._next)
        return False

    def _next(self) -> None:
        self._until = None


class StreamProtocol(asyncio.Protocol):
    """Connects an asyncio transport and a client's connection, whose transport it is.

    uvloop's TLS loses decrypted input if the client closes while reading is paused, so reading from a TLS
    client is paused only if its input would grow without limit. If the client closes while its input waits
    for a turn, the connection ends after that input was handled.
    """

    __slots__ = (
        "_closes",
        "_held",
        "_listener",
        "_lost",
        "_peer",
        "_tls",
        "_unsent",
        "connection",
        "server",
        "transport",
    )

    def __init__(self, server: Server, listener: Listener, peer: object) -> None:
        self.server = server
        self._listener = listener
        self._peer = peer
        self.transport: asyncio.Transport | None = None
        self.connection: Conversation | None = None
        self._tls = False
        self._held = 0
        self._lost = False
        """True if the transport is closed, but input still waits for a turn."""
        self._unsent: deque[memoryview] | None = None
        """Output that is encrypted in later turns."""
        self._closes = False
        """Whether the transport is closed after that."""

    @property
    def is_encrypted(self) -> bool:
        """True for TLS."""
        return self._tls

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open a connection, if there is room."""
        transport = cast(asyncio.Transport, transport)
        peer = self._peer
        address = self.server.connections.admit(address_of(peer))
        if address is None:
            transport.abort()
            return
        self.transport = transport
        self._tls = transport.get_extra_info("sslcontext") is not None
        # The connection must hear of it when what waits goes down, however little may wait.
        limits = self.server.config.limits
        transport.set_write_buffer_limits(high=min(HIGH_WATER, limits.max_waiting_bytes // 2))
        where = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else address
        self.connection = self.server.connections.open(self._listener, self, address, where)
        if self._tls:
            transport.set_read_buffer_limits(limits.before_login)  # type: ignore[attr-defined]
            named_in = self.server.config.tls.certificate_user
            self.connection.credentials.certificate = certificate_user(transport, named_in)

    def data_received(self, data: bytes) -> None:
        """Feed the connection, at once or in a later turn."""
        connection = self.connection
        if connection is None:
            return
        began = monotonic()
        if not connection.interrupted and self.server.round.is_over():
            connection.receive_later(data)
        else:
            connection.receive(data)
        self.pace(len(data))
        self.server.worked_since(began)

    def pace(self, size: int) -> None:
        """Pause reading after so many bytes if other clients need a turn."""
        connection = self.connection
        if connection is None:
            return
        if not self._tls:
            if size >= LARGE_READ:
                self.server.read_later(connection)
        elif connection.interrupted:
            self._held += size
            if self._held > self._most_held:
                self._pause()

    @property
    def _most_held(self) -> int:
        """Maximum bytes received from a TLS client while it waits for its turn."""
        known = self.connection is not None and self.connection.session is not None
        return MAX_HELD if known else self.server.config.limits.before_login

    def eof_received(self) -> bool:
        """Handle the end of input; TLS closes both directions, otherwise the connection decides."""
        if self._tls or self.connection is None:
            return False
        self.connection.input_ended()
        return True

    def resume_writing(self) -> None:
        """Continue sending: most pending output was sent."""
        if self.connection is not None:
            began = monotonic()
            self.connection.drained()
            self.server.worked_since(began)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection once its input was handled."""
        transport, self.transport = self.transport, None
        self._unsent = None
        if self.connection is None:
            return
        if exc is None:
            self.connection.why = self.connection.why or "the client closed the connection"
        if self._input_waits():
            self._lost = True
            return
        endpoint = None if transport is None else transport.get_extra_info("socket")
        self._end(-1 if endpoint is None else endpoint.fileno())

    def _input_waits(self) -> bool:
        """Return True if input of a client waits for a turn, after log-in."""
        connection = self.connection
        return connection is not None and connection.session is not None and connection.interrupted

    def _end(self, descriptor: int = -1) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            self.server.connections.close(connection, descriptor)
            connection.lost()

    def _end_if_lost(self) -> None:
        """End the connection soon, if the transport is closed."""
        if self._lost:
            asyncio.get_running_loop().call_soon(self._end)

    # Called by the connection

    def write(self, data: bytes | bytearray) -> None:
        """Send bytes."""
        self._put(data)

    def _put(self, data: bytes | bytearray) -> None:
        """Hand bytes to the transport; if encrypting them takes long, in turns."""
        if self.transport is None:
            return
        if self._unsent is not None:
            self._unsent.append(memoryview(data))
        elif self._tls and len(data) > MAX_WRITE_BYTES:
            view = memoryview(data)
            self.transport.write(view[:MAX_WRITE_BYTES])
            self._unsent = deque((view[MAX_WRITE_BYTES:],))
            self.server.broker.turns.soon(self._put_more)
        else:
            self.transport.write(data)

    def _put_more(self) -> None:
        until = monotonic() + TURN
        unsent = self._unsent
        while unsent and self.transport is not None:
            if monotonic() > until:
                self.server.broker.turns.soon(self._put_more)
                return
            data = unsent.popleft()
            self.transport.write(data[:MAX_WRITE_BYTES])
            if len(data) > MAX_WRITE_BYTES:
                unsent.appendleft(data[MAX_WRITE_BYTES:])
        self._unsent = None
        if self.transport is not None and self._closes:
            self.transport.close()
        elif self.connection is not None:
            self.connection.drained()

    def get_write_buffer_size(self) -> int:
        """Return the bytes of pending output."""
        waiting = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return waiting + sum(map(len, self._unsent or ()))

    def pause_reading(self) -> None:
        self._held = 0
        if not self._tls:
            self._pause()

    def _pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        if not self._input_waits():
            self._end_if_lost()

    def input_has_ended(self) -> bool:
        endpoint = None if self.transport is None else self.transport.get_extra_info("socket")
        return endpoint is None or is_half_closed(endpoint.fileno())

    def close(self) -> None:
        """Close once pending output was sent."""
        self._close_transport()
        self._end_if_lost()

    def _close_transport(self) -> None:
        if self._unsent is not None:
            self._closes = True
        elif self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close immediately."""
        if self.transport is not None:
            self.transport.abort()
        self._end_if_lost()
