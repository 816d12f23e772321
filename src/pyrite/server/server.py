"""The server: a broker, its listeners and its clock, from start to clean end."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import resource
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrite import __version__
from pyrite.access.options import AccessError, AccessOptions
from pyrite.broker.access import Access, Credentials
from pyrite.broker.core import Broker
from pyrite.broker.link import Transport
from pyrite.broker.system import System
from pyrite.journal.disk import DiskJournal, open_journal
from pyrite.journal.workers import FairThreadWorker, ThreadWorker
from pyrite.process.endpoints import bind
from pyrite.process.tls import TlsSockets
from pyrite.protocols.conversation import CLOSING_TIME, Conversation
from pyrite.protocols.events import events, tell_refused
from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.mqtt.connection import Connection
from pyrite.protocols.mqtt.reasons import Reason
from pyrite.server.child import Child
from pyrite.server.config import Config, ConfigError, Tls
from pyrite.server.datagrams import DatagramProtocol, bind_datagrams
from pyrite.server.exposed import warn_of_exposed_files
from pyrite.server.flight import FlightProcess
from pyrite.server.http import HttpProcess
from pyrite.server.kernel import keep_pages_small
from pyrite.server.listeners import Listener
from pyrite.server.log_figures import CommitWorker, Sizes
from pyrite.server.memory import Memory
from pyrite.server.notify import READY, STOPPING, notify
from pyrite.server.reads import Reads
from pyrite.server.sockets import Poller, bind_unix, traffic
from pyrite.server.streams import StreamProtocol, is_encrypted
from pyrite.server.tls import own_state, tls_context, trust_state
from pyrite.server.websocket import WebSocketProtocol
from pyrite.sinks.sinks import Sinks
from pyrite.storage.upkeep import be_nice

if TYPE_CHECKING:
    from pyrite.access.loading import AccessList

logger = logging.getLogger(__name__)

TICK = 0.1
"""Seconds between two looks at the clock."""
BACKLOG = 8_192
"""Connections that may wait to be accepted; with asyncio's 100, 9,000 clients take 20 s to connect."""
SWITCH = 0.000_1
"""Seconds after which the thread that writes the log gives way to the event loop; Python's own is 5 ms."""
RESERVE = 200
"""Descriptors that are kept for the log, the listeners and the processes beside the broker."""
GOODBYE = 1.0
"""Seconds that clients have to take the last they are sent, when the broker stops."""


