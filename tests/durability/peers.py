"""Clients that keep their half of a session across connections, as real ones do.

One thread drives them all. A seeded random source makes every choice.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from tests.conformance.reader import Packet, read_packet, split
from tests.conformance.wire import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    ack_packet,
    connect_packet,
    publish_packet,
    subscribe_packet,
)

from .broker import LONG

LARGEST_ID = 65_535
STOPS = 0x8B
"""The reason of a DISCONNECT that says that the broker shuts down."""

dialled: set[Peer] = set()
"""Those who have a connection: for the end of a test, whatever became of it."""


class Peer:
    """A client with a persistent session that connects and disconnects."""

    def __init__(self, client_id: str, version: int = 5, receive_maximum: int = 0) -> None:
        self.client_id = client_id
        self.version = version
        self.receive_maximum = receive_maximum
        self.connected = False
        """Whether a CONNACK has come on the present connection."""
        self.socket: socket.socket | None = None
        self._known = False
        """Whether the broker ever said that there is a session."""
        self._in = b""
        self.out = bytearray()

    def dial(self, port: int) -> None:
        """Start to connect."""
        dialled.add(self)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        properties: dict[str, Any] = {"session_expiry_interval": LONG} if self.version == 5 else {}
        if self.version == 5 and self.receive_maximum:
            properties["receive_maximum"] = self.receive_maximum
        self._in = b""
        self.out = bytearray(connect_packet(self.client_id, version=self.version, clean=False, **properties))

    def hang_up(self) -> None:
        """Close the connection after reading everything that came."""
        if self.socket is not None:
            while self.read():
                pass
        self.drop()

    def drop(self) -> None:
        """Close the connection without reading the rest."""
        dialled.discard(self)
        if self.socket is not None:
            self.socket.close()
        self.socket = None
        self.connected = False

    def read(self) -> bool:
        """Read and handle what came; return whether there may be more."""
        assert self.socket is not None
        try:
            data = self.socket.recv(262_144)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self.drop()
            return False
        buffer = self._in + data if self._in else data
        at, end = 0, len(buffer)
        while at < end:
            found = split(buffer[at : at + 4_096]) or split(buffer[at:])
            if found is None:
                break
            first, body, used = found
            self._take(read_packet(first, body, used, self.version))
            at += used
        self._in = buffer[at:]
        return True

    def write(self) -> None:
        """Send as much as the connection accepts."""
        if self.socket is not None and self.out:
            try:
                del self.out[: self.socket.send(self.out)]
            except BlockingIOError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                self.out.clear()  # what the broker sent before is still to be read

    def _take(self, packet: Packet) -> None:
        if packet.kind == CONNACK:
            assert packet.reason == 0, packet
            assert not self.connected, "two CONNACKs"
            if self._known:
                assert packet.session_present, f"the session of {self.client_id!r} is gone"
            elif packet.session_present:
                self._known = True  # the CONNACK of before was lost in a crash
            self.connected = True
            self.begin(packet.session_present)
            self._known = True
        else:
            assert self.connected, f"before CONNACK came {packet}"
            if packet.kind != DISCONNECT or packet.reason != STOPS:
                self.take(packet)

    # What kinds of peers differ in

    def begin(self, present: bool) -> None:
        """Start the exchange on a new connection."""

    def take(self, packet: Packet) -> None:
        """Handle a packet."""
        raise AssertionError(f"{self.client_id!r} was sent {packet}")

    def go_on(self) -> None:
        """Send more, if there is any."""


class Publisher(Peer):
    """Publishes numbers, many at a time, until each is acknowledged."""

    def __init__(
        self, client_id: str, topic: str, qos: int, window: int, source: Random, version: int = 5
    ) -> None:
        super().__init__(client_id, version)
        self.topic = topic
        self.qos = qos
        self.window = window
        self.published = 0
        """How many numbers were ever sent; the first is 0."""
        self.limit = 0
        """How many to send at present."""
        self.unfinished: dict[int, tuple[int, bool]] = {}
        """By packet id: the number, and whether the broker is known to have it (PUBREC)."""
        self.acknowledged: set[int] = set()
        """Numbers for which PUBACK or PUBREC came."""
        self.resent: set[int] = set()
        self._repeated: set[int] = set()
        """Ids for which PUBREL was sent again."""
        self._next_id = 1
        self._source = source

    @property
    def finished(self) -> bool:
        """Whether everything is sent and acknowledged."""
        return not self.unfinished and self.published >= self.limit

    def begin(self, present: bool) -> None:
        self._repeated.clear()
        for packet_id, (number, released) in self.unfinished.items():
            if released and present:
                self._repeated.add(packet_id)
                self.out += ack_packet(PUBREL, packet_id)
            else:
                self.resent.add(number)
                self.out += self._packet(number, packet_id, dup=True)

    def take(self, packet: Packet) -> None:
        number, released = self.unfinished.get(packet.packet_id, (-1, False))
        # To the PUBREL of before the crash the broker may say that the exchange is over: 0x92.
        good = (0x00, 0x92) if packet.kind == PUBCOMP and packet.packet_id in self._repeated else (0x00, 0x10)
        assert packet.reason in good, f"number {number}: {packet}"
        if packet.kind == PUBACK and self.qos == 1:
            assert number >= 0, f"unasked: {packet}"
            del self.unfinished[packet.packet_id]
            self.acknowledged.add(number)
        elif packet.kind == PUBREC and self.qos == 2:
            assert number >= 0, f"unasked: {packet}"
            self.unfinished[packet.packet_id] = (number, True)
            self.acknowledged.add(number)
            self.out += ack_packet(PUBREL, packet.packet_id)
        elif packet.kind == PUBCOMP and self.qos == 2:
            assert released, f"out of turn: {packet}"
            del self.unfinished[packet.packet_id]
            self._repeated.discard(packet.packet_id)
        else:
            super().take(packet)

    def go_on(self) -> None:
        while self.published < self.limit and len(self.unfinished) < self.window:
            while self._next_id in self.unfinished:
                self._next_id = self._next_id % LARGEST_ID + 1
            self.unfinished[self._next_id] = (self.published, False)
            self.out += self._packet(self.published, self._next_id, dup=False)
            self.published += 1
            self._next_id = self._next_id % LARGEST_ID + 1

    def _packet(self, number: int, packet_id: int, dup: bool) -> bytes:
        return publish_packet(
            self.topic, payload(number), qos=self.qos, packet_id=packet_id, dup=dup, version=self.version
        )


def payload(number: int) -> bytes:
    """Return a number as a payload: runs of equal sizes alternate with runs of different sizes."""
    return b"%08d" % number + bytes(number % 97 if number // 50 % 2 else 24)


def number_of(payload: bytes) -> int:
    return int(payload[:8])


class Subscriber(Peer):
    """Receives numbers and acknowledges them, some at once and some late."""

    def __init__(
        self, client_id: str, topic_filter: str, qos: int, source: Random, version: int = 5,
        receive_maximum: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(client_id, version, receive_maximum)
        self.filter = topic_filter
        self.qos = qos
        self.properties: dict[str, Any] = {}
        """Those of its SUBSCRIBE."""
        self.arrived: dict[str, dict[int, int]] = {}
        """By topic: how often each number came (with QoS 2: under a new id), in order of the first time."""
        self.doubles: list[tuple[str, int]] = []
        """What came again as if for the first time: with QoS 1, and after a crash of the broker, right."""
        self.subscribed = False
        self._source = source
        self._half: set[int] = set()
        """Ids of QoS 2 messages that came and are not released."""
        self._unanswered: dict[int, None] = {}
        """Ids of messages on this connection whose exchange is not over."""
        self._answers: list[tuple[int, int]] = []
        """Acknowledgements that wait to be sent."""

    def begin(self, present: bool) -> None:
        self._answers.clear()
        self._unanswered.clear()
        if not present:
            self._half.clear()
        if not self.subscribed:
            self.out += subscribe_packet(
                1, [(self.filter, self.qos)], version=self.version, **self.properties
            )

    def take(self, packet: Packet) -> None:
        if packet.kind == PUBLISH and packet.qos:
            self._message(packet)
        elif packet.kind == PUBLISH:
            self._count(packet)
        elif packet.kind == PUBREL:
            self._half.discard(packet.packet_id)
            self._answers.append((PUBCOMP, packet.packet_id))
        elif packet.kind == SUBACK:
            assert packet.reasons == (self.qos,)
            self.subscribed = True
        else:
            super().take(packet)

    def _message(self, packet: Packet) -> None:
        packet_id = packet.packet_id
        assert packet_id not in self._unanswered, f"{self.client_id!r}: its id is taken: {packet}"
        self._unanswered[packet_id] = None
        if self.receive_maximum:
            assert len(self._unanswered) <= self.receive_maximum, f"more than may be in flight: {packet}"
        if packet.qos == 1:
            self._count(packet)
            self._answers.append((PUBACK, packet_id))
            return
        if packet_id not in self._half:
            self._half.add(packet_id)
            self._count(packet)
        else:
            assert packet.dup, f"{self.client_id!r}: a new message under an id in use: {packet}"
        self._answers.append((PUBREC, packet_id))

    def go_on(self) -> None:
        if not self._answers or self._source.random() < 0.6:
            return
        count = self._source.randint(1, len(self._answers))
        for kind, packet_id in self._answers[:count]:
            if kind != PUBREC:
                self._unanswered.pop(packet_id, None)
            self.out += ack_packet(kind, packet_id)
        del self._answers[:count]

    def _count(self, packet: Packet) -> None:
        numbers = self.arrived.setdefault(packet.topic, {})
        number = number_of(packet.payload)
        if number in numbers and not packet.dup:
            self.doubles.append((packet.topic, number))
        numbers[number] = numbers.get(number, 0) + 1

    def firsts(self, topic: str) -> list[int]:
        """Return the distinct numbers of a topic in the order of their first arrival."""
        return list(self.arrived.get(topic, ()))

    def repetitions(self, topic: str) -> set[int]:
        """Return the numbers of a topic that came more than once."""
        return {number for number, count in self.arrived.get(topic, {}).items() if count > 1}

    def count(self, topic: str) -> int:
        """Return the count of distinct numbers of a topic."""
        return len(self.arrived.get(topic, ()))


def drive(peers: Sequence[Peer], seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
    """Run the connected peers; return whether `until` became true in time."""
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            if peer.socket is not None:
                selector.register(peer.socket, selectors.EVENT_READ, peer)
        while not until():
            left = end - time.monotonic()
            if left <= 0:
                return False
            for key, _ in selector.select(min(left, 0.005)):
                peer = key.data
                peer.read()
                if peer.socket is None:
                    raise AssertionError(f"the broker closed the connection of {peer.client_id!r}")
            _advance(peers)
    return True


def _advance(peers: Iterable[Peer]) -> None:
    for peer in peers:
        if peer.connected and not peer.out:
            peer.go_on()
        peer.write()
