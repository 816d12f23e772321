"""The study of TCP flow control: what the windows do when the subscriber reads slowly, or not at all."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyrite.client.line import LineClient
from studies import machine
from studies.broker import Broker, dial
from studies.capture import Capture
from studies.load import SMALLEST, Publisher, Reader, Timeline, subscribe
from studies.machine import StudyError
from studies.namespace import Namespace, slow_link

TOPIC = "flow-control-tcp"
PHASES = (("fast", 0.2), ("slow", 0.3), ("stopped", 0.3), ("fast again", 0.2))
"""How the subscriber reads, and for which share of the time."""
RECEIVE_BUFFER = 1024 * 1024
"""Bytes that the subscriber asks for; left alone, a fast reader would be given ever more (tcp_rmem)."""
BURST = 16 * 1024
QUEUE = 64 * 1024
"""Bytes that the slow link takes at once, and that may wait before it."""
LINK_SETTINGS = {"limits": {"max_waiting_bytes": 2 * 1024 * 1024}}
"""So that what waits in the broker is through the slow link in a few seconds."""
INTERVAL = 0.1
"""Seconds between two looks at the broker's memory and at the kernel's sockets."""
DRAIN = 60.0
"""Seconds that everything may take to arrive at the end, at most."""
_FIELDS = (
    "frame.time_epoch",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.window_size",
    "tcp.analysis.bytes_in_flight",
    "tcp.len",
    "tcp.analysis.zero_window",
    "tcp.analysis.window_full",
    "tcp.analysis.keep_alive",
    "tcp.analysis.window_update",
    "tcp.analysis.retransmission",
)
# A sender that has no window asks with an empty segment whose number was acknowledged before: to tshark, a
# keep-alive, which these connections do not send otherwise.
EVENTS = ("zero_window", "window_full", "window_probe", "window_update", "retransmission")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How the study is run."""

    seconds: float = 10.0
    """For how long the publisher publishes, in each experiment."""
    size: int = 1_000
    """Bytes of a payload."""
    rate: int = 20_000
    """Messages a second."""
    speed: int = 1_000_000
    """Bytes a second that the slow reader reads, and that the slow link takes."""

    def check(self) -> None:
        """Raise StudyError if it cannot be run so."""
        if self.size < SMALLEST:
            raise StudyError(f"--size {self.size}: expected at least {SMALLEST} bytes")


@dataclass
class Hop:
    """One TCP connection in one direction, as it was captured."""

    windows: Timeline = field(default_factory=Timeline)
    """What the receiver said it had room for."""
    in_flight: Timeline = field(default_factory=Timeline)
    """What the sender had sent and had no acknowledgement of."""
    events: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in EVENTS})
    packets: int = 0
    sent: int = 0
    """Bytes that went over the wire, those that went twice included."""

    def figures(self) -> dict[str, Any]:
        """Return what is worth writing down."""
        return {
            "packets": self.packets,
            "bytes": self.sent,
            "window": span(self.windows.values),
            "bytes_in_flight": span(self.in_flight.values),
            "events": {name: len(times) for name, times in self.events.items()},
        }


@dataclass
class Experiment:
    """What was measured while one subscriber read."""

    kind: str
    """plain, ack or link."""
    start: float
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    """Name, beginning and end, in seconds since the start."""
    to_broker: Hop = field(default_factory=Hop)
    to_subscriber: Hop = field(default_factory=Hop)
    memory: Timeline = field(default_factory=Timeline)
    sockets: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    published: Timeline = field(default_factory=Timeline)
    delivered: Timeline = field(default_factory=Timeline)
    figures: dict[str, Any] = field(default_factory=dict)

    def phase(self, name: str) -> tuple[float, float]:
        """Return when a phase began and ended."""
        return next((begin, end) for phase, begin, end in self.phases if phase == name)

    def during(self, times: list[float], phase: str) -> int:
        """Return how many of some moments were in a phase."""
        begin, end = self.phase(phase)
        return sum(begin <= at - self.start <= end for at in times)

    def progress(self, timeline: Timeline, phase: str) -> int:
        """Return by how much a figure rose in a phase."""
        begin, end = self.phase(phase)
        pairs = zip(timeline.since(self.start), timeline.values, strict=True)
        found = [value for at, value in pairs if begin <= at <= end]
        return int(found[-1] - found[0]) if found else 0

    def limited(self, name: str, phase: str) -> float:
        """Return which share of a phase the sender was held back by something (`rwnd_limited`, ...)."""
        begin, end = self.phase(phase)
        found = [(at, one.get(name, 0.0)) for at, one in self.sockets if begin <= at - self.start <= end]
        if len(found) < 2 or found[-1][0] == found[0][0]:
            return 0.0
        return min(1.0, (found[-1][1] - found[0][1]) / 1_000 / (found[-1][0] - found[0][0]))


