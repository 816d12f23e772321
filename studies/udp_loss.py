"""The study of loss: a subscriber that never reads against a publisher that never stops, over UDP and TCP."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyrite.client.line import LineClient
from studies import machine
from studies.broker import Broker, dial
from studies.capture import Capture
from studies.load import SMALLEST, STEP, Publisher, Reader, Timeline, publish_frames, subscribe
from studies.machine import StudyError
from studies.udp_raw import PIECES_AT_ONCE, Raw, raw_tcp, raw_udp

TOPIC = "udp-loss"
LARGEST = 60_000
"""Bytes of the largest payload that fits into a datagram with its line."""
INTERVAL = 0.1
ALIVE = 3.0
"""Seconds between two signs of life of a client that reads nothing."""
FLOOD = 2.0
"""Seconds of the flood, at most: it is as fast as the sender can."""
DRAIN = 60.0
_FIGURES = ("publish/messages/received", "publish/messages/dropped", "publish/messages/sent")
_NUMBERED = re.compile(rb"Message \S+ \d+ n=(\d+)\S*[^\n]*\n#(\d{10})#")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How the study is run."""

    seconds: float = 5.0
    """For how long is published, in each experiment."""
    size: int = 1_000
    """Bytes of a payload."""
    rate: int = 5_000
    """Messages a second."""

    def check(self) -> None:
        """Raise StudyError if it cannot be run so."""
        if not SMALLEST <= self.size <= LARGEST:
            raise StudyError(f"--size {self.size}: expected a number from {SMALLEST} to {LARGEST}")


@dataclass
class Run:
    """Messages through the broker: how many there were in each place."""

    name: str
    protocol: str
    sent: int = 0
    """By the publisher."""
    sent_on_the_wire: int = 0
    """UDP: datagrams with a Publish in the capture."""
    dropped_before_broker: int = 0
    """UDP: at the broker's socket, as its buffer was full."""
    handled: int = 0
    """By the broker: it has them in its log."""
    acknowledged: int = 0
    """PubAcks that the publisher saw."""
    acknowledgements_dropped: int = 0
    """UDP: at the publisher's socket."""
    dropped_by_broker: int = 0
    """As too much waited for the subscriber; the broker counts them."""
    transmitted: int = 0
    """Messages that were sent to the subscriber, each counted once."""
    datagrams: int = 0
    """UDP: datagrams to the subscriber in the capture, those that were sent again included."""
    datagrams_read: int = 0
    """UDP: read by the subscriber, in the end from what its buffer had kept."""
    datagrams_dropped: int = 0
    """UDP: at the subscriber's socket, as its buffer was full."""
    received: int = 0
    """Messages that the subscriber has read in the end, each counted once."""
    capture_dropped: int = 0
    memory_at_start: int = 0
    memory_most: int = 0
    memory: Timeline = field(default_factory=Timeline)
    start: float = 0.0

    @property
    def ignored(self) -> int:
        """Datagrams that reached the broker and were not handled: the disk was behind."""
        return self.sent - self.dropped_before_broker - self.handled

    @property
    def waiting(self) -> int:
        """Messages that waited in the broker in the end."""
        return self.handled - self.transmitted - self.dropped_by_broker

    def figures(self) -> dict[str, Any]:
        """Return what is worth writing down."""
        found = {key: value for key, value in asdict(self).items() if key not in ("memory", "start")}
        return found | {"ignored": self.ignored, "waiting": self.waiting}


