"""Child processes: each serves one listener, or the tables, outside of the broker's event loop.

The broker opens the listening sockets, and starts the child with the first connection: most brokers serve
MQTT alone, and a child costs some 90 MiB and half a second. Connections wait in the kernel meanwhile.

A child is started as `python -m MODULE DESCRIPTOR`, with the descriptor of a socket to the broker
(pyrite/ipc). It receives its settings, which contain the descriptors of the listening sockets, and sends
requests. A child ends when its socket is closed. When it dies, the next connection starts it again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from pyrite.broker.access import NOT_AUTHORIZED, Credentials
from pyrite.broker.core import Broker
from pyrite.broker.timers import TURN
from pyrite.ipc.channel import READ_AHEAD
from pyrite.ipc.messages import (
    Cancel,
    EndRead,
    Failed,
    LogSettings,
    NewCertificates,
    Notice,
    RefusedConnection,
    Request,
    RightsChanged,
)
from pyrite.ipc.server import Handler, RequestServer
from pyrite.process.endpoints import bind
from pyrite.process.tls import TlsSettings
from pyrite.protocols.events import tell_refused
from pyrite.server.config import Config, Tls
from pyrite.server.listeners import Listener
from pyrite.server.reads import Reads

BACKLOG = 1_024
"""Maximum connections waiting to be accepted."""
RESTART_DELAY = 1.0
"""Seconds after the end of a child before the next connection starts it again."""
STOP_TIMEOUT = 3.0
"""Seconds for a child to end before it is killed."""


class ChildContext(NamedTuple):
    """Shared by the child processes of a broker."""

    config: Config
    broker: Broker
    reads: Reads
    work: Callable[[Callable[[], object]], object]
    """Calls a function, then flushes what the broker has to send."""


class Child:
    """A listener that a child process serves."""

    name = ""
    """The name of the process in errors."""
    module = ""
    """The module of the process."""

    def __init__(self, context: ChildContext, listener: Listener) -> None:
        self.config, self.broker, self.reads, self._work = context
        self.listener = listener
        self._logger = logging.getLogger(type(self).__module__)
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._task: asyncio.Task[None] | None = None
        self._server: RequestServer | None = None

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the listening sockets, which are the same in the process."""
        return [one.fileno() for one in self._sockets]

    def settings(self) -> Struct:
        """Return the settings of the process."""
        raise NotImplementedError

    def handlers(self) -> Mapping[type[Request[Any]], Handler]:
        """Return the handlers of the process's requests."""
        raise NotImplementedError

    def cancel(self, number: int) -> None:
        """Cancel a request whose answer is no longer needed."""
        self.reads.end(self, number)

    def forget_callers(self) -> None:
        """Authenticate callers again, because users or rules may have changed."""
        raise NotImplementedError

    def gone(self) -> None:
        """Cancel all requests, because the process has ended."""
        self.reads.end_all(self)

    def listen(self) -> Listener:
        """Open the listener, and return it with its actual port; raise OSError on failure."""
        self._sockets = _bind(self.listener)
        self.listener = self.listener.at_port(self._sockets[0].getsockname()[1])
        self._await_connection()
        return self.listener

    def _await_connection(self) -> None:
        for one in self._sockets:
            self._loop.add_reader(one, self.start)

    def _ignore_connections(self) -> None:
        for one in self._sockets:
            self._loop.remove_reader(one)

    def start(self) -> None:
        """Start the process, which accepts the connection."""
        self._ignore_connections()
        if self._server is None:
            self._server = RequestServer(self.handlers(), self._hear, self._work, self.broker.clock, TURN)
        self._task = self._loop.create_task(self._run(self._server))

    def stop_accepting(self) -> None:
        """Close the listening sockets of the broker; those of the process close when it ends."""
        self._ignore_connections()
        for one in self._sockets:
            one.close()
        self._sockets = []

    def renew(self, certificates_changed: bool, trust_changed: bool) -> None:
        """Use new users, rules and certificates; if `trust_changed`, also new authorities for clients."""
        self.forget_callers()
        if self._server is None:
            return
        self._server.tell(RightsChanged())
        if certificates_changed and self.listener.tls:
            self._server.tell(NewCertificates(tls_settings(self.config.tls), trust_changed))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, server: RequestServer) -> None:
        """Run the process; when it ends, wait for the next connection, or start again without a listener."""
        try:
            await self._run_once(server)
        except OSError as error:
            self._logger.error("the %s process cannot be started: %s", self.name, error)
        except (ValueError, asyncio.IncompleteReadError):
            self._logger.exception("unexpected message from the %s process", self.name)
        self._logger.error("the %s process has ended and is started again when it is needed", self.name)
        await asyncio.sleep(RESTART_DELAY)
        if self._sockets:
            self._await_connection()
        else:
            self.start()

    async def _run_once(self, server: RequestServer) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self.module,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno(), *self.descriptors],
                stdin=asyncio.subprocess.DEVNULL,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=READ_AHEAD)
        try:
            await server.serve(reader, writer, self.settings())
            await process.wait()
        finally:
            writer.close()
            self.gone()
            await _end(process)

    def _hear(self, notice: Notice) -> None:
        """Handle a message that is not a request."""
        match notice:
            case RefusedConnection(address, by_certificate, reason):
                code = NOT_AUTHORIZED if by_certificate else 0
                tell_refused(self.broker, Credentials("", None, None, address), code, reason)
            case Cancel(number):
                self.cancel(number)
            case EndRead(number):
                self.reads.end(self, number)
            case Failed(reason):
                self._logger.error("the %s process cannot serve %s: %s", self.name, self.listener, reason)


def log_settings(config: Config) -> LogSettings:
    """Return the log output settings of a child."""
    return LogSettings(config.log_level, config.logging.format)


def tls_settings(tls: Tls) -> TlsSettings:
    """Return the TLS settings of a child."""
    return TlsSettings(
        tls.certificate,
        tls.key or tls.certificate,
        tls.client_ca,
        tls.require_client_certificate,
        tls.certificate_user,
        tls.minimum_version,
    )


def _bind(listener: Listener) -> list[socket.socket]:
    """Open listening sockets; wait a moment for the child of a broker that was killed: it ends soon after."""
    until = time.monotonic() + STOP_TIMEOUT
    while True:
        try:
            return bind(listener.host, listener.port, BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        time.sleep(0.02)  # nothing is served yet


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait until a process has ended, which closing its socket causes; kill it after a timeout."""
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
    except TimeoutError:
        process.kill()
        await process.wait()
