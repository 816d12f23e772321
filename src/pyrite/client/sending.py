"""Sending, without I/O: messages, requests, acknowledgements and packet identifiers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from pyrite.client.errors import PublishError
from pyrite.client.events import Outgoing
from pyrite.client.message import Message, Properties
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import V5, Subscribe, Unsubscribe, Wish, encode
from pyrite.protocols.mqtt.reasons import Reason

FLUSH_THRESHOLD = 500
"""Pending packets from which `should_flush` is true."""
MAX_PACKET_ID = 65_535
_MAX_CACHED_TOPICS = 10_000
_MAX_UNCHECKED = fields.MAX_REMAINING_LENGTH - 200_000
"""Bytes of a payload that fits into a packet whatever its topic and properties."""
_RESTRICTIONS = ("maximum_packet_size", "maximum_qos", "retain_available")
_SHORT = [bytes((length,)) for length in range(128)]
"""Remaining lengths of one byte."""
PUBACK, PUBREC, PUBREL = b"\x40\x02", b"\x50\x02", b"\x62\x02"


class Sending:
    """What a session has to send, and what waits for an acknowledgement."""

    def __init__(self, version: int = V5) -> None:
        self.version = version
        self.connected = False
        self.connection = 0
        """Number of the connection; a message is acknowledged only on the connection it arrived on."""
        self.capabilities: Properties = {}
        """The properties of the last CONNACK."""
        self._restricted = False
        """True if CONNACK restricts which messages the broker accepts."""
        self._five = version == V5
        self._window = 0
        self._output: list[bytes] = []
        self._last_id = 0
        self._in_flight: dict[int, Outgoing] = {}
        self._queue: deque[Outgoing] = deque()
        self._requests: dict[int, Subscribe | Unsubscribe] = {}
        self._received: set[int] = set()
        """QoS 2 messages that were delivered and not released."""
        self._topics: dict[str, bytes] = {}
        self._aliases: dict[int, bytes] = {}
        """Topics of the aliases in use on this connection."""

    def take(self) -> bytes:
        """Return and clear the pending output."""
        output = self._output
        data = output[0] if len(output) == 1 else b"".join(output)
        output.clear()
        return data

    @property
    def has_output(self) -> bool:
        """True if output is pending."""
        return bool(self._output)

    @property
    def should_flush(self) -> bool:
        """True if the pending output should be flushed before more is added."""
        return len(self._output) >= FLUSH_THRESHOLD

    @property
    def in_flight(self) -> int:
        """Number of QoS 1 and 2 messages that were sent and not acknowledged."""
        return len(self._in_flight)

    def _accept(self, capabilities: Properties, window: int) -> None:
        """Record the limits in CONNACK."""
        self.capabilities = capabilities
        self._restricted = not capabilities.keys().isdisjoint(_RESTRICTIONS)
        self._window = min(window, MAX_PACKET_ID - 1_000)  # leaves identifiers for SUBSCRIBE and UNSUBSCRIBE
        self._aliases.clear()

    # Messages

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> Outgoing:
        """Send a message; with QoS 1 and 2, wait in a queue while the in-flight window is full.

        QoS 0 needs a connection; QoS 1 and 2 wait for the next one if there is none.
        """
        encoded = self._topics.get(topic) or self._encode_topic(topic)
        alias = 0
        if properties and "topic_alias" in properties:
            properties = dict(properties)
            alias = self._check_alias(properties.pop("topic_alias"))
        written = (fields.properties(properties) if properties else b"\0") if self._five else b""
        if self._restricted or len(payload) > _MAX_UNCHECKED:
            length = len(encoded) + len(written) + len(payload) + (2 if qos else 0) + (3 if alias else 0)
            self._check_allowed(length, qos, retain)
        outgoing = Outgoing(0x30 | qos << 1 | retain, encoded, payload, written, alias)
        if not qos:
            self._send(outgoing, 0)
        elif self.connected and not self._queue and len(self._in_flight) < self._window:
            self._launch(outgoing)
        else:
            self._queue.append(outgoing)
        return outgoing

    def publish_all(self, messages: Iterable[tuple[str, bytes]], qos: int, note: object) -> None:
        """Send messages with QoS 1 or 2, as `publish` does; `note` is that of each of them."""
        topics, restricted = self._topics, self._restricted
        first, written = 0x30 | qos << 1, b"\0" if self._five else b""
        added = []
        for topic, payload in messages:
            encoded = topics.get(topic) or self._encode_topic(topic)
            if restricted or len(payload) > _MAX_UNCHECKED:
                self._check_allowed(len(encoded) + len(written) + len(payload) + 2, qos, False)
            outgoing = Outgoing(first, encoded, payload, written)
            outgoing.note = note
            added.append(outgoing)
        self._queue.extend(added)
        if self.connected:
            self._fill_window()

    def _encode_topic(self, topic: str) -> bytes:
        encoded = topic.encode()
        if not encoded or len(encoded) > 65_535 or any(mark in topic for mark in "+#\0"):
            raise ValueError(
                f"invalid topic {topic[:100]!r}: it is empty, too long, or contains +, # or a null character"
            )
        if len(self._topics) >= _MAX_CACHED_TOPICS:
            self._topics.clear()
        self._topics[topic] = encoded = fields.binary(encoded)
        return encoded

    def _check_alias(self, alias: int) -> int:
        if not 0 < alias <= self.capabilities.get("topic_alias_maximum", 0):  # [MQTT-3.2.2-17], -18
            raise PublishError(f"the broker does not accept topic alias {alias}", Reason.TOPIC_ALIAS_INVALID)
        return alias

    def _check_allowed(self, length: int, qos: int, retain: bool) -> None:
        """Raise PublishError for a message that would make the broker close the connection."""
        allowed = self.capabilities
        size = 1 + len(fields.varint(length)) + length
        most = allowed.get("maximum_packet_size", fields.MAX_REMAINING_LENGTH)
        if size > most:
            raise PublishError(
                f"a message of {size:,} bytes exceeds the broker's maximum packet size ({most:,})",
                Reason.PACKET_TOO_LARGE,
            )
        if qos > allowed.get("maximum_qos", 2):
            raise PublishError(f"the broker does not support QoS {qos}", Reason.QOS_NOT_SUPPORTED)
        if retain and not allowed.get("retain_available", 1):
            raise PublishError("the broker does not support retained messages", Reason.RETAIN_NOT_SUPPORTED)

    def withdraw(self, outgoing: Outgoing) -> None:
        """Remove a message from the queue, unless it was sent."""
        if not outgoing.sent:
            try:
                self._queue.remove(outgoing)
            except ValueError:
                pass

    def withdraw_all(self, note: object) -> None:
        """Remove the messages with a note from the queue, unless they were sent."""
        self._queue = deque(one for one in self._queue if one.sent or one.note is not note)

    def abandon(self, outgoing: Outgoing) -> None:
        """Forget a message even if it was sent, so that it is not sent again; only between connections."""
        self.withdraw(outgoing)
        self._in_flight.pop(outgoing.packet_id, None)

    def _next_id(self) -> int:
        packet_id = self._last_id
        for _ in range(MAX_PACKET_ID):
            packet_id = packet_id % MAX_PACKET_ID + 1
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
            self._output.append(PUBREL + outgoing.packet_id.to_bytes(2, "big"))
        else:
            outgoing.sent = True
            self._send(outgoing, dup)

    def _send(self, outgoing: Outgoing, dup: int) -> None:
        # The hot path: one bytes object per message.
        topic, properties, payload = outgoing.topic, outgoing.properties, outgoing.payload
        if outgoing.alias:
            topic, properties = self._aliased(outgoing)
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

    def _aliased(self, outgoing: Outgoing) -> tuple[bytes, bytes]:
        """Return topic and properties with the alias, as encoded on this connection."""
        alias, topic, properties = outgoing.alias, outgoing.topic, outgoing.properties
        if alias > self.capabilities.get("topic_alias_maximum", 0):
            return topic, properties  # the alias belongs to an earlier connection
        if self._aliases.get(alias) == topic:
            topic = b"\0\0"
        else:
            self._aliases[alias] = topic
        bare = properties[len(fields.varint(fields.Reader(properties).varint())) :]
        bare = b"\x23" + alias.to_bytes(2, "big") + bare
        return topic, fields.varint(len(bare)) + bare

    def _fill_window(self) -> None:
        # The hot path, too: the same as _launch for messages that were never sent, and have no alias.
        queue, in_flight, output, last = self._queue, self._in_flight, self._output, self._last_id
        for _ in range(min(len(queue), self._window - len(in_flight))):
            outgoing = queue.popleft()
            packet_id = last % MAX_PACKET_ID + 1
            if outgoing.packet_id or outgoing.alias or packet_id in in_flight or packet_id in self._requests:
                self._last_id = last
                self._launch(outgoing)
                last = self._last_id
                continue
            outgoing.packet_id = last = packet_id
            outgoing.sent = True
            in_flight[packet_id] = outgoing
            topic, properties, payload = outgoing.topic, outgoing.properties, outgoing.payload
            length = len(topic) + len(properties) + len(payload) + 2
            output.append(
                b"%c%b%b%c%c%b%b"
                % (
                    outgoing.first,
                    _SHORT[length] if length < 128 else fields.varint(length),
                    topic,
                    packet_id >> 8,
                    packet_id & 0xFF,
                    properties,
                    payload,
                )
            )
        self._last_id = last

    # Requests and acknowledgements

    def subscribe(self, wishes: Sequence[Wish], properties: Properties | None = None) -> int:
        """Send SUBSCRIBE; returns the packet identifier."""
        return self._request(Subscribe(self._next_id(), list(wishes), properties or {}))

    def unsubscribe(self, filters: Sequence[bytes], properties: Properties | None = None) -> int:
        """Send UNSUBSCRIBE; returns the packet identifier."""
        return self._request(Unsubscribe(self._next_id(), list(filters), properties or {}))

    def abandon_request(self, packet_id: int) -> None:
        """Forget a SUBSCRIBE or UNSUBSCRIBE, so that it is not sent again."""
        self._requests.pop(packet_id, None)

    def _request(self, packet: Subscribe | Unsubscribe) -> int:
        self._requests[packet.packet_id] = packet
        if self.connected:
            self._output.append(encode(packet, self.version))
        return packet.packet_id

    def acknowledge(self, message: Message) -> None:
        """Send PUBACK or PUBREC, if the message arrived on the current connection."""
        if message.connection != self.connection or not self.connected:
            return
        packet_id = message.packet_id
        if message.qos == 1:
            self._output.append(PUBACK + packet_id.to_bytes(2, "big"))
        else:
            self._received.add(packet_id)
            self._output.append(PUBREC + packet_id.to_bytes(2, "big"))
