"""The study of connections: how many TCP clients can be connected at once, and what sets the limit."""

from __future__ import annotations

import json
import resource
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from pyrite.client.line import LineClient, LineError
from studies import machine
from studies.broker import SETTINGS, Broker
from studies.capture import Capture
from studies.machine import StudyError
from studies.namespace import Namespace, set_here

CROWD = Path(__file__).with_name("crowd.py")
BROKER_DESCRIPTORS = "descriptors of the broker"
CLIENT_DESCRIPTORS = "descriptors of the client"
ALL_DESCRIPTORS = "descriptors of the machine"
MAX_CONNECTIONS = "max_connections of the broker"
PORTS = "ports of the client's address"
MEMORY = "memory"
TIME = "time"
NOTHING = "nothing"

QUIET: dict[str, dict[str, Any]] = SETTINGS | {"line": {"ping_interval": 600}}
"""Idle connections are to be idle: no Pings that no one reads."""
DEFAULT_MAX_CONNECTIONS = 100_000
"""What `limits.max_connections` is if it is not set."""
STEP = 2_000
"""Clients of one process, and between two looks at the memory."""
KINDS = ("TCP", "TCPv6", "sock_inode_cache", "filp", "dentry", "eventpoll_epi", "eventpoll_pwq", "ep_head",
         "tcp_bind_bucket", "tcp_bind2_bucket", "request_sock_TCP", "lsm_file_cache")  # fmt: skip
"""Objects of the kernel that connections are made of."""
_SLACK = 15.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How the study is run."""

    seconds: float = 60.0
    """At most so many seconds for the large crowd; the other settings take a few each."""
    clients: int = 30_000
    """As many are to be connected at once, if nothing refuses them."""
    limit: int = 500
    """What is lowered is lowered to this."""

    def check(self) -> None:
        """Raise StudyError if it cannot be run so."""
        if not 100 <= self.limit <= 10_000:
            raise StudyError(f"--limit {self.limit}: expected a number from 100 to 10000")


@dataclass
class Outcome:
    """How many came in, in one setting, and what stopped the next one."""

    setting: str
    set_to: int | None
    """The limit that was set, if one was."""
    clients: int
    stopped_by: str
    """The limit, by its name."""
    seen_as: str
    """What the client saw."""
    descriptors: int
    """Those that the broker had open then."""
    descriptor_limit: int
    """Those that it may have open."""
    published: str
    """What a client that is connected was answered to a Publish then."""
    recovered: bool
    """Whether a new client came in after the others had left."""
    wire: dict[str, int] = field(default_factory=dict)
    """Packets that begin and end connections, by kind."""


@dataclass
class Crowd:
    """A process full of clients, for as long as a `with` block lasts."""

    port: int
    count: int
    seconds: float
    sources: tuple[str, ...] = ()
    descriptors: int | None = None
    clients: int = 0
    stopped_by: str = ""

    def __enter__(self) -> Self:
        command = [sys.executable, str(CROWD), "127.0.0.1", str(self.port), str(self.count)]
        self._process = subprocess.Popen(  # noqa: S603
            [*command, str(self.seconds), *self.sources],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            if self.descriptors is not None:
                bound = (self.descriptors, self.descriptors)
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, bound)
            assert self._process.stdout is not None
            select.select([self._process.stdout], [], [], self.seconds + _SLACK)
            # A process that has said nothing by now is ended, which ends what is read as well.
            if not select.select([self._process.stdout], [], [], 0)[0]:
                raise StudyError("a process of clients does not answer")
            told = json.loads(self._process.stdout.readline() or b"null")
            if told is None:
                raise StudyError("a process of clients ended early")
        except BaseException:
            self.leave()
            raise
        self.clients, self.stopped_by = told["clients"], told["stopped_by"]
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """End the clients, and return when they are gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@dataclass
class Measured:
    """Everything that was measured."""

    outcomes: list[Outcome] = field(default_factory=list)
    memory: list[dict[str, float]] = field(default_factory=list)
    """By number of clients: the broker's memory, and the kernel's."""
    ports_left_out: str = ""

    def figures(self) -> dict[str, Any]:
        """Return what is worth writing down."""
        return asdict(self)


def measure(options: Options, say: Say) -> Measured:
    """Run all settings."""
    options.check()
    machine.require("tshark")
    machine.require_root("capturing")
    measured = Measured()
    limit = options.limit
    say(f"a broker with {limit} descriptors")
    with Broker(QUIET, descriptors=limit) as broker:
        measured.outcomes.append(_fill("the broker may have few descriptors", limit, broker, 2 * limit))
    say(f"a broker with max_connections = {limit}")
    with Broker(QUIET | {"limits": {"max_connections": limit}}) as broker:
        name = "the broker is set to take few connections"
        measured.outcomes.append(_fill(name, limit, broker, 2 * limit, max_connections=limit))
    say(f"a client with {limit} descriptors")
    with Broker(QUIET) as broker:
        name = "the client's process may have few descriptors"
        measured.outcomes.append(_fill(name, limit, broker, 2 * limit, descriptors=limit))
    try:
        _ports(options, measured, say)
    except StudyError as error:
        measured.ports_left_out = str(error)
    say(f"{options.clients} clients")
    _many(options, measured, say)
    return measured


