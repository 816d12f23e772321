"""uvicorn's server, which begins with TLS and ends as this process is told to."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from pyrite.http.control import Control
from pyrite.http.protocol import bounded
from pyrite.process.tls import TlsSockets, context_or_end

GOODBYE = 2
"""Seconds that requests under way have to be answered, when their connection is to end."""
CLOSING_TIME = 30.0
"""Seconds that a client has to take the last of an answer after which its connection ends."""


class Server(uvicorn.Server):
    """Serves one listener."""

    def __init__(self, app: ASGIApp, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._protocol = bounded(settings)
        self._encrypted: TlsSockets | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=self._protocol,
                ws="none",
                lifespan="off",
                loop="none",
                access_log=False,
                log_config=None,
                proxy_headers=False,  # the address that counts failed log-ins is the real one
                server_header=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=GOODBYE,
            )
        )

    def listen_with_tls(
        self, sockets: list[socket.socket], context: ssl.SSLContext, control: Control
    ) -> None:
        """Take connections with TLS, once started without sockets; the broker is told who is turned away."""

        def protocol() -> asyncio.Protocol:
            return self._protocol(self.config, self.server_state, self.lifespan.state)

        self._encrypted = TlsSockets(
            sockets,
            context,
            protocol,
            handshake_time=self._settings["connect_timeout"],
            closing_time=CLOSING_TIME,
            has_room=lambda more: (
                len(self.server_state.connections) - len(self._protocol.strangers) + more
                < self._protocol.most
            ),
            refused=lambda *who: control.say(refused=who),
        )

    def renew(self, told: dict[str, Any]) -> None:
        """Have other certificates in force.

        If other certificates of clients are taken than before, everyone has to come again.
        """
        assert self._encrypted is not None
        context = context_or_end(told["tls"])
        self._encrypted.renew(context, told["trust_changed"])
        if told["trust_changed"]:
            self._protocol.named_in = told["tls"]["certificate_user"]
            before = list(self.server_state.connections)
            for connection in before:
                connection.shutdown()
            asyncio.get_running_loop().call_later(GOODBYE, self._abort, before)

    def _abort(self, connections: list[Any]) -> None:
        for connection in connections:
            if connection in self.server_state.connections:
                connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end what there is."""
        if self._encrypted is not None:
            self._encrypted.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGTERM: what is under way is answered. Ctrl-C is for the broker, which ends this."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, self, "should_exit", True)
        yield
