"""uvicorn's server, with our listeners, and a shutdown that the broker controls."""

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
from pyrite.ipc.client import BrokerClient
from pyrite.ipc.messages import HttpSettings, NewCertificates, RefusedConnection, RightsChanged
from pyrite.process.accept import StreamListener
from pyrite.process.tls import context_of, context_or_exit

SHUTDOWN_TIME = 2
"""Seconds to answer open requests before their connection is closed."""
CLOSING_TIME = 30.0
"""Seconds for a client to receive the end of an answer before its connection is closed."""


class HttpServer(uvicorn.Server):
    """Serves one listener."""

    def __init__(self, app: ASGIApp, settings: HttpSettings, client: BrokerClient) -> None:
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
                proxy_headers=False,  # failed log-ins are counted for the real address
                server_header=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=SHUTDOWN_TIME,
            )
        )

    async def start(self, sockets: list[socket.socket]) -> asyncio.Task[None]:
        """Accept connections; return the task that serves them."""
        tls = self._settings.tls
        context = None if tls is None else context_of(tls)
        serving = asyncio.create_task(self.serve([]))  # without uvicorn's own listeners
        await self._started.wait()
        self._listener = StreamListener(
            sockets,
            context,
            lambda _: self._protocol(self.config, self.server_state, self.lifespan.state),
            handshake_time=self._settings.connect_timeout,
            closing_time=CLOSING_TIME,
            has_room=self._has_room,
            refused=lambda *why: self._client.tell(RefusedConnection(*why)),
        )
        return serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started.set()

    def _has_room(self, more: int) -> bool:
        """Return True if there is room; unknown connections are closed to make room."""
        state, protocol = self.server_state, self._protocol
        return len(state.connections) - len(protocol.unknown) + more < protocol.most

    def told(self, message: RightsChanged | NewCertificates) -> None:
        """Use new certificates; close all connections if the trusted authorities have changed."""
        if isinstance(message, RightsChanged):
            return  # the broker authenticates every request
        assert self._listener is not None
        self._listener.renew(context_or_exit(message.tls), message.trust_changed)
        if message.trust_changed:
            self._protocol.named_in = message.tls.certificate_user
            before = list(self.server_state.connections)
            for connection in before:
                connection.shutdown()
            asyncio.get_running_loop().call_later(SHUTDOWN_TIME, self._abort, before)

    def _abort(self, connections: list[Any]) -> None:
        for connection in connections:
            if connection in self.server_state.connections:
                connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and close the connections."""
        if self._listener is not None:
            self._listener.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down at SIGTERM. Ctrl-C is left to the broker, which ends this process."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, self, "should_exit", True)
        yield
