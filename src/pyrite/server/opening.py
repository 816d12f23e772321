"""Opens and closes the broker's listeners."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pyrite.broker.access import NOT_AUTHORIZED, Credentials
from pyrite.process.accept import StreamListener
from pyrite.process.endpoints import bind, bind_unix
from pyrite.process.proxy import Proxies
from pyrite.protocols.conversation import CLOSE_TIMEOUT
from pyrite.protocols.events import tell_refused
from pyrite.server.certificates import tls_context
from pyrite.server.child import Child, ChildContext
from pyrite.server.config import ConfigError
from pyrite.server.datagrams import DatagramSocket, bind_datagrams
from pyrite.server.flight import FlightProcess
from pyrite.server.http import HttpProcess
from pyrite.server.listeners import Listener
from pyrite.server.reads import Reads
from pyrite.server.sockets import Poller
from pyrite.server.streams import StreamProtocol
from pyrite.server.tables import TablesProcess
from pyrite.server.websocket import WebSocketProtocol

if TYPE_CHECKING:
    from pyrite.server.server import Server

BACKLOG = 8_192
"""Maximum connections waiting to be accepted; with asyncio's 100, 9,000 clients take 20 s to connect."""


class Listeners:
    """The open listeners of one broker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._config = server.config
        self._loop = asyncio.get_running_loop()
        self._proxies = Proxies(self._config.proxy, self._config.limits.connect_timeout, self._refused)
        self._poller = Poller(server, self._proxies) if hasattr(select, "epoll") else None
        self._streams: list[StreamListener] = []
        self._socket_files: list[Path] = []
        self.datagrams: list[DatagramSocket] = []
        self.children: list[Child] = []
        self._child_context = ChildContext(
            server.config, server.broker, Reads(server.broker.quotas), server.at_work
        )
        self.open: list[Listener] = []
        """The listeners with their actual ports, once all are open."""

    def start(self) -> list[Listener]:
        """Open all listeners and return them with their actual ports; an error names the listener."""
        self.open = [self._open_named(listener) for listener in self._config.listeners()]
        if not self._config.ephemeral and any(one.table for one in self._config.stream):
            tables = TablesProcess(self._child_context)
            self.children.append(tables)
            tables.start()
        return self.open

    def stop_accepting(self) -> None:
        """Accept no more connections."""
        for child in self.children:
            child.stop_accepting()
        self._proxies.close()
        for streams in self._streams:
            streams.close()
        if self._poller is not None:
            self._poller.stop_listening()

    def close(self) -> None:
        """Close the poller and remove socket files. All connections must be closed."""
        if self._poller is not None:
            self._poller.close()
        for path in self._socket_files:
            path.unlink(missing_ok=True)

    def renew(self, context: ssl.SSLContext, trust_changed: bool) -> None:
        """Use other certificates for new connections."""
        for streams in self._streams:
            streams.renew(context, trust_changed)

    def _open_named(self, listener: Listener) -> Listener:
        try:
            return self._open(listener)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {listener}: {error.strerror or error}") from None

    def _open(self, listener: Listener) -> Listener:
        if listener.flight or listener.http:
            child = self._child(listener)
            self.children.append(child)
            return child.listen()
        if listener.scheme == "udp":
            bound = bind_datagrams(listener.host, listener.port)
            self.datagrams.append(DatagramSocket(self._server, bound))
            return listener.at_port(bound.getsockname()[1])
        if listener.scheme == "unix":
            path = Path(listener.path)
            _remove_stale_socket(path, self._config.source)
            sockets = [bind_unix(str(path), BACKLOG)]
            self._socket_files.append(path)
        else:
            sockets = bind(listener.host, listener.port, BACKLOG)
            listener = listener.at_port(sockets[0].getsockname()[1])
        if self._poller is not None and not listener.tls and not listener.websocket:
            self._poller.listen(sockets, listener)
        else:
            self._streams.append(self._open_streams(sockets, listener))
        return listener

    def _child(self, listener: Listener) -> Child:
        server, context = self._server, self._child_context
        if listener.flight:
            assert server.sinks is not None
            return FlightProcess(context, listener, server.sinks, server.metrics.readers)
        return HttpProcess(context, listener, server.metrics, lambda: self.open, server.later)

    def _open_streams(self, sockets: list[socket.socket], listener: Listener) -> StreamListener:
        kind = WebSocketProtocol if listener.websocket else StreamProtocol
        return StreamListener(
            sockets,
            tls_context(self._config) if listener.tls else None,
            lambda peer: kind(self._server, listener, peer),
            handshake_time=self._config.limits.connect_timeout,
            closing_time=CLOSE_TIMEOUT,
            has_room=self._server.connections.has_room,
            refused=self._refused,
            proxies=self._proxies,
        )

    def _refused(self, address: str, by_certificate: bool, reason: str) -> None:
        """Report a connection that was refused before its first packet."""
        code = NOT_AUTHORIZED if by_certificate else 0
        tell_refused(self._server.broker, Credentials("", None, None, address), code, reason)


def _remove_stale_socket(path: Path, source: str) -> None:
    """Remove the socket of a broker that has ended; raise ConfigError for a socket in use or another file."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"{source}: listen = 'unix://{path}': expected a socket or no file")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise ConfigError(f"{source}: listen = 'unix://{path}': another broker is listening there")
