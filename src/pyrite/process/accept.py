"""The accept loop of every TCP and Unix listener, and connections with a TLS handshake."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from pyrite.process.proxy import Proxies

logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 512
"""Maximum connections accepted before open ones get a turn."""
HANDSHAKES_PER_TURN = 64
"""The same for connections with a TLS handshake or an asyncio transport."""
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept() if descriptors or memory are exhausted."""
PAUSE = 1.0
"""Seconds without accepting after such an error."""
NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
"""OpenSSL's error for a client without the required certificate."""

Refused = Callable[[str, bool, str], object]
"""Called with the address of a refused client, True if its certificate is the reason, and the reason."""


class Acceptor:
    """Accepts the connections of listening sockets; pauses while the process is out of descriptors.

    `accepted` is called with each connection, a non-blocking socket, and the address of its peer.
    With `proxies`, connections of load balancers are accepted once their header has named the client.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        accepted: Callable[[socket.socket, object], object],
        per_turn: int = ACCEPTS_PER_TURN,
        proxies: Proxies | None = None,
    ) -> None:
        self._sockets = list(sockets)
        self._proxies = proxies
        self._accepted = accepted
        self._per_turn = per_turn
        self._loop = asyncio.get_running_loop()
        for one in self._sockets:
            one.setblocking(False)
            self._loop.add_reader(one, self._accept, one)

    def close(self) -> None:
        """Stop listening."""
        for one in self._sockets:
            self._loop.remove_reader(one)
            one.close()
        self._sockets = []

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(self._per_turn):
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    logger.warning("cannot accept connections: %s", error.strerror)
                    self._loop.remove_reader(listening)
                    self._loop.call_later(PAUSE, self._resume, listening)
                return
            connection.setblocking(False)
            if self._proxies is not None and self._proxies.trusts(peer):
                self._proxies.read(connection, peer, self._accepted)
            else:
                self._accepted(connection, peer)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)


def address_of(peer: object) -> str:
    """Return the IP address in the address of a peer; "unix" for a Unix socket."""
    return str(peer[0]) if isinstance(peer, tuple) else "unix"


class StreamListener:
    """Listening sockets whose connections each get an asyncio protocol, after a TLS handshake with `context`.

    `protocol` is called with the address of the client.
    asyncio's own servers do not report refused certificates, and cannot replace certificates.

    A client has `handshake_time` seconds for its handshake and, at the end, `closing_time` seconds to receive
    the last bytes. `has_room(handshakes)` returns True if one more connection is possible.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        context: ssl.SSLContext | None,
        protocol: Callable[[object], asyncio.Protocol],
        *,
        handshake_time: float,
        closing_time: float,
        has_room: Callable[[int], bool],
        refused: Refused,
        proxies: Proxies | None = None,
    ) -> None:
        self._context = context
        self._protocol = protocol
        self._handshake_time = handshake_time
        self._closing_time = closing_time
        self._has_room = has_room
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._acceptor = Acceptor(sockets, self._accepted, HANDSHAKES_PER_TURN, proxies)

    def renew(self, context: ssl.SSLContext, trust_changed: bool) -> None:
        """Use other certificates for new connections; if `trust_changed`, abort unfinished handshakes."""
        self._context = context
        if trust_changed:
            self._abort_handshakes()

    def close(self) -> None:
        """Stop listening."""
        self._acceptor.close()
        self._abort_handshakes()

    def _abort_handshakes(self) -> None:
        for task in self._handshakes:
            task.cancel()

    def _accepted(self, connection: socket.socket, peer: object) -> None:
        address = address_of(peer)
        if not self._has_room(len(self._handshakes)):
            self._refused(address, False, "too many connections")
            connection.close()
            return
        task = self._loop.create_task(self._connect(connection, peer))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _connect(self, connection: socket.socket, peer: object) -> None:
        """Complete the TLS handshake, if any, and connect the protocol."""
        address = address_of(peer)
        try:
            if self._context is None:
                await self._loop.connect_accepted_socket(lambda: self._protocol(peer), connection)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: self._protocol(peer),
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=self._handshake_time,
                    ssl_shutdown_timeout=self._closing_time,
                )
            return
        except ssl.SSLCertVerificationError as error:
            self._refused(address, True, f"its certificate was refused: {error.verify_message}")
        except ssl.SSLError as error:
            if error.reason == NO_CERTIFICATE:
                self._refused(address, True, "no certificate")
            else:
                self._refused(address, False, f"TLS: {error.reason or error}")
        except ConnectionAbortedError:  # raised by uvloop after handshake_time
            self._refused(address, False, "TLS: the handshake took too long")
        except (OSError, asyncio.CancelledError):
            pass  # the client disconnected, or the authorities changed
        except Exception:
            logger.exception("internal error")
        connection.close()
