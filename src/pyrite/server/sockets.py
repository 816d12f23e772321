"""MQTT over plain TCP and Unix sockets: our own poller, nested in the event loop. HOT.

An asyncio transport costs 1,200 bytes per connection in uvloop, and several calls for every read and write.
Plain sockets avoid both: they share one epoll, which the event loop watches as a single descriptor. After a
wake-up, each ready socket is read once, so that no client can starve another. Then all pending output is
sent, with one write per client.

TLS and WebSocket connections, and systems without epoll, use asyncio's transports (streams.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections import deque
from functools import partial
from itertools import islice
from time import monotonic, sleep
from typing import TYPE_CHECKING

from pyrite.process.accept import Acceptor, address_of
from pyrite.process.proxy import Proxies
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.mqtt.merging import Merger
from pyrite.protocols.receiver import LONG_READ
from pyrite.server.kernel import is_half_closed, sharpen_timers
from pyrite.server.listeners import Listener

if TYPE_CHECKING:
    from pyrite.server.server import Server

logger = logging.getLogger(__name__)

READ_SIZE = 256 * 1024
"""Maximum bytes of one read, and of a batch, unless one packet is larger."""
EVENTS = 128
"""Maximum sockets handled before a flush; the kernel returns the remaining ones first next time."""
WRITE_PIECES = 64
"""Maximum buffers per write to a slow client."""
TURN = 0.001
"""Seconds after which the event loop gets a turn, even if more sockets are ready."""
SMALL_ROUND = 4 * 1024
"""Bytes of a round below which, if more sockets are ready already, it is a flood of single packets. Reading
each packet as it arrives costs a system call and a wake-up on both sides, so the poller waits a moment for
more. A client that waits for an answer is not delayed, because it has sent nothing more."""
FLOOD_ROUNDS = 20
"""Consecutive rounds with more input that make a flood."""
SAME_CLIENT_DELAY = 0.000_1
"""Seconds to wait if a client that was just read from has more: a publisher that writes 230,000 single
packets a second takes 0.4 of a core with the delay, and a whole core without."""
OTHER_CLIENT_DELAY = 0.000_02
"""Seconds to wait if other clients have input: enough for their packets to share a write to a subscriber."""

# Level-triggered; reading reports hang-ups and errors.
_READ = getattr(select, "EPOLLIN", 1)
_WRITE = getattr(select, "EPOLLOUT", 4)


class SocketTransport:
    """One client's socket: writes immediately what the kernel accepts, and keeps the rest."""

    __slots__ = ("_closing", "_descriptor", "_paused", "_pending", "_poller", "_waiting", "connection")

    connection: Conversation

    def __init__(self, poller: Poller, descriptor: int) -> None:
        self._poller = poller
        self._descriptor = descriptor
        self._pending: deque[bytes | bytearray | memoryview] | None = None
        self._waiting = 0
        self._closing = False
        self._paused = False

    def write(self, data: bytes | bytearray) -> None:
        """Send `data`, now or as soon as the socket is writable."""
        if self._descriptor < 0 or self._closing:
            return
        pending = self._pending
        if pending is not None:
            pending.append(data)
            self._waiting += len(data)
            return
        try:
            sent = os.write(self._descriptor, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._poller.lost_soon(self)
            return
        if sent < len(data):
            self._pending = deque((memoryview(data)[sent:],))
            self._waiting = len(data) - sent
            self._watch()

    def _watch(self) -> None:
        """Update the events that the poller waits for."""
        if self._descriptor >= 0:
            reading = 0 if self._paused else _READ
            writing = 0 if self._pending is None else _WRITE
            self._poller.epoll.modify(self._descriptor, reading | writing)

    def pause_reading(self) -> None:
        self._paused = True
        self._watch()

    def resume_reading(self) -> None:
        self._paused = False
        self._watch()

    def input_has_ended(self) -> bool:
        return self._descriptor < 0 or is_half_closed(self._descriptor)

    def writable(self) -> None:
        """Send more pending output."""
        pending = self._pending
        if pending is None:
            return
        try:
            sent = os.writev(self._descriptor, list(islice(pending, WRITE_PIECES)))
        except BlockingIOError:
            return
        except OSError:
            self.abort()
            return
        self._waiting -= sent
        while sent:
            size = len(pending[0])
            if size > sent:
                pending[0] = memoryview(pending[0])[sent:]
                break
            pending.popleft()
            sent -= size
        if pending:
            return
        self._pending = None
        self._watch()
        if self._closing:
            self._shut()
        else:
            self.connection.drained()

    def get_write_buffer_size(self) -> int:
        """Return the bytes of pending output."""
        return self._waiting

    def close(self) -> None:
        """Send pending output, then shut down our half; the connection aborts later.

        Closing a socket with unread input resets it, and the client may lose the last bytes. So our half is
        shut down first, until the client closes its half.
        """
        if not self._closing and self._descriptor >= 0:
            self._closing = True
            self._paused = False
            self._watch()
            if self._pending is None:
                self._shut()

    def _shut(self) -> None:
        try:
            with socket.socket(fileno=self._descriptor) as endpoint:
                try:
                    endpoint.shutdown(socket.SHUT_WR)
                finally:
                    endpoint.detach()
        except OSError:
            self.abort()

    def abort(self) -> None:
        """Close immediately."""
        descriptor = self._descriptor
        if descriptor >= 0:
            self._descriptor = -1
            self._closing = True
            self._pending = None
            self._waiting = 0
            self._poller.forget(descriptor)
            self.connection.lost()
            del self.connection  # break the reference cycle


class Poller:
    """All plain sockets of a server: listening sockets, and those of clients."""

    def __init__(self, server: Server, proxies: Proxies) -> None:
        self._server = server
        self._proxies = proxies
        self._loop = asyncio.get_running_loop()
        self.epoll = select.epoll()
        self._acceptors: list[Acceptor] = []
        self._transports: dict[int, SocketTransport] = {}
        self._rounds = 0
        """Consecutive rounds after which more sockets were ready."""
        self._lost: list[SocketTransport] = []
        self._merger = Merger(server.broker)
        self._buffer = bytearray(READ_SIZE)
        self._buffers = [self._buffer]
        self._view = memoryview(self._buffer)
        self._small_buffers = [self._view[: max(1, server.config.limits.before_login)]]
        """The buffer for clients before log-in."""
        self._left: list[tuple[int, int]] = []
        """Ready sockets that are left for the next round because this one took too long."""
        self._loop.add_reader(self.epoll.fileno(), self._ready)
        sharpen_timers()

    def listen(self, sockets: list[socket.socket], listener: Listener) -> None:
        """Accept the connections of a listener."""
        for listening in sockets:
            if listening.family != socket.AF_UNIX:
                # Inherited by accepted sockets. Output is batched already, so it is sent immediately.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acceptors.append(Acceptor(sockets, partial(self._accepted, listener), proxies=self._proxies))

    def stop_listening(self) -> None:
        """Stop accepting connections."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    def close(self) -> None:
        """Close the epoll. All connections must be closed."""
        self._loop.remove_reader(self.epoll.fileno())
        self.epoll.close()

    def forget(self, descriptor: int) -> None:
        """Close a client's socket."""
        transport = self._transports.pop(descriptor)
        self._server.connections.close(transport.connection, descriptor)
        os.close(descriptor)  # also removes it from the epoll

    def lost_soon(self, transport: SocketTransport) -> None:
        """Close a connection that broke during a write.

        The caller may be iterating over subscribers, so the connection is closed later.
        """
        if not self._lost:
            self._loop.call_soon(self._end_lost)
        self._lost.append(transport)

    def _end_lost(self) -> None:
        lost, self._lost = self._lost, []
        for transport in lost:
            transport.abort()

    def _ready(self) -> None:
        """Handle all ready sockets and flush; repeat while sockets are ready, for one turn."""
        server, poll = self._server, self.epoll.poll
        began = monotonic()
        until = began + TURN
        server.awake = True
        try:
            ready = self._left or poll(0, EVENTS)
            while ready:
                self._left = []
                is_flood = self._handle(ready, until)
                server.broker.output.flush()
                self._rounds += 1
                if monotonic() > until:
                    break
                before, ready = ready, poll(0, EVENTS)
                if is_flood and ready and self._rounds > FLOOD_ROUNDS:
                    sleep(OTHER_CLIENT_DELAY if {*before}.isdisjoint(ready) else SAME_CLIENT_DELAY)
                    ready = poll(0, EVENTS)
            else:
                self._rounds = 0
        except Exception:  # the listeners must stay open
            logger.exception("internal error")
        finally:
            self._merger.publish()  # after an error there may be something left
            server.sleep()
            server.worked_since(began)

    def _handle(self, ready: list[tuple[int, int]], until: float) -> bool:
        """Handle ready sockets until a deadline.

        Return True if little input was received, and no client got an answer that it may be waiting for.
        """
        transports, buffers, small, view = self._transports, self._buffers, self._small_buffers, self._view
        readv, merger = os.readv, self._merger
        total = 0
        is_answered = False
        connection: Conversation | None = None
        before = monotonic()
        for number, (descriptor, events) in enumerate(ready, 1):
            transport = transports.get(descriptor)
            if transport is None:
                continue  # closed in the meantime
            if events & _WRITE:
                merger.publish()
                transport.writable()
                if events == _WRITE or descriptor not in transports:
                    continue
            connection = transport.connection
            if connection.interrupted and events == _READ:
                continue  # it waits for its turn
            try:
                size = readv(descriptor, small if connection.session is None else buffers)
            except BlockingIOError:
                continue
            except OSError:
                merger.publish()
                transport.abort()
                continue
            if not size:
                merger.publish()
                connection.input_ended()
                continue
            total += size
            data = bytes(view[:size])
            if len(ready) == 1:
                connection.feed(data)
            else:
                merger.feed(connection, data)
            if connection.chunks:
                is_answered = True
            now = monotonic()
            if now - before > LONG_READ:
                connection.end_turn()
            if now > until:
                self._left = ready[number:]
                break
            before = now
        merger.publish()
        is_answered = is_answered or (connection is not None and bool(connection.chunks))
        return total < SMALL_ROUND and not is_answered

    def _accepted(self, listener: Listener, accepted: socket.socket, peer: object) -> None:
        server = self._server
        address = server.connections.admit(address_of(peer))
        if address is None:
            accepted.close()
            return
        descriptor = accepted.detach()
        transport = SocketTransport(self, descriptor)
        where = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else address
        transport.connection = server.connections.open(listener, transport, address, where)
        self._transports[descriptor] = transport
        self.epoll.register(descriptor, _READ)
