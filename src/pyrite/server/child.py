"""Child processes: each serves one listener outside of the broker's event loop.

A child is started as `python -m MODULE DESCRIPTOR`, with the descriptor of a socket to the broker
(pyrite/ipc). It receives its settings, answers `Ready` or `Failed`, and then sends requests. A child ends
when its socket is closed, and is restarted when it dies.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
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
    Ready,
    RefusedConnection,
    Request,
    RightsChanged,
)
from pyrite.ipc.server import Handler, RequestServer
from pyrite.process.tls import TlsSettings
from pyrite.protocols.events import tell_refused
from pyrite.server.config import Config, Tls
from pyrite.server.listeners import Listener
from pyrite.server.reads import Reads

START_TIMEOUT = 60.0
"""Seconds within which a child must be ready."""
RESTART_DELAY = 1.0
"""Seconds before a child that died is restarted."""
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
        self._task: asyncio.Task[None] | None = None
        self._server: RequestServer | None = None
        self._ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()

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

    async def start(self) -> Listener:
        """Start the process, and return its listener with the actual port; raise OSError on failure."""
        self._server = RequestServer(self.handlers(), self._hear, self._work, self.broker.clock, TURN)
        self._task = asyncio.get_running_loop().create_task(self._run(self._server))
        try:
            port = await asyncio.wait_for(asyncio.shield(self._ready), START_TIMEOUT)
        except TimeoutError:
            raise OSError(0, f"the {self.name} process did not start in time") from None
        self.listener = self.listener.at_port(port)
        return self.listener

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
        """Run the process, and restart it when it ends."""
        ready = self._ready
        while True:
            try:
                await self._run_once(server)
            except OSError as error:
                self._logger.error("the %s process cannot be started: %s", self.name, error)
            except (ValueError, asyncio.IncompleteReadError):
                self._logger.exception("unexpected message from the %s process", self.name)
            if not ready.done():
                ready.set_exception(OSError(0, f"the {self.name} process ended during its start"))
            if ready.exception() is not None:
                return
            self._logger.error("the %s process has ended and is restarted", self.name)
            await asyncio.sleep(RESTART_DELAY)

    async def _run_once(self, server: RequestServer) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self.module,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
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
            case _ if self._ready.done():
                pass  # a restarted process
            case Ready(port):
                self._ready.set_result(port)
            case Failed(reason):
                self._ready.set_exception(OSError(0, reason))


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


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait until a process has ended, which closing its socket causes; kill it after a timeout."""
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
    except TimeoutError:
        process.kill()
        await process.wait()
