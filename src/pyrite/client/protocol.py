"""The client side of MQTT 5.0, 3.1.1 and 3.1 without I/O: bytes in, events out; calls in, bytes out.

A Protocol outlives its connections, as a session does: `connect` starts a connection, `lost` ends it, and
unacknowledged messages are sent again on the next one.

    protocol = Protocol()
    protocol.connect(Connect("me"))
    socket.sendall(protocol.take())
    for event in protocol.receive(socket.recv(65536)): ...
"""

from __future__ import annotations

from pyrite.client.events import Answered, Connected, ConnectRefused, Ended, Event, Outgoing, Settled, Tally
from pyrite.client.message import Message, Properties
from pyrite.client.sending import MAX_PACKET_ID, PUBREC, PUBREL, Sending
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
    decode,
    encode,
)
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, malformed, violation

MQTT_3_WINDOW = 20
"""QoS 1 and 2 messages in flight to an MQTT 3.1.1 broker, which cannot announce its limit.

This is mosquitto's limit: of more QoS 2 messages at once, it acknowledges all and delivers only some.
"""


class Protocol(Sending):
    """A session with a broker, and its current connection, if any."""

    def __init__(self, version: int = V5) -> None:
        super().__init__(version)
        self._input = b""
        self._topic_aliases: dict[int, str] = {}
        """Aliases that the broker has assigned on this connection."""
        self._max_aliases = 0
        self.pings_unanswered = 0

    def connect(self, packet: Connect) -> None:
        """Start a connection."""
        self.lost()
        self.connection += 1
        self._topic_aliases.clear()
        self._max_aliases = packet.properties.get("topic_alias_maximum", 0)
        self._output.append(encode(packet, self.version))

    def lost(self) -> None:
        """Reset after a lost connection."""
        self.connected = False
        self._input = b""
        self._output.clear()
        self.pings_unanswered = 0

    def disconnect(self, reason: int = 0, properties: Properties | None = None) -> None:
        """Send DISCONNECT."""
        if self._five:
            self._output.append(encode(Disconnect(reason, properties or {}), self.version))
        elif reason in (0, Reason.DISCONNECT_WITH_WILL):
            self._output.append(encode(Disconnect(), self.version))
        self.connected = False

    def ping(self) -> None:
        """Send PINGREQ."""
        self.pings_unanswered += 1
        self._output.append(b"\xc0\x00")

    # Receiving

    def receive(self, data: bytes) -> list[Event]:
        """Parse bytes from the broker; raises ProtocolError if they violate the protocol."""
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
                raise violation("the first packet is not a CONNACK")  # [MQTT-3.2.0-1]
            if start + length > end:
                break
            position = start + length
            kind = first & 0xF0
            if kind == 0x30:
                self._on_publish(first, data[start:position], events)
            elif first == 0x40 and (length == 2 or (length == 3 and data[start + 2] < 0x80)):
                # A PUBACK with success or "no matching subscribers", and nothing else.
                outgoing = self._in_flight.pop(data[start] << 8 | data[start + 1], None)
                if outgoing is not None:
                    note = outgoing.note
                    if type(note) is Tally and note.left > 1:
                        note.left -= 1  # only the last of many is an event
                    else:
                        events.append(Settled(outgoing))
            else:
                self._on_packet(first, data[start:position], events)
        self._input = data[position:]
        if self._queue and self.connected:
            self._fill_window()
        return events

    def _on_publish(self, first: int, body: bytes, events: list[Event]) -> None:
        # The hot path handles common messages: no properties but one small subscription identifier.
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
                self._deliver(message, events)
                return
        packet = decode(first, body, self.version)
        assert isinstance(packet, Publish)
        self._deliver(
            Message(
                self._topic_of(packet),
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

    def _topic_of(self, packet: Publish) -> str:
        """Return the topic, resolving an alias."""
        topic, alias = packet.topic.decode(), packet.properties.get("topic_alias", 0)
        if alias > self._max_aliases:
            raise violation("topic alias above the client's maximum")  # [MQTT-3.1.2-26], [MQTT-3.1.2-27]
        if topic and alias:
            self._topic_aliases[alias] = topic
        topic = topic or self._topic_aliases.get(alias, "")
        if not topic:
            raise violation("message without a topic")
        return topic

    def _deliver(self, message: Message, events: list[Event]) -> None:
        if message.qos == 2 and message.packet_id in self._received:
            # Already delivered; only the PUBREC was lost [MQTT-4.3.3-2].
            self._output.append(PUBREC + message.packet_id.to_bytes(2, "big"))
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
            events.append(ConnectRefused(connack))
            return
        self.connected = True
        window = connack.properties.get("receive_maximum", MAX_PACKET_ID) if self._five else MQTT_3_WINDOW
        self._accept(connack.properties, window)
        again = list(self._in_flight.values())
        self._in_flight.clear()
        events.append(Connected(connack))
        if not connack.session_present:
            self._received.clear()
            for outgoing in again:
                if outgoing.released:
                    events.append(Settled(outgoing))  # PUBREC confirmed it
                outgoing.sent = False
                outgoing.packet_id = 0
            again = [outgoing for outgoing in again if not outgoing.released]
        # In the order of the first transmission [MQTT-4.6.0-1].
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
            raise violation("acknowledgement does not match the QoS of the message")
        if ack.type == fields.PUBREC and ack.reason < 0x80:
            outgoing.released = True
            outgoing.payload = b""
            self._output.append(PUBREL + ack.packet_id.to_bytes(2, "big"))
            return
        del self._in_flight[ack.packet_id]
        # PUBCOMP with "packet identifier not found" ends an exchange that the broker has completed.
        reason = 0 if ack.type == fields.PUBCOMP else ack.reason
        events.append(Settled(outgoing, reason, ack.properties.get("reason_string", "")))


__all__ = [
    "Answered",
    "ConnectRefused",
    "Connected",
    "Ended",
    "Event",
    "Outgoing",
    "Protocol",
    "ProtocolError",
    "Settled",
]