class DatagramClient:
    """A client over UDP that reads only what it is told to."""

    def __init__(self, port: int, name: str) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", port))
        self.socket.settimeout(5)
        self.port: int = self.socket.getsockname()[1]
        self.read = 0
        """Datagrams that were read."""
        self.seen: set[bytes] = set()
        """Numbers of the messages that came."""
        self.acknowledged = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.ask(b"Connect %s\n" % name.encode(), b"Ack Connect")

    def ask(self, command: bytes, expected: bytes) -> None:
        """Send a command, and return when it is answered."""
        self.socket.send(command)
        while not (answer := self._receive()).startswith(expected):
            if answer.startswith(b"Ping "):
                self.socket.send(answer.replace(b"Ping", b"Pong"))

    def _receive(self) -> bytes:
        data = self.socket.recv(65_536)
        self.read += 1
        return data

    def go(self, work: Callable[[threading.Event], None]) -> None:
        """Do something in a thread until `stop`."""
        self._over.clear()
        self._thread = threading.Thread(target=work, args=(self._over,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End what `go` began."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(10)

    def say_that_it_lives(self, over: threading.Event) -> None:
        """Read nothing, and say now and then that this client is there."""
        while not over.wait(ALIVE):
            self.socket.send(b"Pong\n")

    def read_messages(self, over: threading.Event, rate: float = 0) -> None:
        """Read messages and acknowledge them, so many a second, or all that come."""
        self.socket.settimeout(0.1)
        while not over.is_set():
            if rate:
                time.sleep(1 / rate)
            try:
                self._take(self._receive())
            except TimeoutError:
                continue

    def read_answers(self, over: threading.Event) -> None:
        """Count acknowledgements."""
        self.socket.settimeout(0.1)
        while not over.is_set():
            try:
                self.acknowledged += self._receive().startswith(b"PubAck")
            except TimeoutError:
                continue

    def _take(self, data: bytes) -> None:
        found = _NUMBERED.match(data)
        if found is not None:
            self.seen.add(found[2])
            self.socket.send(b"Ack %s\n" % found[1])

    def read_what_was_kept(self) -> None:
        """Read what is in the buffer, without an answer."""
        self.socket.setblocking(False)
        while True:
            try:
                found = _NUMBERED.match(self._receive())
            except OSError:  # there is no more; or it is told that the broker is gone
                if not machine.udp_waiting(self.port):
                    return
                continue
            if found is not None:
                self.seen.add(found[2])


def measure(options: Options, say: Say) -> tuple[list[Raw], list[Run]]:
    """Run all experiments."""
    options.check()
    machine.require("tshark")
    machine.require_root("capturing")
    raw: list[Raw] = []
    with TemporaryDirectory(prefix="pyrite-study-") as name:
        folder = Path(name)
        for experiment, text in ((raw_udp, "UDP"), (raw_tcp, "TCP")):
            say(f"plain {text}, without a broker")
            raw.append(experiment(options.seconds, options.size, options.rate, folder))
    runs = []
    for name in ("never", "flood", "slow", "ack"):
        say(f"UDP through the broker: {name}")
        runs.append(through_udp(options, name))
    for name in ("never", "ack"):
        say(f"TCP through the broker: {name}")
        runs.append(through_tcp(options, name))
    return raw, runs


@contextmanager
def _watched(run: Run, broker: Broker) -> Iterator[None]:
    """Look at the broker's memory, again and again."""
    over = threading.Event()
    run.start = time.time()
    run.memory.add(broker.memory())

    def look() -> None:
        while not over.wait(INTERVAL):
            run.memory.add(broker.memory())

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join(10)
        run.memory_at_start, run.memory_most = int(run.memory.values[0]), int(max(run.memory.values))


def _publish(run: Run, publisher: DatagramClient, options: Options) -> None:
    """Send datagrams at the rate that is wanted, or as fast as it goes."""
    flood = run.name == "flood"
    head = b"Publish %s %d%s" % (TOPIC.encode(), options.size, b" noack" if flood else b"")
    seconds = min(FLOOD, options.seconds) if flood else options.seconds
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        due = 200 if flood else min(int(passed * options.rate) - run.sent, PIECES_AT_ONCE)
        for frame in publish_frames(head, run.sent, due, options.size):
            publisher.socket.send(frame)
            run.sent += 1
        if not flood:
            time.sleep(STEP)


def through_udp(options: Options, name: str) -> Run:
    """Publish and subscribe over UDP: the subscriber never reads, or slowly, or only in the end (`ack`)."""
    run = Run(name, "UDP")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pyrite-study-")))
        broker = stack.enter_context(Broker())
        port = broker.ports[1]
        with Capture(folder / "udp.pcapng", f"udp port {port}", seconds=180) as capture:
            publisher, subscriber = DatagramClient(port, "publisher"), DatagramClient(port, "subscriber")
            stack.callback(publisher.socket.close)
            stack.callback(subscriber.socket.close)
            asking = LineClient("127.0.0.1", broker.ports[0])
            stack.callback(asking.close)
            subscriber.ask(
                b"Subscribe %s%s\n" % (TOPIC.encode(), b" ack" if name == "ack" else b""), b"SubAck"
            )
            with _watched(run, broker):
                publisher.go(publisher.read_answers)
                if name == "slow":
                    subscriber.go(lambda over: subscriber.read_messages(over, options.rate / 10))
                else:
                    subscriber.go(subscriber.say_that_it_lives)
                _publish(run, publisher, options)
                if name == "ack":
                    _let_it_read(subscriber, run.sent)
                subscriber.stop()
                told = broker.settled(asking, *_FIGURES)
                publisher.stop()
                run.dropped_before_broker = machine.udp_drops(port)
            asking.close()
            broker.stop()
        run.acknowledgements_dropped = machine.udp_drops(publisher.port)
        run.datagrams_dropped = machine.udp_drops(subscriber.port)
        for client in (publisher, subscriber):
            client.read_what_was_kept()
        _count(run, told, publisher, subscriber, capture)
    return run


def _let_it_read(subscriber: DatagramClient, count: int) -> None:
    """Have the subscriber read until it has so many messages, or nothing new has come for a while."""
    subscriber.stop()
    subscriber.go(subscriber.read_messages)
    deadline = time.monotonic() + DRAIN
    before, since = -1, time.monotonic()
    quiet = 6.0  # a message is sent again after 5 s at the latest
    while len(subscriber.seen) < count and time.monotonic() < min(since + quiet, deadline):
        if len(subscriber.seen) != before:
            before, since = len(subscriber.seen), time.monotonic()
        time.sleep(0.1)


def _count(
    run: Run, told: dict[str, float], publisher: DatagramClient, subscriber: DatagramClient, capture: Capture
) -> None:
    _note(run, told)
    run.acknowledged = publisher.acknowledged
    run.datagrams_read = subscriber.read
    run.received = len(subscriber.seen)
    run.capture_dropped = capture.dropped
    source, target = str(publisher.port), str(subscriber.port)
    beginning = b"Publish".hex()
    for sender, receiver, data in capture.rows("udp.srcport", "udp.dstport", "data.data"):
        run.sent_on_the_wire += sender == source and data.startswith(beginning)
        run.datagrams += receiver == target


def through_tcp(options: Options, name: str) -> Run:
    """Do the same over TCP: the subscriber reads nothing while is published, and then all there is."""
    run = Run(name, "TCP")
    acknowledges = name == "ack"
    with Broker() as broker, ExitStack() as stack:
        port = broker.ports[0]
        subscribed = stack.enter_context(dial(port))
        publishing = stack.enter_context(dial(port))
        asking = stack.enter_context(LineClient("127.0.0.1", port))
        subscribe(subscribed, TOPIC, acknowledges)
        reader = Reader(subscribed, acknowledges)
        reader.speed = 0
        publisher = Publisher(publishing, TOPIC, options.size, options.rate, acknowledged=True)
        with _watched(run, broker):
            reader.start()
            publisher.start()
            time.sleep(options.seconds)
            publisher.stop()
            publisher.wait_for_acknowledgements(DRAIN)
            reader.read_all(publisher.sent, 2.0, DRAIN)
            reader.stop()
        _note(run, broker.settled(asking, *_FIGURES))
    run.sent, run.acknowledged, run.received = publisher.sent, publisher.acknowledged, reader.tally.count
    return run


def _note(run: Run, told: dict[str, float]) -> None:
    """Note what the broker says."""
    run.handled, run.dropped_by_broker, run.transmitted = (int(told[name]) for name in _FIGURES)