class Server:
    """One broker with its listeners. Made and used within a running event loop."""

    def __init__(self, config: Config, reread: Callable[[], Config] | None = None) -> None:
        self.config = config
        self._reread = reread or (lambda: config)
        """Returns the settings as they are now, for what of them can change while the broker runs."""
        self._loop = asyncio.get_running_loop()
        access = load_access(config)
        warn_of_exposed_files(config)
        self.journal = None if config.ephemeral else self._open_journal()
        self._deciding: ThreadWorker | None = None
        self.broker = Broker(
            config.limits,
            access,
            self._wake,
            time.monotonic,
            self.journal,
            config.topics,
            self._aside,
            config.quotas,
        )
        self.broker.quotas.max_connections = most_connections(config.limits.max_connections)
        self.broker.tick(self._loop.time())
        self.awake = False
        """Whether someone is at work who will flush the broker when done."""
        self._turn_comes = False
        self._memory = Memory()
        self.connections: set[Conversation] = set()
        self._per_address: dict[str, int] = {}
        self._most_connections = most_connections(config.limits.max_connections)
        self._servers: list[asyncio.AbstractServer] = []
        self._socket_files: list[Path] = []
        self._datagrams: list[DatagramProtocol] = []
        self._children: list[Child] = []
        self._reads = Reads(self.broker.quotas)
        self.listening: list[Listener] = []
        """Where the broker listens, once all listeners are open."""
        self._tls_sockets: list[TlsSockets] = []
        self._tls = self._tls_states(config.tls)
        self._sinks: Sinks | None = None
        self._poller = Poller(self) if hasattr(select, "epoll") else None
        self._timer: asyncio.TimerHandle | None = None
        if self.journal is not None:
            self.journal.restore(self.broker)
            self._sinks = Sinks(self.journal, self.broker)

    def _post(self, call: Callable[[], object]) -> None:
        """Have something done in the event loop's thread; from any other."""
        try:
            self._loop.call_soon_threadsafe(self._at_work, call)
        except RuntimeError:
            pass  # the loop is closed, and so no one waits any longer

    def _aside(self, job: Callable[[], Any], then: Callable[[Any], object]) -> None:
        """Decide who may come in, in a thread of its own: checking passwords takes time, on purpose."""
        if self._deciding is None:
            self._deciding = ThreadWorker("pyrite-access", self._post)
        self._deciding.run(job, then)

    def _open_journal(self) -> DiskJournal:
        config, loop, post = self.config, self._loop, self._post
        self._committing = CommitWorker("pyrite-log", post)
        try:
            return open_journal(
                Path(config.data),
                config.stream,
                writing=self._committing,
                committing=ThreadWorker("pyrite-state", post),
                reading=FairThreadWorker("pyrite-read", post, GOODBYE),
                staging=ThreadWorker("pyrite-sinks", post, goodbye=GOODBYE),
                upkeep=ThreadWorker("pyrite-upkeep", post, be_nice),
                later=lambda seconds, call: loop.call_later(seconds, self._at_work, call),
            )
        except OSError as error:  # that of a write does not say where
            raise OSError(error.errno, error.strerror, error.filename or config.data) from None

    def _watch_the_log(self) -> Callable[[], Mapping[str, int]]:
        """Have commits counted from now on; return what tells how large streams are."""
        if self.journal is None:
            return dict
        self._committing.figures = self.broker.figures
        self._committing.ends = {stream: stream.next_offset for stream in self.journal.streams}
        streams = self.journal.folder.streams
        return Sizes({stream.name: streams / stream.name for stream in self.journal.streams})

    def _at_work(self, call: Callable[[], object]) -> None:
        """Do something, and send what comes of it."""
        began = time.monotonic()
        self.awake = True
        try:
            call()
            self.broker.flush()
        except Exception:  # whatever it is, it must not end what others wait for
            logger.exception("internal error")
        finally:
            self.sleep()
            took = time.monotonic() - began
            figures = self.broker.figures
            figures.longest_log_block = max(figures.longest_log_block, took)
            figures.longest_block = max(figures.longest_block, took)

    # The life of the server

    async def start(self) -> list[Listener]:
        """Open all listeners and return them, with the ports they were really given."""
        try:
            # Together, as each process takes its time to start; if one cannot listen, the first is told of.
            opened = await asyncio.gather(
                *(self._listen(listener) for listener in self.config.listeners()), return_exceptions=True
            )
            for one in opened:
                if isinstance(one, BaseException):
                    raise one
        except BaseException:
            await self.stop()
            raise
        listening = [one for one in opened if isinstance(one, Listener)]
        if self.config.mqtt.sys_interval:
            System(self.broker, self.config.mqtt.sys_interval, __version__, self._watch_the_log())
        self._tick()
        self.listening = listening
        return listening

    def found(self) -> list[str]:
        """Say what was found in the data folder, a line a stream."""
        if self.journal is None:
            return []
        lines = [f"stream {one.name}: {writer.opened}" for one, writer in self.journal.writers.items()]
        return [*lines, *(f"damaged: {damage}" for damage in self.journal.damages)]

    async def stop(self) -> None:
        """Stop accepting, tell the clients, send what is still to be sent, close."""
        for server in self._servers:
            server.close()
        for sockets in self._tls_sockets:
            sockets.close()
        if self._poller is not None:
            self._poller.stop_listening()
        for connection in list(self.connections):
            connection.ended(Reason.SERVER_SHUTTING_DOWN)
        await asyncio.gather(*(one.stop() for one in self._children))
        for endpoint in self._datagrams:
            endpoint.datagrams.ended(Reason.SERVER_SHUTTING_DOWN)
            endpoint.close()
        end = self._loop.time() + GOODBYE
        while self.connections and self._loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()
        if self._poller is not None:
            self._poller.close()
        for path in self._socket_files:
            path.unlink(missing_ok=True)
        if self._deciding is not None:
            # A plug-in may never come to an end, and no one waits for its answer any longer.
            await self._loop.run_in_executor(None, self._deciding.stop, GOODBYE)
        if self.journal is not None:
            await self._loop.run_in_executor(None, self.journal.close)

    def reload(self) -> None:
        """Read users, rules and certificates again; if something is wrong with them, all stays as it is."""
        try:
            config = self._reread()
            found = _access_list(config.access) if config.access.in_use else None
            tls = self._tls_states(config.tls)
            context = tls_context(config) if tls is not None else None
        except ConfigError as error:
            logger.error("the settings were not read again: %s", error)
            return
        certificates_changed = tls != self._tls
        trust_changed = tls is not None and self._tls is not None and tls[1] != self._tls[1]
        self.config.access, self.config.tls, self._tls = config.access, config.tls, tls
        self._replace_access(found)
        self.config.quotas = config.quotas
        self.broker.quotas.replace(config.quotas)
        if context is not None and certificates_changed:
            for sockets in self._tls_sockets:
                sockets.renew(context, trust_changed)
        self._review(trust_changed)
        for process in self._children:
            process.renew(certificates_changed, trust_changed)
        logger.warning("users, rules, certificates and quotas were read again")

    def _tls_states(self, tls: Tls) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        """Return what stands for the certificates in use: the broker's own, and whose others it takes."""
        if not any(one.tls for one in self.config.listeners()):
            return None
        try:
            return own_state(tls), trust_state(tls)
        except OSError as error:
            raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None

    def _replace_access(self, found: AccessList | None) -> None:
        """Have another access list in force."""
        from pyrite.access.guard import Guard

        before = self.broker.access
        if isinstance(before, Guard):
            if found is not None:
                before.replace(*found)
            else:
                logger.error("there is no access list any more: the last one stays until a restart")
        elif found is not None and not self.config.mqtt.authenticator:
            self.broker.access = Guard(*found)

    def _review(self, trust_changed: bool) -> None:
        """Have those go who would not be let in any more, and subscriptions that are not allowed any more.

        If other certificates of clients are taken than before, who came over TLS has to show one again.
        """
        self.broker.access_changed()
        over_udp = [one for endpoint in self._datagrams for one in endpoint.datagrams.connections()]
        for connection in [*self.connections, *over_udp]:
            connection.rights_changed()
            session = connection.session
            stays = not (trust_changed and is_encrypted(connection.transport))
            if session is None:
                if not stays:
                    connection.ended(Reason.NOT_AUTHORIZED)
                continue
            if stays and self.broker.is_welcome(connection.credentials):
                try:
                    self.broker.prune(session, connection.credentials)
                    continue
                except Exception:  # a plug-in may do anything
                    logger.exception("internal error in the access plug-in")
            session.will = None  # it has no say any more
            connection.ended(Reason.NOT_AUTHORIZED)

    async def _listen(self, listener: Listener) -> Listener:
        """Open a listener; an error says which."""
        try:
            return await self._open(listener)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {listener}: {error.strerror or error}") from None

    async def _open(self, listener: Listener) -> Listener:
        if listener.flight:
            assert self._sinks is not None
            process = FlightProcess(
                self.config, listener, self.broker, self._sinks, self._at_work, self._reads
            )
            self._children.append(process)
            return await process.start()
        if listener.http:
            serving = HttpProcess(
                self.config,
                listener,
                self.broker,
                lambda: self.listening,
                self._at_work,
                self._loop.call_later,
                self._reads,
            )
            self._children.append(serving)
            return await serving.start()
        if listener.scheme == "unix":
            path = Path(listener.path)
            _remove_stale_socket(path, self.config.source)
            sockets = [bind_unix(str(path), BACKLOG)]
            self._socket_files.append(path)
        elif listener.scheme == "udp":
            bound = bind_datagrams(listener.host, listener.port)
            _, endpoint = await self._loop.create_datagram_endpoint(
                lambda: DatagramProtocol(self), sock=bound
            )
            self._datagrams.append(endpoint)
            return listener.at_port(bound.getsockname()[1])
        else:
            sockets = bind(listener.host, listener.port, BACKLOG)
            listener = listener.at_port(sockets[0].getsockname()[1])
        if self._poller is not None and not listener.tls and not listener.websocket:
            for listening in sockets:
                self._poller.listen(listening, listener)
            return listener

        def protocol() -> asyncio.Protocol:
            if listener.websocket:
                return WebSocketProtocol(self, listener)
            return StreamProtocol(self, listener)

        if listener.tls:
            encrypted = TlsSockets(
                sockets,
                tls_context(self.config),
                protocol,
                handshake_time=self.config.limits.connect_timeout,
                closing_time=CLOSING_TIME,
                has_room=self._has_room,
                refused=self._refused,
            )
            self._tls_sockets.append(encrypted)
            return listener
        for listening in sockets:
            self._servers.append(await self._loop.create_server(protocol, sock=listening, backlog=BACKLOG))
        return listener

    def _wake(self) -> None:
        if not self.awake and not self._turn_comes:
            self._turn_comes = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Let those go on who were interrupted, and send what there is to send."""
        self._turn_comes = False
        self.awake = True
        try:
            self.broker.take_turns()
            self.broker.flush()
        finally:
            self.sleep()

    def sleep(self) -> None:
        """Note that whoever was at work is done; those who were interrupted go on in the next turn."""
        self.awake = False
        if self.broker.has_interrupted:
            self._wake()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK, self._tick)
        self.broker.tick(self._loop.time())
        self._memory.tick(self.broker)
        events.settle()

    # What connections ask

    def connection(self, listener: Listener, transport: Transport, address: str, peer: str) -> Conversation:
        """Make the connection of a client that came to a listener."""
        if listener.scheme == "line":
            return LineConnection(self.broker, self.config.line, transport, address, peer)
        return Connection(self.broker, self.config.mqtt, transport, address)

    def read_later(self, connection: Conversation) -> None:
        """Read no more from a client until others had their turn."""
        connection.transport.pause_reading()
        self._loop.call_soon(connection.resume_reading)

    def _has_room(self, more: int) -> bool:
        """Tell whether there is room for a connection beside those that are there, and `more` to come."""
        return len(self.connections) + more < self._most_connections

    def _refused(self, address: str, code: int, reason: str) -> None:
        """Note that someone was turned away before anything was said."""
        tell_refused(self.broker, Credentials("", None, None, address), code, reason)

    def admit(self, address: str) -> str | None:
        """Count one more connection from an address; return the address, or None if it is one too many."""
        limits = self.config.limits
        here = self._per_address.get(address, 0)
        if len(self.connections) >= self._most_connections or here >= limits.max_connections_per_address:
            self.broker.figures.connections_refused += 1
            where = " from its address" if here >= limits.max_connections_per_address else ""
            events.tell("refused", address=address, reason=f"there are too many connections{where}")
            return None
        self._per_address[address] = here + 1
        self.broker.figures.connections_accepted += 1
        return sys.intern(address)

    def dismiss(self, connection: Conversation, descriptor: int) -> None:
        """Count one connection less from its address; `descriptor` is its socket's, while it is open."""
        address = connection.credentials.address
        connection.tell_disconnected(traffic(descriptor) if connection.came_at is not None else None)
        here = self._per_address[address] - 1
        if here:
            self._per_address[address] = here
        else:
            del self._per_address[address]


