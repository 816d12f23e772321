"""uvicorn's server, with listeners of our own, and an end that the broker decides on."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from pyrite.http.protocol import bounded
from pyrite.ipc.client import Client
from pyrite.ipc.messages import HttpSettings, NewCertificates, RefusedConnection, RightsChanged
from pyrite.process.accept import StreamListener
from pyrite.process.tls import context_of, context_or_exit

GOODBYE = 2
"""Seconds that requests under way have to be answered, when their connection is to end."""
CLOSING_TIME = 30.0
"""Seconds that a client has to take the last of an answer before its connection is closed."""


class Server(uvicorn.Server):
    """Serves one listener."""

    def __init__(self, app: ASGIApp, settings: HttpSettings, client: Client) -> None:
        self._settings = settings
        self._client = client
        self._protocol = bounded(settings)
        self._listener: StreamListener | None = None
        self._started = asyncio.Event()
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

    async def start(self, sockets: list[socket.socket]) -> asyncio.Task[None]:
        """Accept connections; return the task that serves them."""
        tls = self._settings.tls
        context = None if tls is None else context_of(tls)
        serving = asyncio.create_task(self.serve([]))  # without listeners of uvicorn's
        await self._started.wait()
        self._listener = StreamListener(
            sockets,
            context,
            lambda: self._protocol(self.config, self.server_state, self.lifespan.state),
            handshake_time=self._settings.connect_timeout,
            closing_time=CLOSING_TIME,
            has_room=self._has_room,
            refused=lambda *why: self._client.tell(RefusedConnection(*why)),
        )
        return serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin."""
        await super().startup(sockets)
        self._started.set()

    def _has_room(self, more: int) -> bool:
        """Return whether there is room beside connections that were let in; others make room."""
        state, protocol = self.server_state, self._protocol
        return len(state.connections) - len(protocol.strangers) + more < protocol.most

    def told(self, message: RightsChanged | NewCertificates) -> None:
        """Use new certificates.

        If other certificates of clients are trusted than before, all clients have to connect again.
        """
        if isinstance(message, RightsChanged):
            return  # the broker is asked about every request
        assert self._listener is not None
        self._listener.renew(context_or_exit(message.tls), message.trust_changed)
        if message.trust_changed:
            self._protocol.named_in = message.tls.certificate_user
            before = list(self.server_state.connections)
            for connection in before:
                connection.shutdown()
            asyncio.get_running_loop().call_later(GOODBYE, self._abort, before)

    def _abort(self, connections: list[Any]) -> None:
        for connection in connections:
            if connection in self.server_state.connections:
                connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and end the connections."""
        if self._listener is not None:
            self._listener.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM: requests under way are answered. Ctrl-C is for the broker, which ends this."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, self, "should_exit", True)
        yield