def span(values: list[float]) -> dict[str, float]:
    """Return the least, the median and the most of some values."""
    if not values:
        return {}
    ordered = sorted(values)
    return {"least": ordered[0], "median": ordered[len(ordered) // 2], "most": ordered[-1]}


def measure(options: Options, say: Say) -> tuple[list[Experiment], str]:
    """Run the experiments; return them, and why the slow link was left out, if it was."""
    options.check()
    machine.require("tshark", "ss")
    machine.require_root("capturing")
    done = []
    for kind, text in (("plain", "a subscription without `ack`"), ("ack", "a subscription with `ack`")):
        say(f"a slow reader, {text}")
        with Broker() as broker:
            done.append(_run(options, kind, broker))
    say("a slow link")
    try:
        machine.require("ip", "tc")
        with ExitStack() as stack:
            near, far = stack.enter_context(slow_link(options.speed, BURST, QUEUE))
            with near.entered():
                broker = stack.enter_context(Broker(LINK_SETTINGS, ("line://10.73.0.1:0",)))
            done.append(_run(options, "link", broker, near, far))
    except StudyError as error:
        return done, str(error)
    return done, ""


def _run(
    options: Options, kind: str, broker: Broker, near: Namespace | None = None, far: Namespace | None = None
) -> Experiment:
    """Publish for a while, and read as the phases say (over the slow link: as fast as it goes)."""
    acknowledges = kind == "ack"
    host, interface = ("127.0.0.1", "lo") if near is None else ("10.73.0.1", "near0")
    port = broker.ports[0]
    with ExitStack() as whole:
        path = Path(whole.enter_context(TemporaryDirectory(prefix="pyrite-study-"))) / "capture.pcapng"
        with ExitStack() as stack:
            with near.entered() if near else nullcontext():
                capture = Capture(path, f"tcp port {port}", interface, options.seconds + DRAIN + 30)
                stack.enter_context(capture)
                publishing = stack.enter_context(dial(port, host))
                asking = stack.enter_context(LineClient(host, port))
            with far.entered() if far else nullcontext():
                subscribed = stack.enter_context(dial(port, host, RECEIVE_BUFFER))
            subscribe(subscribed, TOPIC, acknowledges)
            reader = Reader(subscribed, acknowledges)
            publisher = Publisher(publishing, TOPIC, options.size, options.rate, acknowledges)
            ends = subscribed.getsockname()[1], publishing.getsockname()[1]
            experiment = Experiment(kind, time.time(), published=publisher.timeline)
            experiment.delivered = reader.timeline
            with _sampled(experiment, broker, port, ends[0], near):
                _go_through(experiment, options, publisher, reader, near is not None)
            experiment.figures = _figures(experiment, broker, asking, publisher, reader)
        _read(experiment, capture, port, *ends)
    return experiment


def _go_through(
    experiment: Experiment, options: Options, publisher: Publisher, reader: Reader, link: bool
) -> None:
    """Have the phases go by, then wait until everything has arrived that will."""
    reader.start()
    publisher.start()
    try:
        for name, share in (("link", 1.0),) if link else PHASES:
            reader.speed = {"slow": options.speed, "stopped": 0}.get(name)
            begin = time.time() - experiment.start
            time.sleep(share * options.seconds)
            experiment.phases.append((name, begin, time.time() - experiment.start))
    finally:
        publisher.stop()
    if publisher.is_alive():
        raise StudyError("the broker holds the publisher back for good")
    if experiment.kind == "ack":
        publisher.wait_for_acknowledgements(DRAIN)
    reader.read_all(publisher.sent, 2.0, DRAIN)
    reader.stop()


def _figures(
    experiment: Experiment, broker: Broker, asking: LineClient, publisher: Publisher, reader: Reader
) -> dict[str, Any]:
    told = broker.settled(asking, "publish/messages/received", "publish/messages/dropped")
    return {
        "kind": experiment.kind,
        "published": publisher.sent,
        "received_by_broker": int(told["publish/messages/received"]),
        "acknowledged": publisher.acknowledged,
        "publisher_held_back": round(publisher.held_back, 3),
        "delivered": reader.tally.count,
        "repeated": reader.tally.repeated,
        "dropped_by_broker": int(told["publish/messages/dropped"]),
        "bytes_read": reader.bytes_read,
        "memory": span(experiment.memory.values),
        "memory_at_start": experiment.memory.values[0],
    }


@contextmanager
def _sampled(
    experiment: Experiment, broker: Broker, port: int, reader: int, inside: Namespace | None
) -> Iterator[None]:
    """Look at the broker's memory and at its socket towards the subscriber, again and again."""
    over = threading.Event()

    def look() -> None:
        with inside.entered() if inside else nullcontext():
            while not over.wait(INTERVAL):
                experiment.memory.add(broker.memory())
                experiment.sockets.append((time.time(), socket_of(port, reader)))

    experiment.memory.add(broker.memory())
    looking = threading.Thread(target=look, name="samples", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join(10)


def socket_of(port: int, peer: int) -> dict[str, float]:
    """Return what `ss` tells of the connection from one port to another; times in milliseconds."""
    command = ["ss", "-tinHO", "state", "established", f"( sport = :{port} and dport = :{peer} )"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout  # noqa: S603
    words = text.split()
    if len(words) < 2:
        return {}
    found = {"receive_queue": float(words[0]), "send_queue": float(words[1])}
    for name, value in re.findall(r"\b([a-z_]+):(\d+(?:\.\d+)?)", text):
        found[name] = float(value)
    return found


def _read(experiment: Experiment, capture: Capture, port: int, reader: int, publisher: int) -> None:
    """Sort the packets of a capture by connection and direction."""
    server = str(port)
    directions = {  # who sends, who receives: the hop, and whether it is the way of its data
        (str(publisher), server): (experiment.to_broker, True),
        (server, str(publisher)): (experiment.to_broker, False),
        (server, str(reader)): (experiment.to_subscriber, True),
        (str(reader), server): (experiment.to_subscriber, False),
    }
    for at, source, target, window, in_flight, length, *flags in capture.rows(*_FIELDS):
        if (source, target) not in directions:
            continue
        hop, forward = directions[source, target]
        seconds = float(at)
        for name, flag in zip(EVENTS, flags, strict=True):
            # A receiver says that it has no room, or has room again; a sender has filled it, or asks.
            if flag and forward == (name in ("window_full", "window_probe", "retransmission")):
                hop.events[name].append(seconds)
        if forward:
            hop.packets += 1
            hop.sent += int(length or 0)
            if in_flight:
                hop.in_flight.times.append(seconds)
                hop.in_flight.values.append(float(in_flight))
        else:
            hop.windows.times.append(seconds)
            hop.windows.values.append(float(window))
    experiment.figures["capture_dropped"] = capture.dropped
    experiment.figures["to_broker"] = experiment.to_broker.figures()
    experiment.figures["to_subscriber"] = experiment.to_subscriber.figures()
    zero = experiment.to_subscriber.events["zero_window"]
    experiment.figures["phases"] = [
        {
            "name": name,
            "begin": round(begin, 2),
            "end": round(end, 2),
            "published": experiment.progress(experiment.published, name),
            "delivered": experiment.progress(experiment.delivered, name),
            "zero_windows": experiment.during(zero, name),
            "limited_by_receive_window": round(experiment.limited("rwnd_limited", name), 3),
        }
        for name, begin, end in experiment.phases
    ]