def load_access(config: Config) -> Access:
    """Make the access plug-in that is configured, or what the access list says."""
    name = config.mqtt.authenticator
    if not name:
        return _guard(config.access)
    where = f"{config.source}: mqtt.authenticator = {name!r}"
    module, colon, factory = name.partition(":")
    expected = "expected package.module:factory, where factory() returns a pyrite.broker.access.Access"
    try:
        access = getattr(importlib.import_module(module), factory)() if colon else None
    except (Exception, SystemExit) as error:  # whatever a plug-in may do
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{where}: {text}; {expected}") from error
    if not isinstance(access, Access):
        raise ConfigError(f"{where}: {expected}")
    return access


def _guard(options: AccessOptions) -> Access:
    """Make what the access list says; without one, everyone may do everything."""
    if not options.in_use:
        return Access()
    from pyrite.access.guard import Guard  # with argon2, which most need not wait for

    return Guard(*_access_list(options))


def _access_list(options: AccessOptions) -> AccessList:
    from pyrite.access.loading import read_list

    try:
        return read_list(options)
    except AccessError as error:
        raise ConfigError(str(error)) from None


def _remove_stale_socket(path: Path, source: str) -> None:
    """Remove a socket that a broker which is gone left behind; one in use, or another file, stays."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(
                f"{source}: listen = 'unix://{path}': expected a socket or nothing there, found a file"
            )
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise ConfigError(f"{source}: listen = 'unix://{path}': another broker is listening there")


def most_connections(wanted: int) -> int:
    """Return how many connections there may be, so that there are descriptors left for the log."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - min(RESERVE, soft // 2)))


