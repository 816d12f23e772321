"""A publisher that does not stop and a reader that takes its time, over TCP, with numbered messages."""

from __future__ import annotations

import re
import socket
import threading
import time
from dataclasses import dataclass, field

STEP = 0.01
"""Seconds between two turns of a publisher."""
PIECE = 64 * 1024
"""Bytes that a reader who is in no hurry takes at a time, at most."""
ALIVE = 3.0
"""Seconds between two signs of life of a reader."""
_NUMBER = re.compile(rb"#(\d{10})#")
_MARK = 12
_TO_ACKNOWLEDGE = re.compile(rb" n=(\d+)\n")
SMALLEST = 32
"""Bytes of the smallest payload that holds a number."""


def publish_frames(head: bytes, first: int, count: int, size: int) -> list[bytes]:
    """Return frames `head`, each with a payload of `size` bytes that begins with its number."""
    padding = b"x" * (size - _MARK)
    return [b"%s\n#%010d#%s\n" % (head, number, padding) for number in range(first, first + count)]


@dataclass
class Tally:
    """Which of the numbered messages came."""

    count: int = 0
    """Messages that came, each counted once."""
    repeated: int = 0
    last: int = -1
    missing: int = 0
    """Numbers that were left out before the last one."""

    def take(self, data: bytes) -> None:
        """Note the messages in some bytes."""
        for found in _NUMBER.findall(data):
            self.note(int(found))

    def note(self, number: int) -> None:
        """Note a message."""
        if number <= self.last:
            self.repeated += 1
            return
        self.missing += number - self.last - 1
        self.last = number
        self.count += 1


@dataclass
class Timeline:
    """A figure over time."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """Note what the figure is now."""
        self.times.append(time.time())
        self.values.append(value)

    def since(self, start: float) -> list[float]:
        """Return the times as seconds from a start."""
        return [at - start for at in self.times]


class Publisher(threading.Thread):
    """Publishes `rate` messages a second over TCP until it is told to stop, or is held back."""

    def __init__(
        self, connected: socket.socket, topic: str, size: int, rate: int, acknowledged: bool
    ) -> None:
        super().__init__(name="publisher", daemon=True)
        self._socket = connected
        self._head = b"Publish %s %d" % (topic.encode(), size) + (b"" if acknowledged else b" noack")
        self._size = size
        self._rate = rate
        self._stop_now = threading.Event()
        self.sent = 0
        self.acknowledged = 0
        self.held_back = 0.0
        """The longest time, in seconds, that a write had to wait for the broker."""
        self.timeline = Timeline()
        self._answers = threading.Thread(target=self._read, name="answers", daemon=True)

    def run(self) -> None:
        """Publish."""
        self._answers.start()
        began = time.monotonic()
        self.timeline.add(0)
        while not self._stop_now.is_set():
            due = min(int((time.monotonic() - began) * self._rate) - self.sent, self._rate // 10 + 1)
            if due > 0:
                data = b"".join(publish_frames(self._head, self.sent, due, self._size))
                before = time.monotonic()
                self._socket.sendall(data)
                self.held_back = max(self.held_back, time.monotonic() - before)
                self.sent += due
                self.timeline.add(self.sent)
            time.sleep(STEP)

    def _read(self) -> None:
        """Count the acknowledgements."""
        rest = b""
        try:
            while data := self._socket.recv(256 * 1024):
                lines = (rest + data).split(b"\n")
                rest = lines.pop()
                self.acknowledged += sum(line.startswith(b"PubAck") for line in lines)
        except OSError:
            pass  # it was closed

    def stop(self) -> None:
        """Stop, when what is being sent is sent."""
        self._stop_now.set()
        self.join(30)

    def wait_for_acknowledgements(self, seconds: float) -> None:
        """Return when everything is acknowledged, or time is up."""
        deadline = time.monotonic() + seconds
        while self.acknowledged < self.sent and time.monotonic() < deadline:
            time.sleep(0.05)


class Reader(threading.Thread):
    """Reads what a subscriber is sent, `speed` bytes a second: None for all there is, 0 for nothing."""

    def __init__(self, connected: socket.socket, acknowledges: bool) -> None:
        super().__init__(name="reader", daemon=True)
        self._socket = connected
        self._acknowledges = acknowledges
        self.speed: int | None = None
        self._over = threading.Event()
        self.tally = Tally()
        self.bytes_read = 0
        self.timeline = Timeline()
        self.quiet_since = time.monotonic()
        self._rest = b""

    def run(self) -> None:
        """Read, and say now and then that this client is there."""
        self._socket.settimeout(0.05)
        said = noted = time.monotonic()
        try:
            while not self._over.is_set():
                now = time.monotonic()
                if now - said > ALIVE:
                    self._socket.sendall(b"Pong\n")
                    said = now
                if now - noted > 0.05:
                    self.timeline.add(self.tally.count)
                    noted = now
                self._read()
        except OSError:
            pass  # the broker has ended, or the study

    def _read(self) -> None:
        speed = self.speed
        if speed == 0:
            time.sleep(0.02)
            return
        # At a given speed, fifty reads a second.
        wanted = 1024 * 1024 if speed is None else max(1, min(PIECE, speed // 50))
        try:
            data = self._socket.recv(wanted)
        except TimeoutError:
            return
        if not data:
            self._over.set()
            return
        self._take(data)
        if speed is not None:
            time.sleep(len(data) / speed)

    def _take(self, data: bytes) -> None:
        self.bytes_read += len(data)
        self.quiet_since = time.monotonic()
        data = self._rest + data
        # Frames end with a line's end; what comes after the last is looked at with what comes next.
        whole = data.rfind(b"\n") + 1
        whole = data.rfind(b"x\n", 0, whole) + 2 if b"x\n" in data[:whole] else 0
        self._rest = data[whole:]
        self.tally.take(data[:whole])
        if self._acknowledges:
            numbers = _TO_ACKNOWLEDGE.findall(data[:whole])
            if numbers:
                self._socket.sendall(b"Ack " + b" ".join(numbers) + b"\n")

    def read_all(self, count: int, quiet: float, seconds: float) -> None:
        """Read as fast as can be, until so many messages came, or none for a while, or time is up."""
        self.quiet_since = time.monotonic()
        self.speed = None
        deadline = time.monotonic() + seconds
        while self.tally.count < count and time.monotonic() < min(self.quiet_since + quiet, deadline):
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop reading."""
        self._over.set()
        self.join(10)


def subscribe(connected: socket.socket, topic: str, acknowledges: bool) -> None:
    """Subscribe over TCP, and return when the broker has said so."""
    connected.sendall(b"Subscribe %s%s\n" % (topic.encode(), b" ack" if acknowledges else b""))
    answer = b""
    while not answer.endswith(b"\n"):
        piece = connected.recv(1)
        if not piece:
            break
        answer += piece
    if not answer.startswith(b"SubAck"):
        raise ConnectionError(f"the broker refused the subscription: {answer!r}")
