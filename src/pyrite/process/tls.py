"""TLS, for the broker and the processes beside it: sockets where connections begin with a handshake.

asyncio would accept connections itself; but then no one hears of a client whose certificate was refused, and
certificates that were in force once stay so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger(__name__)

ACCEPTS = 64
"""Connections accepted in one go, before those that are open are looked at again."""
USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of a process, or system, that has no descriptors left, or no memory for a connection."""
PAUSE = 1.0
"""Seconds without accepting after the process ran out of descriptors."""
NOT_AUTHORIZED = 0x87
"""The reason code for a client whose certificate is refused, as in MQTT 5 (2.4)."""
NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
"""What OpenSSL says of a client that shows none where one is needed."""

Refused = Callable[[str, int, str], object]
"""Is told the address of someone who was turned away, a code of `pyrite.broker.access` (or 0), and why."""


class TlsSockets:
    """The listening sockets of one listener with TLS.

    A client has `handshake_time` seconds for its handshake, and at the end `closing_time` to take what it was
    sent last. `has_room` is asked whether one more may come, beside those there are and so many handshakes.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        *,
        handshake_time: float,
        closing_time: float,
        has_room: Callable[[int], bool],
        refused: Refused,
    ) -> None:
        self._sockets = sockets
        self._context = context
        self._protocol = protocol
        self._handshake_time = handshake_time
        self._closing_time = closing_time
        self._has_room = has_room
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        for one in sockets:
            one.setblocking(False)
            self._loop.add_reader(one, self._accept, one)

    def renew(self, context: ssl.SSLContext, trust_changed: bool) -> None:
        """Have other certificates in force for all who come from now on.

        If other certificates of clients are taken than before, who is not let in yet has to come again.
        """
        self._context = context
        if trust_changed:
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
                if error.errno in USED_UP:
                    logger.warning("cannot accept connections: %s", error.strerror)
                    self._loop.remove_reader(listening)
                    self._loop.call_later(PAUSE, self._resume, listening)
                return
            accepted.setblocking(False)
            address = str(peer[0])
            if not self._has_room(len(self._handshakes)):
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
                ssl_handshake_timeout=self._handshake_time,
                ssl_shutdown_timeout=self._closing_time,
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
        except ConnectionAbortedError:  # what uvloop raises when the time is over
            self._refused(address, 0, "TLS: the handshake took too long")
            accepted.close()
        except (OSError, asyncio.CancelledError):
            accepted.close()  # it has left, or others are let in now
        except Exception:
            logger.exception("internal error")
            accepted.close()


def new_context(minimum_version: str, certificate: str, key: str) -> ssl.SSLContext:
    """Make the TLS settings of a listener; "1.3" for that version alone, else from 1.2 on.

    OSError or ValueError if the files are not a certificate and its key; that may be in the first.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key or None, password=_no_pass_phrase)
    return context


def _no_pass_phrase() -> str:
    raise ValueError("the key has a pass phrase, and there is no one to ask for it")


def trust_clients(context: ssl.SSLContext, authorities: str, required: bool) -> None:
    """Take certificates of clients that these authorities have signed; OSError if there are none there."""
    context.load_verify_locations(authorities)
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def context_of(tls: Mapping[str, Any]) -> ssl.SSLContext:
    """Make the TLS settings of a listener of a process beside the broker, as it was told them."""
    context = new_context(tls["minimum_version"], tls["certificate"], tls["key"])
    if tls["client_ca"]:
        trust_clients(context, tls["client_ca"], tls["require_client_certificate"])
    return context


def context_or_end(tls: Mapping[str, Any]) -> ssl.SSLContext:
    """Make them again, of other certificates. If these cannot be read, this process ends, and another begins.

    The broker could read them a moment ago; and those from before must not stay in force.
    """
    try:
        return context_of(tls)
    except (OSError, ValueError) as error:
        logger.error("the certificates cannot be read: %s", error)
        logging.shutdown()
        os._exit(1)


def certificate_user(transport: asyncio.BaseTransport, where: str) -> str | None:
    """Return the name of the user in the certificate that a client has shown; `where` is "subject" or "san".

    None if it has shown none, or names are not taken from there.
    """
    shown = transport.get_extra_info("peercert") or {}
    names: list[str] = []
    if where == "san":
        names = [value for kind, value in shown.get("subjectAltName", ()) if kind in ("email", "DNS", "URI")]
    elif where == "subject":
        names = [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    return names[0] if names else None
