"""The server: a broker with its listeners and timers, from start to clean shutdown."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrite import __version__
from pyrite.broker.core import Broker
from pyrite.broker.link import Transport
from pyrite.journal.disk import DiskJournal, open_journal
from pyrite.journal.workers import FairThreadWorker, ThreadWorker
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.events import events
from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.mqtt.connection import Connection
from pyrite.protocols.mqtt.reasons import Reason
from pyrite.server.access import load_access, read_access_list, replace_access
from pyrite.server.certificates import read_certificates, tls_context
from pyrite.server.config import Config, ConfigError
from pyrite.server.connections import Connections
from pyrite.server.exposed import warn_of_exposed_files
from pyrite.server.kernel import possible_connections
from pyrite.server.listeners import Listener
from pyrite.server.log_metrics import CommitWorker, Sizes
from pyrite.server.memory import Memory
from pyrite.server.metrics import Metrics
from pyrite.server.opening import Listeners
from pyrite.server.streams import Round, is_encrypted
from pyrite.server.system import System
from pyrite.sinks.sinks import Sinks
from pyrite.storage.upkeep import be_nice

if TYPE_CHECKING:
    from pyrite.server.cluster import ClusterNode

logger = logging.getLogger(__name__)

TICK = 0.1
"""Seconds between two calls of the broker's `tick`."""
SHUTDOWN_TIME = 1.0
"""Seconds for clients to receive the last bytes when the broker stops."""


