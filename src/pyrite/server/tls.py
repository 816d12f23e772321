"""TLS: certificates as the settings name them, and sockets where connections begin with a handshake.

asyncio would accept connections itself; but then no one hears of a client whose certificate was refused, and
authorities that were trusted once stay so.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrite.broker.access import NOT_AUTHORIZED, Credentials
from pyrite.endpoints import new_context, trust_clients
from pyrite.protocols.conversation import CLOSING_TIME
from pyrite.protocols.events import tell_refused
from pyrite.server.config import Config, ConfigError, Tls

if TYPE_CHECKING:
    from pyrite.server.server import Server

logger = logging.getLogger(__name__)

ACCEPTS = 64
"""Connections accepted in one go, before those that are open are looked at again."""
PAUSE = 1.0
"""Seconds without accepting after the process ran out of descriptors."""
NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
"""What OpenSSL says of a client that shows none where one is needed."""


class TlsSockets:
    """The listening sockets of one listener with TLS."""

    def __init__(
        self,
        server: Server,
        sockets: list[socket.socket],
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._server = server
        self._sockets = sockets
        self._context = context
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        for one in sockets:
            one.setblocking(False)
            self._loop.add_reader(one, self._accept, one)

    def renew(self, context: ssl.SSLContext) -> None:
        """Have other certificates in force, for all who are not let in yet."""
        self._context = context
        self._end_handshakes()

    def close(self) -> None:
        """Accept no more."""
        for one in self._sockets:
            self._loop.remove_reader(one)
            one.close()
        self._sockets = []
        self._end_handshakes()

    def _end_handshakes(self) -> None:
        for task in self._handshakes:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning("cannot accept connections: %s", error.strerror)
                    self._loop.remove_reader(listening)
                    self._loop.call_later(PAUSE, self._resume, listening)
                return
            accepted.setblocking(False)
            address = str(peer[0])
            if not self._server.has_room(len(self._handshakes)):
                self._refused(address, 0, "there are too many connections")
                accepted.close()
                continue
            task = self._loop.create_task(self._shake_hands(accepted, address))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def _shake_hands(self, accepted: socket.socket, address: str) -> None:
        """Have a connection begin; its protocol is told when both sides agree."""
        try:
            await self._loop.connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._server.config.limits.connect_timeout,
                ssl_shutdown_timeout=CLOSING_TIME,
            )
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                why = f"its certificate was refused: {error.verify_message}"
                self._refused(address, NOT_AUTHORIZED, why)
            elif error.reason == NO_CERTIFICATE:
                self._refused(address, NOT_AUTHORIZED, "it showed no certificate")
            else:
                self._refused(address, 0, f"TLS: {error.reason or error}")
            accepted.close()
        except (OSError, asyncio.CancelledError):
            accepted.close()  # it has left, took too long, or others are let in now
        except Exception:
            logger.exception("internal error")
            accepted.close()

    def _refused(self, address: str, code: int, reason: str) -> None:
        tell_refused(self._server.broker, Credentials("", None, None, address), code, reason)


def tls_context(config: Config) -> ssl.SSLContext:
    """Make the TLS settings of a listener."""
    tls = config.tls
    context = new_context(tls.minimum_version)
    try:
        context.load_cert_chain(tls.certificate, tls.key or None, password=_no_pass_phrase)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{config.source}: tls.certificate = {tls.certificate!r}, tls.key = {tls.key!r}: "
            f"expected PEM files with a certificate and its key: {error}"
        ) from None
    if tls.client_ca:
        try:
            trust_clients(context, tls.client_ca, tls.require_client_certificate)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{config.source}: tls.client_ca = {tls.client_ca!r}: "
                f"expected a PEM file with certificates: {error}"
            ) from None
    return context


def _no_pass_phrase() -> str:
    raise ValueError("the key has a pass phrase, and there is no one to ask for it")


def own_state(tls: Tls) -> tuple[Any, ...]:
    """Return what stands for the broker's own certificate, and how it is used."""
    return (tls.certificate, tls.key, tls.minimum_version, _digest(tls.certificate), _digest(tls.key))


def trust_state(tls: Tls) -> tuple[Any, ...]:
    """Return what stands for which certificates of clients are taken, and for whose."""
    return (_digest(tls.client_ca), tls.require_client_certificate, tls.certificate_user)


def _digest(file: str) -> bytes:
    return hashlib.sha256(Path(file).read_bytes()).digest() if file else b""