def raise_file_limit() -> None:
    """Allow as many open connections as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(
    config: Config, say: Callable[[str], None], reread: Callable[[], Config] | None = None
) -> None:
    """Run a broker until SIGTERM or SIGINT; `say` is told where it listens, and that it is ready.

    At SIGHUP, `reread` is asked for the settings as they are then.
    """
    raise_file_limit()
    keep_pages_small()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        _on_signal(number, stopped.set)
    server: Server | None = None
    started = reload_wanted = False

    def hang_up() -> None:
        nonlocal reload_wanted
        if server is not None and started:
            server.reload()
        else:
            reload_wanted = True  # a reload during the start waits for its end

    _on_signal(signal.SIGHUP, hang_up)
    server = Server(config, reread)
    for line in server.found():
        say(line)
    for listener in await server.start():
        say(f"listening on {listener}")
    say("pyrite ready")
    notify(READY)
    started = True
    if reload_wanted:
        server.reload()
    # Everything loaded by now stays; and few of the objects that messages make are in cycles. So the
    # collector looks at less, and more rarely; and at few new objects at a time, as all wait meanwhile.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH)
    gc.set_threshold(5_000, 200, 50)
    try:
        await stopped.wait()
    finally:
        notify(STOPPING)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a stopping broker has nothing to reload
        await server.stop()
        for number in (signal.SIGTERM, signal.SIGINT):  # the stop is over: another signal changes nothing
            signal.signal(number, signal.SIG_IGN)


def _on_signal(number: signal.Signals, call: Callable[[], object]) -> None:
    """Make the event loop call `call` at each signal `number`.

    Not `loop.add_signal_handler`: removing its handler restores the default action for a moment, and a SIGHUP
    in that moment kills the process.
    """
    loop = asyncio.get_running_loop()

    def handle(*_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    signal.signal(number, handle)
