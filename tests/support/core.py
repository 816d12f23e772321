"""A broker without sockets: clients on transports that record bytes, and a clock that the test advances.

core = Core()
alice = core.connect("alice")
alice.subscribe("a/#", qos=1)
core.connect("bob").publish("a/b", b"hello", qos=1)
assert alice.payloads() == [b"hello"]
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pyrite.broker.access import Access
from pyrite.broker.catalog import TopicOptions
from pyrite.broker.core import Broker
from pyrite.broker.limits import Limits
from pyrite.broker.quotas import QuotaOptions
from pyrite.journal.disk import DiskJournal
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.connection import Connection
from pyrite.protocols.mqtt.merging import Merger
from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Ping,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
    WillMessage,
    Wish,
    decode,
    encode,
)

__all__ = ["V5", "V31", "V311", "Client", "Core", "RecordingTransport", "no_internal_errors", "split"]

Kind = TypeVar("Kind")


class RecordingTransport:
    """A transport that records what is written. Raise `waiting` to act as a client that reads slowly."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.waiting = 0
        """Unread bytes as reported to the broker."""
        self.slow = False
        """Whether everything written from now on counts as unread."""
        self.paused = False
        """Whether the connection has paused reading."""
        self.input_ended = False
        """Whether the client has closed its side."""
        self.closed = False
        self.aborted = False

    def write(self, data: bytes | bytearray) -> None:
        assert not self.closed, f"written after close: {bytes(data)!r}"
        self.written += data
        if self.slow:
            self.waiting += len(data)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the client has not read."""
        return self.waiting

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def input_has_ended(self) -> bool:
        return self.input_ended

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


def split(data: bytes) -> list[tuple[int, bytes]]:
    """Split bytes into complete packets, as (first byte, body)."""
    packets = []
    at = 0
    while at < len(data):
        first = data[at]
        at += 1
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        assert at + length <= len(data), "a packet is cut short"
        packets.append((first, data[at : at + length]))
        at += length
    return packets


def topic_bytes(topic: str | bytes) -> bytes:
    """Return a topic as bytes."""
    return topic if isinstance(topic, bytes) else topic.encode()


class Client:
    """One client: a Connection on a transport that records what the broker sends."""

    def __init__(self, core: Core, version: int = V5, address: str = "127.0.0.1") -> None:
        self.core = core
        self.version = version
        self.transport = RecordingTransport()
        self.connection = Connection(core.broker, core.options, self.transport, address)
        self.connack: Connack | None = None
        self._next_id = 0

    @property
    def closed(self) -> bool:
        """Whether the broker has closed the connection."""
        return self.transport.closed

    # Sending

    def send(self, *packets: Packet | bytes) -> None:
        """Send packets in one piece, and flush the broker."""
        self.feed(self.encoded(*packets))
        self.core.flush()

    def feed(self, data: bytes) -> None:
        """Feed bytes to the connection without a flush, as the poller of plain sockets does."""
        if data:
            self.core.merger.feed(self.connection, data)
        else:
            self.connection.feed(data)

    def encoded(self, *packets: Packet | bytes) -> bytes:
        """Return packets as bytes in this client's version."""
        return b"".join(p if isinstance(p, bytes) else encode(p, self.version) for p in packets)

    def packet_id(self) -> int:
        """Return an unused packet id."""
        self._next_id += 1
        return self._next_id

    def connect(
        self,
        client_id: str = "",
        clean_start: bool = True,
        keep_alive: int = 0,
        will: WillMessage | None = None,
        username: str | None = None,
        password: bytes | None = None,
        **properties: Any,
    ) -> Connack:
        """Send a CONNECT and return the CONNACK."""
        self.send(
            Connect(client_id, self.version, clean_start, keep_alive, will, username, password, properties)
        )
        # Messages that waited for the session may follow the CONNACK: they stay to be received.
        data = bytes(self.transport.written)
        first, body = split(data)[0]
        connack = decode(first, body, self.version)
        assert isinstance(connack, Connack)
        del self.transport.written[: len(encode(connack, self.version))]
        self.connack = connack
        return connack

    def subscribe(
        self,
        *filters: str | Wish,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        **properties: Any,
    ) -> list[int]:
        """Subscribe and return the reason codes; retained messages stay to be received."""
        wishes = [
            Wish(f.encode(), qos, no_local, retain_as_published, retain_handling) if isinstance(f, str) else f
            for f in filters
        ]
        packet_id = self.packet_id()
        self.send(Subscribe(packet_id, wishes, properties))
        return self._results(fields.SUBACK, packet_id)

    def unsubscribe(self, *filters: str) -> list[int]:
        """Unsubscribe and return the reason codes."""
        packet_id = self.packet_id()
        self.send(Unsubscribe(packet_id, [f.encode() for f in filters]))
        return self._results(fields.UNSUBACK, packet_id)

    def _results(self, kind: int, packet_id: int) -> list[int]:
        data = bytes(self.transport.written)
        rest = bytearray()
        results: list[int] | None = None
        for first, body in split(data):
            packet = decode(first, body, self.version)
            if isinstance(packet, Suback) and packet.type == kind and packet.packet_id == packet_id:
                results = packet.reasons
            else:
                rest += bytes((first,)) + fields.varint(len(body)) + body
        assert results is not None, f"no answer in {data!r}"
        self.transport.written[:] = rest
        return results

    def publish(
        self,
        topic: str | bytes,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        **properties: Any,
    ) -> int:
        """Publish a message and return its packet id, 0 for QoS 0."""
        if qos and not packet_id:
            packet_id = self.packet_id()
        self.send(Publish(topic_bytes(topic), payload, qos, retain, dup, packet_id, properties))
        return packet_id

    def ack(self, kind: int, *packet_ids: int, reason: int = 0) -> None:
        """Send PUBACK, PUBREC, PUBREL or PUBCOMP for messages."""
        self.send(*(Ack(kind, packet_id, reason) for packet_id in packet_ids))

    def ping(self) -> bool:
        """Whether the broker answers a PINGREQ; other packets stay to be received."""
        self.send(Ping(fields.PINGREQ))
        if not self.transport.written.endswith(b"\xd0\x00"):
            return False
        del self.transport.written[-2:]
        return True

    def disconnect(self, reason: int = 0, **properties: Any) -> None:
        self.send(Disconnect(reason, properties))
        self.drop()

    def drop(self) -> None:
        """Lose the connection."""
        self.connection.lost()
        self.core.flush()

    def take_all(self) -> None:
        """Read everything, as a slow client does in the end."""
        self.transport.waiting = 0
        self.transport.slow = False
        self.connection.drained()
        self.core.flush()

    # Receiving

    def received(self) -> list[Packet]:
        """Return the packets that came since the last call."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return [decode(first, body, self.version) for first, body in split(data)]

    def messages(self) -> list[Publish]:
        """Return the messages that came; drop all other packets."""
        return [packet for packet in self.received() if isinstance(packet, Publish)]

    def payloads(self) -> list[bytes]:
        """Return the payloads of the messages that came."""
        return [message.payload for message in self.messages()]

    def only(self, kind: type[Kind]) -> Kind:
        """Return the only packet that came, which must be of this kind."""
        packets = self.received()
        assert len(packets) == 1, packets
        assert isinstance(packets[0], kind), packets
        return packets[0]

    def finish(self, messages: Sequence[Publish] | None = None) -> list[Publish]:
        """Complete the exchange of messages, by default of those that came, and return them."""
        messages = self.messages() if messages is None else messages
        for message in messages:
            if message.qos == 1:
                self.ack(fields.PUBACK, message.packet_id)
            elif message.qos == 2:
                self.ack(fields.PUBREC, message.packet_id)
                self.ack(fields.PUBCOMP, message.packet_id)
        return list(messages)


class Core:
    """A broker without a server: the test is its event loop and its clock.

    With a journal, a flush gives every interrupted client its turns, which settles commits.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        access: Access | None = None,
        options: MqttOptions | None = None,
        clock: Callable[[], float] | None = None,
        journal: DiskJournal | None = None,
        now: float = 1000.0,
        topics: TopicOptions | None = None,
        quotas: QuotaOptions | None = None,
    ) -> None:
        self.options = options or MqttOptions()
        self.journal = journal
        self.rounds: int | None = None
        """Rounds of turns that there are with each flush; None for as many as it takes."""
        self.broker = Broker(
            limits, access, clock=clock or (lambda: 0.0), journal=journal, topics=topics, quotas=quotas
        )
        self.merger = Merger(self.broker)
        self.broker.tick(now)
        if journal is not None:
            journal.restore(self.broker)

    def flush(self) -> None:
        """Flush the broker, and give interrupted clients their turns if there is a journal."""
        self.merger.publish()
        self.broker.output.flush()
        if self.journal is None:
            return
        turns = 0
        while self.broker.turns.has_work and turns != self.rounds:
            turns += 1
            assert turns < 10_000, "someone is interrupted for ever"
            self.broker.turns.take()
            self.broker.output.flush()

    def wire(self, version: int = V5) -> Client:
        """Return a client that has not sent CONNECT."""
        return Client(self, version)

    def connect(self, client_id: str = "", version: int = V5, **wishes: Any) -> Client:
        client = Client(self, version)
        connack = client.connect(client_id, **wishes)
        assert connack.reason == 0, connack
        return client

    def tick(self, seconds: float) -> None:
        self.broker.tick(self.broker.now + seconds)
        self.flush()


class _Alarm(logging.Handler):
    """Raises AssertionError at the place that logs an error."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        raise AssertionError(record.getMessage()) from error


@contextmanager
def no_internal_errors() -> Iterator[None]:
    """Fail as soon as the broker logs an error. The broker catches its exceptions; tests must see them."""
    alarm = _Alarm(logging.ERROR)
    logger = logging.getLogger("pyrite")
    logger.addHandler(alarm)
    try:
        yield
    finally:
        logger.removeHandler(alarm)
