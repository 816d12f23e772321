"""The client's side of MQTT 5.0 and 3.1.1 without I/O: bytes in, events out; calls in, bytes out.

One Protocol outlives its connections, as a session does: `connect` begins one, `lost` ends it, and what was
not acknowledged goes out again with the next.

    protocol = Protocol()
    protocol.connect(Connect("me"))
    socket.sendall(protocol.take())
    for event in protocol.receive(socket.recv(65536)): ...
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from pyrite.client.errors import PublishError
from pyrite.client.message import Message, Properties
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import (
    V5,
    Ack,
    Connack,
    Connect,
    Disconnect,
    Ping,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
    Wish,
    decode,
    encode,
)
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, malformed, violation

OLDER_WINDOW = 20
"""QoS 1 and 2 messages in flight towards a broker of 3.1.1, which has no way to say how many it takes.

It is what mosquitto takes: of more QoS 2 messages at once, it acknowledges all and delivers some."""
MUCH_OUTPUT = 500
"""Packets."""
_LARGEST_ID = 65_535
_KNOWN_TOPICS = 1_000
_RESTRICTIONS = ("maximum_packet_size", "maximum_qos", "retain_available")
_PUBACK, _PUBREC = b"\x40\x02", b"\x50\x02"


class Outgoing:
    """A message on its way to the broker."""

    __slots__ = ("first", "note", "packet_id", "payload", "properties", "released", "sent", "topic")

    def __init__(self, first: int, topic: bytes, payload: bytes, properties: bytes) -> None:
        self.first = first
        """The first byte of the packet, without DUP."""
        self.topic = topic
        self.payload = payload
        self.properties = properties
        """Encoded, with their length; nothing at all in 3.1.1."""
        self.packet_id = 0
        self.sent = False
        self.released = False
        """Whether the broker has said PUBREC: the message is its own now."""
        self.note: Any = None
        """Whatever the caller wants to find again when the message is settled."""


@dataclass(slots=True)
class Connected:
    """The broker accepted; a CONNACK that refuses comes as Refusal."""

    connack: Connack


@dataclass(slots=True)
class Refusal:
    """The broker did not accept."""

    connack: Connack


@dataclass(slots=True)
class Settled:
    """A QoS 1 or 2 message is done with: taken by the broker, or refused (a reason of 0x80 or more)."""

    outgoing: Outgoing
    reason: int = 0
    text: str = ""


@dataclass(slots=True)
class Answered:
    """The answer to a SUBSCRIBE or UNSUBSCRIBE."""

    packet_id: int
    reasons: list[int]
    text: str


@dataclass(slots=True)
class Ended:
    """The broker sent DISCONNECT."""

    reason: int
    text: str


Event = Connected | Refusal | Message | Settled | Answered | Ended


class Protocol:
    """A session with a broker, and the connection that it has at the time, if any."""

    def __init__(self, version: int = V5) -> None:
        self.version = version
        self.connected = False
        self.connection = 0
        """The number of the connection; acknowledgements count only on the one that brought the message."""
        self.capabilities: Properties = {}
        """The properties of the last CONNACK."""
        self._restricted = False
        """Whether the broker has said that it does not take every message."""
        self._five = version == V5
        self._window = 0
        self._input = b""
        self._output: list[bytes] = []
        self._last_id = 0
        self._in_flight: dict[int, Outgoing] = {}
        self._queue: deque[Outgoing] = deque()
        self._requests: dict[int, Subscribe | Unsubscribe] = {}
        self._received: set[int] = set()
        """QoS 2 messages that have been handed out and not been released."""
        self._topics: dict[str, bytes] = {}
        self.pings_unanswered = 0

    # The connection.

    def connect(self, packet: Connect) -> None:
        """Begin a connection."""
        self.lost()
        self.connection += 1
        self._output.append(encode(packet, self.version))

    def lost(self) -> None:
        """Take note that the connection is gone."""
        self.connected = False
        self._input = b""
        self._output.clear()
        self.pings_unanswered = 0

    def disconnect(self, reason: int = 0, properties: Properties | None = None) -> None:
        """Say goodbye."""
        if self._five:
            self._output.append(encode(Disconnect(reason, properties or {}), self.version))
        elif reason in (0, Reason.DISCONNECT_WITH_WILL):
            self._output.append(encode(Disconnect(), self.version))
        self.connected = False

    def ping(self) -> None:
        """Ask the broker for a sign of life."""
        self.pings_unanswered += 1
        self._output.append(b"\xc0\x00")

    def take(self) -> bytes:
        """Return what is to be sent, and forget it."""
        output = self._output
        data = output[0] if len(output) == 1 else b"".join(output)
        output.clear()
        return data

    @property
    def has_output(self) -> bool:
        """Whether there is something to be sent."""
        return bool(self._output)

    @property
    def has_much_output(self) -> bool:
        """Whether there is so much to be sent that it should be, before more is added."""
        return len(self._output) >= MUCH_OUTPUT

    @property
    def in_flight(self) -> int:
        """The number of QoS 1 and 2 messages that are sent and not acknowledged."""
        return len(self._in_flight)

    # What the client wants.

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> Outgoing:
        """Send a message; with QoS 1 and 2 as soon as the broker has room for one more in flight.

        QoS 0 is for a connection only. QoS 1 and 2 wait for the next if there is none.
        """
        encoded = self._topics.get(topic) or self._encode_topic(topic)
        written = (fields.properties(properties) if properties else b"\0") if self._five else b""
        if self._restricted or len(payload) > fields.MAX_REMAINING_LENGTH - 200_000:
            self._check_allowed(len(encoded) + len(written) + len(payload) + (2 if qos else 0), qos, retain)
        outgoing = Outgoing(0x30 | qos << 1 | retain, encoded, payload, written)
        if not qos:
            self._send(outgoing, 0)
        elif self.connected and not self._queue and len(self._in_flight) < self._window:
            self._launch(outgoing)
        else:
            self._queue.append(outgoing)
        return outgoing

    def _encode_topic(self, topic: str) -> bytes:
        encoded = topic.encode()
        if not encoded or len(encoded) > 65_535 or any(mark in topic for mark in "+#\0"):
            raise ValueError(
                f"{topic[:100]!r} is no topic: it is empty, too long, or has +, # or a null in it"
            )
        if len(self._topics) >= _KNOWN_TOPICS:
            self._topics.clear()
        self._topics[topic] = encoded = fields.binary(encoded)
        return encoded

    def _check_allowed(self, length: int, qos: int, retain: bool) -> None:
        """Raise PublishError for what the broker said it would not take: it would end the connection."""
        allowed = self.capabilities
        size = 1 + len(fields.varint(length)) + length
        most = allowed.get("maximum_packet_size", fields.MAX_REMAINING_LENGTH)
        if size > most:
            raise PublishError(
                f"a message of {size:,} bytes is larger than the broker takes ({most:,})",
                Reason.PACKET_TOO_LARGE,
            )
        if qos > allowed.get("maximum_qos", 2):
            raise PublishError(f"the broker does not take QoS {qos}", Reason.QOS_NOT_SUPPORTED)
        if retain and not allowed.get("retain_available", 1):
            raise PublishError("the broker retains no messages", Reason.RETAIN_NOT_SUPPORTED)

    def withdraw(self, outgoing: Outgoing) -> None:
        """Forget a message that no one waits for any more, if it has not been sent."""
        if not outgoing.sent:
            try:
                self._queue.remove(outgoing)
            except ValueError:
                pass

    def abandon(self, outgoing: Outgoing) -> None:
        """Forget a message, even if it was sent, so that it is not sent again; only between connections."""
        self.withdraw(outgoing)
        self._in_flight.pop(outgoing.packet_id, None)

    def abandon_request(self, packet_id: int) -> None:
        """Forget a SUBSCRIBE or UNSUBSCRIBE, so that it is not sent again."""
        self._requests.pop(packet_id, None)

    def subscribe(self, wish: Wish, properties: Properties | None = None) -> int:
        """Ask for a subscription; returns the id of the packet."""
        return self._request(Subscribe(self._next_id(), [wish], properties or {}))

    def unsubscribe(self, topic_filter: bytes) -> int:
        """End a subscription; returns the id of the packet."""
        return self._request(Unsubscribe(self._next_id(), [topic_filter]))

    def _request(self, packet: Subscribe | Unsubscribe) -> int:
        self._requests[packet.packet_id] = packet
        if self.connected:
            self._output.append(encode(packet, self.version))
        return packet.packet_id

    def acknowledge(self, message: Message) -> None:
        """Tell the broker that a message has arrived, if it is still there to hear it."""
        if message.connection != self.connection or not self.connected:
            return
        packet_id = message.packet_id
        if message.qos == 1:
            self._output.append(_PUBACK + packet_id.to_bytes(2, "big"))
        else:
            self._received.add(packet_id)
            self._output.append(_PUBREC + packet_id.to_bytes(2, "big"))

    # Outgoing messages.

    def _next_id(self) -> int:
        packet_id = self._last_id
        for _ in range(_LARGEST_ID):
            packet_id = packet_id % _LARGEST_ID + 1
            if packet_id not in self._in_flight and packet_id not in self._requests:
                self._last_id = packet_id
                return packet_id
        raise RuntimeError("all packet identifiers are in use")

    def _launch(self, outgoing: Outgoing) -> None:
        dup = 8 if outgoing.sent else 0
        if not outgoing.packet_id:
            outgoing.packet_id = self._next_id()
        self._in_flight[outgoing.packet_id] = outgoing
        if outgoing.released:
            self._output.append(b"\x62\x02" + outgoing.packet_id.to_bytes(2, "big"))
        else:
            outgoing.sent = True
            self._send(outgoing, dup)

    def _send(self, outgoing: Outgoing, dup: int) -> None:
        # The hot path: one string of bytes a message, made in one go.
        topic, properties, payload = outgoing.topic, outgoing.properties, outgoing.payload
        packet_id = outgoing.packet_id
        length = len(topic) + len(properties) + len(payload) + (2 if packet_id else 0)
        self._output.append(
            b"%c%b%b%b%b%b"
            % (
                outgoing.first | dup,
                fields.varint(length),
                topic,
                packet_id.to_bytes(2, "big") if packet_id else b"",
                properties,
                payload,
            )
        )

    def _fill_window(self) -> None:
        queue = self._queue
        while queue and len(self._in_flight) < self._window:
            self._launch(queue.popleft())

    # What the broker sends.

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes from the broker; raises ProtocolError if it does not keep to the protocol."""
        data = self._input + data if self._input else data
        events: list[Event] = []
        position, end = 0, len(data)
        while end - position >= 2:
            first, length = data[position], data[position + 1]
            start = position + 2
            if length > 127:
                length &= 0x7F
                shift = 7
                while True:
                    if shift > 21:
                        raise malformed("the remaining length is longer than four bytes")
                    if start >= end:
                        length = -1
                        break
                    byte = data[start]
                    start += 1
                    length |= (byte & 0x7F) << shift
                    if byte < 128:
                        break
                    shift += 7
                if length < 0:
                    break
            if not self.connected and first != 0x20:
                raise violation("the first packet is no CONNACK")  # [MQTT-3.2.0-1]
            if start + length > end:
                break
            position = start + length
            kind = first & 0xF0
            if kind == 0x30:
                self._on_publish(first, data[start:position], events)
            elif first == 0x40 and (length == 2 or (length == 3 and data[start + 2] < 0x80)):
                # A PUBACK that says nothing but success, perhaps with "no matching subscribers".
                outgoing = self._in_flight.pop(data[start] << 8 | data[start + 1], None)
                if outgoing is not None:
                    events.append(Settled(outgoing))
            else:
                self._on_packet(first, data[start:position], events)
        self._input = data[position:]
        if self._queue and self.connected:
            self._fill_window()
        return events

    def _on_publish(self, first: int, body: bytes, events: list[Event]) -> None:
        # The hot path reads what brokers send most: no properties but, perhaps, one small subscription id.
        qos = first >> 1 & 3
        if len(body) >= 2:
            at = 2 + (body[0] << 8 | body[1])
            topic = body[2:at]
            packet_id = 0
            if qos:
                packet_id = int.from_bytes(body[at : at + 2], "big")
                at += 2
            properties: Properties | None = None
            if not self._five:
                properties = {}
            elif body[at : at + 1] == b"\0":
                properties = {}
                at += 1
            elif body[at : at + 2] == b"\x02\x0b" and at + 2 < len(body) and 0 < body[at + 2] < 128:
                properties = {"subscription_identifier": [body[at + 2]]}
                at += 3
            if (
                topic
                and properties is not None
                and qos < 3
                and bool(packet_id) == bool(qos)
                and at <= len(body)
            ):
                try:
                    name = topic.decode()
                except UnicodeDecodeError:
                    raise malformed("a topic is not UTF-8") from None
                message = Message(
                    name,
                    body[at:],
                    qos,
                    bool(first & 1),
                    properties,
                    bool(first & 8),
                    packet_id,
                    self.connection,
                )
                self._hand_out(message, events)
                return
        packet = decode(first, body, self.version)
        assert isinstance(packet, Publish)
        if not packet.topic or "topic_alias" in packet.properties:
            raise violation("a topic alias, while the client has offered none")  # [MQTT-3.1.2-26]
        name = packet.topic.decode()
        self._hand_out(
            Message(
                name,
                packet.payload,
                packet.qos,
                packet.retain,
                packet.properties,
                packet.dup,
                packet.packet_id,
                self.connection,
            ),
            events,
        )

    def _hand_out(self, message: Message, events: list[Event]) -> None:
        if message.qos == 2 and message.packet_id in self._received:
            # It has been handed out before; only the PUBREC went missing [MQTT-4.3.3-2].
            self._output.append(_PUBREC + message.packet_id.to_bytes(2, "big"))
            return
        events.append(message)

    def _on_packet(self, first: int, body: bytes, events: list[Event]) -> None:
        packet = decode(first, body, self.version)
        match packet:
            case Connack() if not self.connected:
                self._on_connack(packet, events)
            case Ack(type=fields.PUBREL):
                self._received.discard(packet.packet_id)
                self._output.append(b"\x70\x02" + packet.packet_id.to_bytes(2, "big"))
            case Ack():
                self._on_ack(packet, events)
            case Suback():
                if self._requests.pop(packet.packet_id, None) is not None:
                    text = packet.properties.get("reason_string", "")
                    events.append(Answered(packet.packet_id, packet.reasons, text))
            case Ping(type=fields.PINGRESP):
                self.pings_unanswered = 0
            case Disconnect() if self._five:
                self.connected = False
                events.append(Ended(packet.reason, packet.properties.get("reason_string", "")))
            case _:
                raise violation(f"a broker does not send {type(packet).__name__.upper()} here")

    def _on_connack(self, connack: Connack, events: list[Event]) -> None:
        if connack.reason:
            events.append(Refusal(connack))
            return
        self.connected = True
        self.capabilities = connack.properties
        self._restricted = not self.capabilities.keys().isdisjoint(_RESTRICTIONS)
        most = connack.properties.get("receive_maximum", _LARGEST_ID) if self._five else OLDER_WINDOW
        self._window = min(most, _LARGEST_ID - 1_000)  # leaves identifiers for SUBSCRIBE and UNSUBSCRIBE
        again = list(self._in_flight.values())
        self._in_flight.clear()
        events.append(Connected(connack))
        if not connack.session_present:
            self._received.clear()
            for outgoing in again:
                if outgoing.released:
                    events.append(Settled(outgoing))  # the broker had taken it: PUBREC said so
                outgoing.sent = False
                outgoing.packet_id = 0
            again = [outgoing for outgoing in again if not outgoing.released]
        # In the order in which they were first sent [MQTT-4.6.0-1].
        self._queue.extendleft(reversed(again))
        self._output.extend(encode(packet, self.version) for packet in self._requests.values())
        self._fill_window()

    def _on_ack(self, ack: Ack, events: list[Event]) -> None:
        outgoing = self._in_flight.get(ack.packet_id)
        if outgoing is None:
            if ack.type == fields.PUBREC:
                unknown = Ack(fields.PUBREL, ack.packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
                self._output.append(encode(unknown, self.version))
            return
        qos = outgoing.first >> 1 & 3
        if (ack.type == fields.PUBACK) != (qos == 1):
            raise violation("an acknowledgement does not fit the QoS of the message")
        if ack.type == fields.PUBREC and ack.reason < 0x80:
            outgoing.released = True
            outgoing.payload = b""
            self._output.append(b"\x62\x02" + ack.packet_id.to_bytes(2, "big"))
            return
        del self._in_flight[ack.packet_id]
        # A PUBCOMP with "not found" ends an exchange whose message the broker has had.
        reason = 0 if ack.type == fields.PUBCOMP else ack.reason
        events.append(Settled(outgoing, reason, ack.properties.get("reason_string", "")))


__all__ = [
    "Answered",
    "Connected",
    "Ended",
    "Event",
    "Outgoing",
    "Protocol",
    "ProtocolError",
    "Refusal",
    "Settled",
]
