"""MQTT straight over TCP and Unix sockets: a poller of our own, nested in the event loop. HOT.

An asyncio transport costs 1,200 bytes a connection in uvloop, and a call through several layers for every
read and write. Plain sockets need none of that: all of them sit in one epoll, which the event loop watches
like a single descriptor. One wake-up brings everything that is ready; each socket is read once, so that
no client can starve another; and then everything that is to be sent goes out, one write a client.

TLS and WebSocket connections, and systems without epoll, go through asyncio's transports (streams.py).
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
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.receiver import LONG_READ
from pyrite.server.kernel import sharpen_timers
from pyrite.server.listeners import Listener

if TYPE_CHECKING:
    from pyrite.server.server import Server

logger = logging.getLogger(__name__)

READ_SIZE = 256 * 1024
"""Bytes read from one client at a time: also the most that a batch can be, unless one packet is larger."""
EVENTS = 128
"""Sockets handled before what came of it is sent; the kernel lets those that had to wait go first then."""
WRITE_PIECES = 64
"""Pieces of what waits for a slow client that are written in one go."""
TURN = 0.001
"""Seconds after which the event loop has its turn, even if more is ready."""
TRICKLE = 4 * 1024
"""Fewer bytes than this, with more there already, are a flood of single packets. Reading each as it comes
costs a system call and a wake-up at either end, so it is given a moment to gather. A client that waits for an
answer before it goes on is not kept waiting: it has nothing more there yet."""
FLOOD = 20
"""So many times in a row there must have been more, for it to be a flood and not a coincidence."""
NAP = 0.000_1
"""That moment, in seconds, where it is a client just read from that has more: one publisher that writes its
packets singly at 230,000 a second takes 0.4 of a core with the nap, and a whole one without."""
BREATH = 0.000_02
"""That moment where it is other clients: long enough that their packets share a write to the subscriber."""

# Level-triggered; hang-ups and errors show when reading.
_READ = getattr(select, "EPOLLIN", 1)
_WRITE = getattr(select, "EPOLLOUT", 4)


class SocketTransport:
    """One client's socket: writes at once what the kernel takes, and keeps the rest until it takes that."""

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
        """Send `data`, now or as soon as the client takes it."""
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
        """Have the poller look for what this socket is waiting for."""
        if self._descriptor >= 0:
            reading = 0 if self._paused else _READ
            writing = 0 if self._pending is None else _WRITE
            self._poller.epoll.modify(self._descriptor, reading | writing)

    def pause_reading(self) -> None:
        """Read nothing from the client until further notice."""
        self._paused = True
        self._watch()

    def resume_reading(self) -> None:
        """Read from the client again."""
        self._paused = False
        self._watch()

    def writable(self) -> None:
        """Send more of what waits."""
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
        """Return how many bytes wait for the client."""
        return self._waiting

    def close(self) -> None:
        """Send what waits, then end; the client has a moment to read it (the connection aborts in the end).

        A socket that is closed with input unread is reset, and the client may lose what it was sent last;
        so only our half is closed, until the client closes its own.
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
        """Close at once."""
        descriptor = self._descriptor
        if descriptor >= 0:
            self._descriptor = -1
            self._closing = True
            self._pending = None
            self._waiting = 0
            self._poller.forget(descriptor)
            self.connection.lost()
            del self.connection  # which knows this one: no garbage is left for Python to look for


class Poller:
    """All plain sockets of a server: those that listen, and those of clients."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.epoll = select.epoll()
        self._acceptors: list[Acceptor] = []
        self._transports: dict[int, SocketTransport] = {}
        self._rounds = 0
        """How many times more was ready, each time, when all that was ready had been handled."""
        self._lost: list[SocketTransport] = []
        self._buffer = bytearray(READ_SIZE)
        self._buffers = [self._buffer]
        self._view = memoryview(self._buffer)
        self._small_buffers = [self._view[: max(1, server.config.limits.before_login)]]
        """For clients that have not logged in."""
        self._left: list[tuple[int, int]] = []
        """What was found ready, and is handled first in the next round: this one took long enough."""
        self._loop.add_reader(self.epoll.fileno(), self._ready)
        sharpen_timers()

    def listen(self, sockets: list[socket.socket], listener: Listener) -> None:
        """Accept the connections of a listener."""
        for listening in sockets:
            if listening.family != socket.AF_UNIX:
                # Accepted sockets inherit it: what is written is sent at once, as it is batched already.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acceptors.append(Acceptor(sockets, partial(self._accepted, listener)))

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    def close(self) -> None:
        """End; all connections are closed by now."""
        self._loop.remove_reader(self.epoll.fileno())
        self.epoll.close()

    def forget(self, descriptor: int) -> None:
        """Close a client's socket."""
        transport = self._transports.pop(descriptor)
        self._server.connections.close(transport.connection, descriptor)
        os.close(descriptor)  # which takes it out of the epoll as well

    def lost_soon(self, transport: SocketTransport) -> None:
        """End a connection that turned out to be broken while something was sent to it.

        Not at once: whoever is sending may be in the middle of going through the subscribers.
        """
        if not self._lost:
            self._loop.call_soon(self._end_lost)
        self._lost.append(transport)

    def _end_lost(self) -> None:
        lost, self._lost = self._lost, []
        for transport in lost:
            transport.abort()

    def _ready(self) -> None:
        """Handle everything that is ready, then send all that came of it; and again, while there is more.

        Not for long: the event loop has other things to do.
        """
        server, poll = self._server, self.epoll.poll
        began = monotonic()
        until = began + TURN
        server.awake = True
        try:
            ready = self._left or poll(0, EVENTS)
            while ready:
                self._left = []
                is_flood = self._handle(ready, until)
                server.broker.flush()
                self._rounds += 1
                if monotonic() > until:
                    break
                before, ready = ready, poll(0, EVENTS)
                if is_flood and ready and self._rounds > FLOOD:
                    sleep(BREATH if {*before}.isdisjoint(ready) else NAP)
                    ready = poll(0, EVENTS)
            else:
                self._rounds = 0
        except Exception:  # whatever it is, it must not take the listeners down
            logger.exception("internal error")
        finally:
            server.sleep()
            took = monotonic() - began
            if took > server.broker.figures.longest_block:
                server.broker.figures.longest_block = took

    def _handle(self, ready: list[tuple[int, int]], until: float) -> bool:
        """Handle the sockets that are ready, but stop at a time.

        Return whether only a trickle came, and no client was answered that may wait for its answer.
        """
        transports, buffers, small, view = self._transports, self._buffers, self._small_buffers, self._view
        readv = os.readv
        total = 0
        is_answered = False
        before = monotonic()
        for number, (descriptor, events) in enumerate(ready, 1):
            transport = transports.get(descriptor)
            if transport is None:
                continue  # it was closed after it was found ready
            if events & _WRITE:
                transport.writable()
                if events == _WRITE or descriptor not in transports:
                    continue
            connection = transport.connection
            if connection.interrupted and events == _READ:
                continue  # it waits for its turn since this was found
            try:
                size = readv(descriptor, small if connection.session is None else buffers)
            except BlockingIOError:
                continue
            except OSError:
                transport.abort()
                continue
            if not size:
                connection.input_ended()
                continue
            total += size
            connection.feed(bytes(view[:size]))
            if connection.chunks:
                is_answered = True
            now = monotonic()
            if now - before > LONG_READ:
                connection.end_turn()
            if now > until:
                self._left = ready[number:]
                break
            before = now
        return total < TRICKLE and not is_answered

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