def _fill(
    setting: str,
    set_to: int | None,
    broker: Broker,
    wanted: int,
    sources: tuple[str, ...] = (),
    descriptors: int | None = None,
    max_connections: int = DEFAULT_MAX_CONNECTIONS,
) -> Outcome:
    """Let clients come in until something stops them, and see what it was."""
    port = broker.ports[0]
    with TemporaryDirectory(prefix="pyrite-study-") as folder:
        beginnings = f"tcp port {port} and tcp[tcpflags] & (tcp-syn|tcp-fin|tcp-rst) != 0"
        with LineClient("127.0.0.1", port) as witness, ExitStack() as leaving:
            with Capture(Path(folder) / "capture.pcapng", beginnings, seconds=120) as capture:
                crowd = leaving.enter_context(Crowd(port, wanted, 30, sources, descriptors))
                clients = crowd.clients + 1
                stopped_by = limit_of(crowd.stopped_by, broker, max_connections)
                taken, bound = broker.descriptors(), broker.descriptor_limit()
                published = _published(witness)
            wire = _wire(capture, port)
        recovered = _comes_in(port)
    return Outcome(
        setting, set_to, clients, stopped_by, crowd.stopped_by, taken, bound, published, recovered, wire
    )


def limit_of(seen: str, broker: Broker, max_connections: int) -> str:
    """Name the limit that stopped a client, from what it saw and what the broker says."""
    if not seen:
        return NOTHING
    what = seen.partition(": ")[2]
    if what in ("ENOMEM", "ENOBUFS"):
        return MEMORY
    named = {"socket: EMFILE": CLIENT_DESCRIPTORS, "socket: ENFILE": ALL_DESCRIPTORS, TIME: TIME}
    if seen in named:
        return named[seen]
    if what == "EADDRNOTAVAIL":
        return PORTS
    if what == "no answer" and broker.descriptors() >= broker.descriptor_limit() - 1:
        return BROKER_DESCRIPTORS
    if what in ("closed", "ECONNRESET", "EPIPE"):
        # It takes as many as it is set to, but no more than it has descriptors for.
        return MAX_CONNECTIONS if max_connections < broker.descriptor_limit() else BROKER_DESCRIPTORS
    return f"not known ({seen})"


def _published(witness: LineClient) -> str:
    """Publish with a client that is connected, and return the answer."""
    try:
        witness.publish("connections", b"is anyone there?")
    except LineError as error:
        return f"Error {error.code} {error}"
    except TimeoutError:
        return "no answer"
    return "PubAck"


def _comes_in(port: int) -> bool:
    """Tell whether a new client comes in, now or in a few seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            with LineClient("127.0.0.1", port, timeout=3) as client:
                client.ping()
                return True
        except (LineError, OSError):
            time.sleep(0.2)
    return False


def _wire(capture: Capture, port: int) -> dict[str, int]:
    """Count the packets that begin and end connections."""
    found = dict.fromkeys(("syn", "syn_ack", "fin_of_broker", "reset_of_broker"), 0)
    rows = capture.rows("tcp.srcport", "tcp.flags.syn", "tcp.flags.ack", "tcp.flags.fin", "tcp.flags.reset")
    for source, syn, ack, fin, reset in rows:
        ours = int(source) == port
        if syn in ("1", "True"):
            found["syn_ack" if ack in ("1", "True") else "syn"] += 1
        elif ours and reset in ("1", "True"):
            found["reset_of_broker"] += 1
        elif ours and fin in ("1", "True"):
            found["fin_of_broker"] += 1
    return found


def _ports(options: Options, measured: Measured, say: Say) -> None:
    """Have clients run out of ports, in a network namespace that has few; then give them more addresses."""
    machine.require("ip")
    first = 40_000
    for count, name in ((1, "one client address"), (4, "four client addresses")):
        say(f"{options.limit} ports, {name}")
        sources = tuple(f"127.0.0.{number}" for number in range(1, count + 1))
        # Each has a namespace of its own: ports of connections that have ended are not free at once.
        with Namespace(f"ports{count}") as namespace, namespace.entered():
            set_here("net.ipv4.ip_local_port_range", f"{first} {first + options.limit - 1}")
            with Broker(QUIET, ("line://127.0.0.1:1373",)) as broker:
                wanted = (count + 1) * options.limit
                outcome = _fill(f"few ports, {name}", count * options.limit, broker, wanted, sources)
                measured.outcomes.append(outcome)


def _many(options: Options, measured: Measured, say: Say) -> None:
    """Let in as many as are asked for, and look at the memory as they come."""
    deadline = time.monotonic() + options.seconds
    with Broker(QUIET) as broker:
        port = broker.ports[0]
        clients, seen = 1, ""
        with LineClient("127.0.0.1", port) as witness, ExitStack() as crowds:
            measured.memory.append(_look(clients, broker))
            while clients < options.clients and not seen:
                # Each process has an address of its own, so that ports are not what stops them.
                source = f"127.0.1.{1 + len(measured.memory) % 250}"
                left = max(1.0, deadline - time.monotonic())
                crowd = Crowd(port, min(STEP, options.clients - clients), left, (source,))
                crowds.enter_context(crowd)
                clients += crowd.clients
                seen = crowd.stopped_by or (TIME if time.monotonic() > deadline else "")
                measured.memory.append(_look(clients, broker))
                say(f"{clients} of {options.clients} clients")
            stopped_by = limit_of(seen, broker, DEFAULT_MAX_CONNECTIONS)
            taken, bound = broker.descriptors(), broker.descriptor_limit()
            published = _published(witness)
        recovered = _comes_in(port)
    measured.outcomes.append(
        Outcome("as many as come in", None, clients, stopped_by, seen, taken, bound, published, recovered)
    )


def _look(clients: int, broker: Broker) -> dict[str, float]:
    slabs = machine.slabs()
    return {
        "clients": clients,
        "broker": broker.memory(),
        "kernel": sum(slabs.get(kind, 0) for kind in KINDS),
    }