class Server:
    """One broker with its listeners. Created and used within a running event loop."""

    def __init__(self, config: Config, reread: Callable[[], Config] | None = None) -> None:
        self.config = config
        self._reread = reread or (lambda: config)
        """Returns the current settings, some of which can change while the broker runs."""
        self._loop = asyncio.get_running_loop()
        access = load_access(config)
        warn_of_exposed_files(config)
        self.node: ClusterNode | None = None
        """This broker as a node of a cluster, if it is one."""
        self._committing = CommitWorker("pyrite-log", self._post)
        self.journal = None if config.ephemeral else self._open_journal()
        self._access_worker: ThreadWorker | None = None
        self.broker = Broker(
            config.limits,
            access,
            self._wake,
            time.monotonic,
            self.journal,
            config.topics,
            self._check_log_in,
            config.quotas,
        )
        most_connections = possible_connections(config.limits.max_connections)
        self.broker.quotas.max_connections = most_connections
        self.broker.tick(self._loop.time())
        self.awake = False
        """True while code runs that will flush the broker at its end."""
        self._turn_comes = False
        self.memory = Memory()
        self.round = Round()
        self._timer: asyncio.TimerHandle | None = None
        self.sinks: Sinks | None = None
        self.metrics = Metrics(self.broker, self._measure_log(), self.node)
        self.connections = Connections(
            config, self.broker, most_connections, self.connection, self.connection_refused
        )
        self.listeners = Listeners(self)
        self._certificates = read_certificates(config)
        if self.journal is not None:
            self.journal.restore(self.broker)
            self.sinks = Sinks(self.journal, self.broker)

    def _open_journal(self) -> DiskJournal:
        config, post = self.config, self._post
        parts: dict[str, Any] = {
            "writing": self._committing,
            "committing": ThreadWorker("pyrite-state", post),
            "reading": FairThreadWorker("pyrite-read", post, SHUTDOWN_TIME),
            "staging": ThreadWorker("pyrite-sinks", post, goodbye=SHUTDOWN_TIME),
            "upkeep": ThreadWorker("pyrite-upkeep", post, be_nice),
            "later": self.later,
        }
        try:
            if not config.cluster.in_use:
                return open_journal(Path(config.data), config.stream, **parts)
            from pyrite.server.cluster import ClusterNode, open_node_journal  # with the engine's client

            journal = open_node_journal(config, **parts)
            self.node = ClusterNode(config, journal, self.at_work)
            return journal
        except OSError as error:  # the error of a write does not name the file
            raise OSError(error.errno, error.strerror, error.filename or config.data) from None

    def _measure_log(self) -> Sizes:
        """Start to count commits; return the object that measures streams."""
        if self.journal is None:
            return Sizes({})
        self._committing.figures = self.broker.figures
        self._committing.ends = {stream: stream.next_offset for stream in self.journal.streams}
        folder = self.journal.folder.streams
        return Sizes({stream.name: folder / stream.name for stream in self.journal.streams}, self.at_work)

    # Work in the event loop

    def _post(self, call: Callable[[], object]) -> None:
        """Call a function in the event loop; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self.at_work, call)
        except RuntimeError:
            pass  # the loop is closed

    def later(self, seconds: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function after some seconds."""
        return self._loop.call_later(seconds, self.at_work, call)

    def _check_log_in(self, job: Callable[[], Any], then: Callable[[Any], object]) -> None:
        """Check credentials in another thread: password hashing is slow on purpose."""
        if self._access_worker is None:
            self._access_worker = ThreadWorker("pyrite-access", self._post)
        self._access_worker.run(job, then)

    def at_work(self, call: Callable[[], object]) -> None:
        """Call a function, then flush what the broker has to send."""
        began = time.monotonic()
        self.awake = True
        try:
            call()
            self.broker.output.flush()
        except Exception:  # other work must continue
            logger.exception("internal error")
        finally:
            self.sleep()
            figures = self.broker.figures
            figures.longest_log_block = max(figures.longest_log_block, time.monotonic() - began)
            self.worked_since(began)

    def worked_since(self, began: float) -> None:
        """Record that the event loop was busy with one thing since a time."""
        took = time.monotonic() - began
        if took > self.broker.figures.longest_block:
            self.broker.figures.longest_block = took

    def _wake(self) -> None:
        if not self.awake and not self._turn_comes:
            self._turn_comes = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Give interrupted work a turn, and flush."""
        began = time.monotonic()
        self._turn_comes = False
        self.awake = True
        try:
            self.broker.turns.take()
            self.broker.output.flush()
        finally:
            self.sleep()
            self.worked_since(began)

    def sleep(self) -> None:
        """Record that the broker was flushed; schedule a turn for interrupted work."""
        self.awake = False
        now = time.monotonic()
        if now > self.memory.due_at:
            self.memory.collect_young(now)
        if self.broker.turns.has_work:
            self._wake()

    def _tick(self) -> None:
        began = time.monotonic()
        self._timer = self._loop.call_later(TICK, self._tick)
        self.broker.tick(self._loop.time())
        self.memory.tick(self.broker)
        events.settle()
        self.worked_since(began)

    def read_later(self, connection: Conversation) -> None:
        """Pause reading from a client until others had their turn."""
        connection.transport.pause_reading()
        self._loop.call_soon(connection.resume_reading)

    # Start and stop

    async def start(self) -> list[Listener]:
        """Open all listeners and return them with their actual ports."""
        self._tick()
        try:
            if self.node is not None:
                await self.node.join()
            listening = self.listeners.start()
        except BaseException:
            await self.stop()
            raise
        if self.config.mqtt.sys_interval:
            System(self.metrics, self.config.mqtt.sys_interval, __version__)
        return listening

    def found(self) -> list[str]:
        """Describe the data folder, one line per stream and per damage."""
        if self.journal is None:
            return []
        lines = [f"stream {one.name}: {writer.opened}" for one, writer in self.journal.log.writers.items()]
        return [*lines, *(f"damaged: {damage}" for damage in self.journal.damages)]

    async def stop(self) -> None:
        """Stop accepting, disconnect clients, send pending output, and close."""
        listeners, connections = self.listeners, self.connections.all
        listeners.stop_accepting()
        for connection in list(connections):
            connection.ended(Reason.SERVER_SHUTTING_DOWN)
        await asyncio.gather(*(one.stop() for one in listeners.children))
        for endpoint in listeners.datagrams:
            endpoint.datagrams.ended(Reason.SERVER_SHUTTING_DOWN)
            endpoint.close()
        end = self._loop.time() + SHUTDOWN_TIME
        while connections and self._loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in list(connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()
        listeners.close()
        if self._access_worker is not None:
            # A plug-in may never return, so do not wait for it.
            await self._loop.run_in_executor(None, self._access_worker.stop, SHUTDOWN_TIME)
        if self.journal is not None:
            await self._loop.run_in_executor(None, self.journal.close)
        if self.node is not None:
            await self.node.leave()

    # Overridden by other servers

    def connection(self, listener: Listener, transport: Transport, address: str, peer: str) -> Conversation:
        """Return the connection for a client of a listener."""
        if listener.scheme == "line":
            return LineConnection(self.broker, self.config.line, transport, address, peer)
        return Connection(self.broker, self.config.mqtt, transport, address)

    def connection_refused(self, address: str) -> None:
        """Called for a connection beyond a limit."""

    # Reload

    def reload(self) -> None:
        """Reload users, rules, certificates and quotas; if one is invalid, keep all of them."""
        try:
            config = self._reread()
            found = read_access_list(config.access) if config.access.in_use else None
            certificates = read_certificates(config)
            context = tls_context(config) if certificates is not None else None
        except ConfigError as error:
            logger.error("the settings were not reloaded: %s", error)
            return
        before, self._certificates = self._certificates, certificates
        certificates_changed = certificates != before
        trust_changed = (
            certificates is not None and before is not None and certificates.trusted != before.trusted
        )
        self.config.access, self.config.tls = config.access, config.tls
        replace_access(self.broker, self.config, found)
        self.config.quotas = config.quotas
        self.broker.quotas.replace(config.quotas)
        if context is not None and certificates_changed:
            self.listeners.renew(context, trust_changed)
        self._review(trust_changed)
        for process in self.listeners.children:
            process.renew(certificates_changed, trust_changed)
        logger.warning("users, rules, certificates and quotas were reloaded")

    def _review(self, trust_changed: bool) -> None:
        """In turns, disconnect clients without valid credentials, and end forbidden subscriptions.

        If `trust_changed`, disconnect all clients over TLS.
        """
        self.broker.access_changed()
        self.broker.turns.work_through(self._review_connections(trust_changed))

    def _review_connections(self, trust_changed: bool) -> Iterator[None]:
        over_udp = [one for endpoint in self.listeners.datagrams for one in endpoint.datagrams.connections()]
        connections = [*self.connections.all, *over_udp]
        for connection in connections:
            connection.rights_changed()
        for connection in connections:
            yield
            session = connection.session
            stays = not (trust_changed and is_encrypted(connection.transport))
            if session is None:
                if not stays:
                    connection.ended(Reason.NOT_AUTHORIZED)
                continue
            if stays and self.broker.policy.is_welcome(connection.credentials):
                try:
                    yield from self.broker.subscribing.prune(session, connection.credentials)
                    continue
                except Exception:  # a plug-in may raise anything
                    logger.exception("internal error in the access plug-in")
            session.will = None  # the client has no rights any more
            connection.ended(Reason.NOT_AUTHORIZED)
