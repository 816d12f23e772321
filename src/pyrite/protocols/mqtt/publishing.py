"""The way in: runs of PUBLISH packets into batches, and runs of acknowledgements into lists of ids. HOT.

A socket read brings many packets, and those of one publisher mostly look alike: same topic, same size. The
shape of the last PUBLISH is remembered; as long as the bytes at hand begin like it, the next packet needs
no parsing, and a whole run of them becomes one batch (one slice of what was read). Where topics or sizes
alternate, packets that go to the same receivers are still gathered into one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack
from typing import TYPE_CHECKING, Any

from pyrite.broker.core import SYSTEM
from pyrite.broker.journal import Done, Fault
from pyrite.broker.message import Batch, MixedBatch, Properties
from pyrite.broker.subscriptions import Route
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.delivery import FORM_V5
from pyrite.protocols.mqtt.fields import Reader, check_utf8
from pyrite.protocols.mqtt.packets import Ack
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, describe, malformed, violation
from pyrite.protocols.mqtt.requests import REQUESTS, Request
from pyrite.protocols.runs import MIN_COUNTED_RUN, Word, count_alike, words
from pyrite.topics.filters import InvalidTopic, check_topic

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection


MAX_MIXED = 1_000
"""Messages of a mixed batch, each of which takes some 400 ns to gather."""
MAX_MIXED_DELIVERIES = 2_000
"""Messages times receivers of a mixed batch: receivers that need another wire form get single messages."""
MAX_RUN_DELIVERIES = 16_384
"""Messages times receivers of a run, each of which may take 100 ns: a run is not interrupted."""
MAX_QOS_2_RUN = 256
"""Messages of a run with QoS 2: if only some ids are new, each message is published by itself."""
MAX_ACK_RUN = 1_024
"""Acknowledgements that are handled in one go."""
GROUP_DELIVERIES = 32
"""Deliveries that a shared subscription counts for: each message of a run may go to another member."""


class Shape:
    """What consecutive PUBLISH packets have in common: all but packet id and payload."""

    __slots__ = (
        "form",
        "id_at",
        "payload_at",
        "plain",
        "prefix",
        "prefix_length",
        "properties",
        "property_bytes",
        "qos",
        "refused",
        "retain",
        "singly",
        "size",
        "topic",
        "words",
    )

    prefix: bytes
    """How such a packet begins: fixed header and topic; with QoS 0 also the properties."""
    prefix_length: int
    size: int
    topic: bytes
    qos: int
    retain: bool
    id_at: int
    property_bytes: bytes
    """What follows the packet id (MQTT 5, QoS 1 and 2), or nothing."""
    properties: Properties | None
    payload_at: int
    form: int
    """The wire form in which such packets may be forwarded as they are, or -1."""
    refused: int
    """0, or the reason for which messages of this shape are not taken."""
    singly: bool
    """Whether each message is judged or handled by itself: such packets make no run."""
    plain: bool
    """Whether such packets may be part of a mixed batch: nothing about them but topic and payload."""
    words: list[Word]
    """What all of them have, to look for it in many at once; empty until that is wanted."""


def read_shape(connection: Connection, data: bytes, start: int, body: int, stop: int) -> Shape:
    """Parse and check the PUBLISH at `start`, whose fixed header ends at `body` and which ends at `stop`."""
    first = data[start]
    qos = first >> 1 & 3
    if qos == 3:
        raise malformed("a QoS of 3")  # [MQTT-3.3.1-4]
    if first & 0x08 and not qos:
        raise malformed("DUP with QoS 0")  # [MQTT-3.3.1-2]
    topic_at = body + 2
    topic_end = topic_at + (data[body] << 8 | data[body + 1]) if topic_at <= stop else stop + 1
    properties_at = topic_end + 2 if qos else topic_end
    if properties_at > stop:
        raise malformed("the packet ends within a field")
    topic = data[topic_at:topic_end]
    shape = Shape()
    shape.words = []
    shape.qos = qos
    shape.retain = bool(first & 1)
    shape.properties = None
    shape.property_bytes = b""
    shape.form = -1 if first & 0x08 else connection.form | first & 7  # DUP is not passed on [MQTT-3.3.1-3]
    payload_at = properties_at
    alias = 0
    if connection.form == FORM_V5:
        if properties_at < stop and data[properties_at] == 0:
            payload_at += 1
        else:
            payload_at, alias = _read_properties(shape, data, properties_at, stop)
        if qos:
            shape.property_bytes = data[properties_at:payload_at]
    if topic not in connection.broker.subscriptions.routes:  # what is there has been checked
        _check_topic(connection, topic, bool(alias))
    if alias:
        topic = _alias_topic(connection, alias, topic)
        shape.form = -1
    shape.topic = topic
    shape.refused = _refusal(connection, shape)
    shape.prefix = data[start : topic_end if qos else payload_at]
    shape.prefix_length = len(shape.prefix)
    shape.size = stop - start
    shape.id_at = topic_end - start
    shape.payload_at = payload_at - start
    is_request = topic.startswith(REQUESTS)
    shape.singly = is_request or (
        connection.options.check_payload_format
        and shape.properties is not None
        and bool(shape.properties.payload_format)
    )
    shape.plain = (
        shape.form >= 0
        and not shape.retain
        and shape.properties is None
        and not shape.refused
        and connection.meter is None
        and not connection.broker.access.checks_topics
        and not connection.broker.catalog.restricts
        and not is_request
    )
    return shape


def _read_properties(shape: Shape, data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Read properties into `shape`; return where they end, and the topic alias or 0."""
    reader = Reader(data, at, stop)
    values = reader.properties(fields.PUBLISH)
    if "subscription_identifier" in values:
        raise violation("a client's PUBLISH has no subscription identifier")  # [MQTT-3.3.4-6]
    check_response_topic(values)
    alias: int = values.pop("topic_alias", 0)
    if values:
        shape.properties = message_properties(values)
    return reader.position, alias


def check_response_topic(values: dict[str, Any]) -> None:
    """Raise ProtocolError if a message's response topic is none."""
    response_topic = values.get("response_topic")
    if response_topic is not None and (not response_topic or "+" in response_topic or "#" in response_topic):
        raise violation("a response topic is a topic name, without wildcards")  # [MQTT-3.3.2-14]


def message_properties(values: dict[str, Any]) -> Properties:
    """Make a message's properties of those read from a packet."""
    return Properties(
        values.get("payload_format"),
        values.get("message_expiry"),
        values.get("content_type"),
        values.get("response_topic"),
        values.get("correlation_data"),
        tuple(values.get("user_property", ())),
    )


def _check_topic(connection: Connection, topic: bytes, has_alias: bool) -> None:
    if not topic and has_alias:
        return
    if not topic and connection.form == FORM_V5:
        raise violation("neither a topic nor a topic alias")
    check_utf8(topic)
    try:
        check_topic(topic, connection.broker.limits.max_topic_levels)
    except InvalidTopic as error:
        raise ProtocolError(Reason.TOPIC_NAME_INVALID, str(error)) from None


def _alias_topic(connection: Connection, alias: int, topic: bytes) -> bytes:
    """Set up a topic alias, or look up the topic it stands for."""
    if alias > connection.options.topic_alias_maximum:
        raise ProtocolError(Reason.TOPIC_ALIAS_INVALID, "a topic alias above the maximum")  # [MQTT-3.3.2-9]
    if connection.aliases_in is None:
        connection.aliases_in = {}
    if topic:
        connection.aliases_in[alias] = topic
        return topic
    known = connection.aliases_in.get(alias)
    if known is None:
        raise violation("a topic alias that was not set up")
    return known


def _refusal(connection: Connection, shape: Shape) -> int:
    """Return the reason why messages of this shape are not taken, or 0; raise if none may even be sent."""
    options = connection.options
    if shape.qos > options.maximum_qos:
        raise ProtocolError(Reason.QOS_NOT_SUPPORTED, "the QoS is above the maximum")  # [MQTT-3.2.2-11]
    if shape.retain and not options.retain_available:
        raise ProtocolError(Reason.RETAIN_NOT_SUPPORTED, "there are no retained messages")  # [MQTT-3.2.2-14]
    if shape.topic.startswith(SYSTEM):
        return Reason.NOT_AUTHORIZED
    return 0


def run_end(connection: Connection, shape: Shape, data: bytes, start: int) -> int:
    """Return where the run of packets of this shape ends that begins at `start` with a whole one.

    A run is no longer than can be published in one go: the clock is not looked at within it.
    """
    prefix, length, size = shape.prefix, shape.prefix_length, shape.size
    at = start + size
    last = len(data) - size
    if at > last or data[at : at + length] != prefix:
        return at
    longest = _longest_run(connection, shape)
    last = min(last, start + (longest - 1) * size)
    follows = shape.property_bytes
    if last - at >= MIN_COUNTED_RUN * size:
        if not shape.words:
            shape.words = [*words(prefix, 0), *words(follows, shape.id_at + 2)]
        return at + count_alike(data, at, size, shape.words, longest - 1) * size
    if not follows:
        while at <= last and data[at : at + length] == prefix:
            at += size
        return at
    skip = shape.id_at + 2
    until = skip + len(follows)
    while at <= last and data[at : at + length] == prefix and data[at + skip : at + until] == follows:
        at += size
    return at


def _longest_run(connection: Connection, shape: Shape) -> int:
    """Return how many messages of this shape may be published in one go."""
    if shape.singly:
        return 1
    route = connection.broker.subscriptions.route(shape.topic)
    longest = max(1, MAX_RUN_DELIVERIES // _receivers(route))
    return min(longest, MAX_QOS_2_RUN) if shape.qos == 2 else longest


def _receivers(route: Route) -> int:
    """Return how many deliveries a message on this route counts for."""
    return 1 + len(route.targets) + GROUP_DELIVERIES * len(route.groups)


def read_mixed(
    connection: Connection, shape: Shape, data: bytes, start: int
) -> tuple[MixedBatch, Route] | None:
    """Gather packets from `start` on that are unlike in topic or size but alike in all that matters.

    That is: QoS, no other flag, no properties, known topics with the route of the first, whose shape is
    given. None if it is only one packet.
    """
    first = data[start]
    five = connection.form == FORM_V5
    gap = (2 if first & 6 else 0) + five
    route = connection.broker.subscriptions.route(shape.topic)
    routes = connection.broker.subscriptions.routes
    longest = min(MAX_MIXED, MAX_MIXED_DELIVERIES // _receivers(route))
    if shape.qos == 2:
        longest = min(longest, MAX_QOS_2_RUN)
    starts: list[int] = []
    topics: list[bytes] = []
    ids_at: list[int] = []
    largest = connection.broker.limits.max_packet_size
    at, end = start, len(data)
    last = end - 4  # a fixed header and the length of a topic can be read
    while at <= last and data[at] == first and len(starts) < longest:
        length, body = data[at + 1], at + 2
        if length > 127:
            if not 0 < data[body] < 128:
                break
            length = length & 127 | data[body] << 7
            body += 1
        stop = body + length
        if stop > end or length < 3 or stop - at > largest:
            break
        topic_at = body + 2
        topic_end = topic_at + (data[body] << 8 | data[body + 1])
        if topic_end + gap > stop or data[topic_at] == 0x24 or (five and data[topic_end + gap - 1]):
            break
        topic = data[topic_at:topic_end]
        if routes.get(topic) is not route:
            break
        starts.append(at - start)
        topics.append(topic)
        ids_at.append(topic_end - start)
        at = stop
    if len(starts) < 2:
        return None
    batch = MixedBatch(
        data[start:at],
        starts,
        topics,
        ids_at,
        gap,
        first >> 1 & 3,
        connection.credentials.client_id,
        connection.form | first & 7,
    )
    return batch, route


def publish_mixed(connection: Connection, batch: MixedBatch, route: Route) -> None:
    """Publish what `read_mixed` gathered, and acknowledge it in one write."""
    figures = connection.broker.figures
    figures.publish_received += batch.count
    figures.publish_bytes_received += len(batch.data)
    if batch.qos == 0:
        connection.broker.publish(batch, route)
        return
    data = batch.data
    high = bytes([data[at] for at in batch.ids_at])
    low = bytes([data[at + 1] for at in batch.ids_at])
    _publish_acknowledged(connection, batch, route, high, low, 0)


def publish(connection: Connection, shape: Shape, packets: bytes) -> None:
    """Take a run of packets of one shape: publish them as a batch, and acknowledge them in one write."""
    broker = connection.broker
    size = shape.size
    count = len(packets) // size
    if shape.plain and not shape.qos:  # the most common case by far, without questions
        figures = broker.figures
        figures.publish_received += count
        figures.publish_bytes_received += len(packets)
        origin = connection.credentials.client_id
        batch = Batch(
            shape.topic, packets, 0, False, None, None, origin, count, size, shape.payload_at, shape.form
        )
        broker.publish(batch)
        return
    properties = shape.properties
    refused = shape.refused
    if properties is not None and properties.payload_format and connection.options.check_payload_format:
        refused = refused or _wrong_payload(packets[shape.payload_at :])
    if shape.topic.startswith(REQUESTS):
        _request(connection, shape, packets, refused)
        return
    if broker.access.checks_topics and not broker.access.may_publish(
        connection.credentials, shape.topic.decode()
    ):
        refused = refused or Reason.NOT_AUTHORIZED
    text = ""
    if broker.catalog.restricts and not refused:
        text = broker.catalog.refusal(shape.topic)
        if text:
            refused = Reason.TOPIC_NAME_INVALID
            if not shape.qos or connection.form != FORM_V5:  # there is no other way to tell the client
                raise ProtocolError(refused, text)
    figures = broker.figures
    figures.publish_received += count
    figures.publish_bytes_received += len(packets)
    expires_at = None
    if properties is not None and properties.message_expiry is not None:
        expires_at = broker.now + properties.message_expiry
    batch = Batch(
        shape.topic,
        packets,
        shape.qos,
        shape.retain,
        properties,
        expires_at,
        connection.credentials.client_id,
        count,
        size,
        shape.payload_at,
        shape.form,
        shape.id_at,
    )
    if shape.retain and not refused and connection.session is not None:
        batch = batch.owned_by(connection.session.account)
        fault = broker.retain_fault(batch)
        # Only MQTT 5 can refuse it, and only with QoS 1 and 2; else it is sent on, and not retained.
        if fault is not None and shape.qos and connection.form == FORM_V5:
            figures.quota_refused += count * fault.quota
            refused, text = Reason.QUOTA_EXCEEDED, fault.text
    if shape.qos == 0:
        if refused:
            figures.messages_dropped += count
        else:
            _pass_on(connection, batch)
        return
    at = shape.id_at
    _publish_acknowledged(connection, batch, None, packets[at::size], packets[at + 1 :: size], refused, text)


def _request(connection: Connection, shape: Shape, packet: bytes, refused: int) -> None:
    """Handle a request and acknowledge it. It reaches no subscriber, no log and no retained message.

    A request is judged by what it asks for. One that comes again may have been handled, so it is not.
    """
    figures = connection.broker.figures
    figures.publish_received += 1
    figures.publish_bytes_received += len(packet)
    high, low = packet[shape.id_at : shape.id_at + 1], packet[shape.id_at + 1 : shape.id_at + 2]
    is_new = not packet[0] & 0x08
    if shape.qos:
        ids = _pairs(high, low)
        _, error = _allowed(connection, shape.qos, ids, refused)
        if error is not None:
            raise error
        session = connection.session
        if shape.qos == 2 and not refused and session is not None:
            if session.incoming is None:
                session.incoming = set()
            is_new = ids[0] not in session.incoming
            session.incoming.add(ids[0])
            if session.lasting:
                connection.broker.journal.save_incoming(session)
        reply = _Reply(connection, shape.qos, ids, high, low)
        connection.when_safe(lambda: reply.send(refused))
    if is_new and not refused:
        Request(connection, shape.qos, shape.properties).handle(shape.topic, packet[shape.payload_at :])


def _publish_acknowledged(
    connection: Connection,
    batch: Batch,
    route: Route | None,
    high: bytes,
    low: bytes,
    refused: int,
    text: str = "",
) -> None:
    """Publish a batch with QoS 1 or 2 and acknowledge it; `high` and `low` are the bytes of its ids.

    Or refuse it, for a reason and with a text.
    """
    broker = connection.broker
    ids = _pairs(high, low)
    allowed, error = _allowed(connection, batch.qos, ids, refused)
    if error is not None:
        if allowed:  # what came before the fault is good
            before = batch.part(0, allowed)
            _publish_acknowledged(connection, before, route, high[:allowed], low[:allowed], refused, text)
        raise error
    reply = _Reply(connection, batch.qos, ids, high, low)
    if refused:  # a refused message's id is free again at once [MQTT-4.3.3-9]
        broker.figures.messages_dropped += batch.count
        broker.journal.in_turn(lambda: reply.send(refused, text))
        return
    if batch.qos == 1:
        _pass_on(connection, batch, route, reply.done)
        return
    session = connection.session
    assert session is not None
    fresh = _first_time(connection, batch, ids)
    reply.left = len(fresh)
    if not fresh:  # all have come before, and may not be safe yet
        broker.journal.in_turn(lambda: reply.send(0) if (session.incoming or set()).issuperset(ids) else None)
        return
    if session.lasting:
        broker.journal.save_incoming(session)
    reply.fresh = [message_id for _, part_ids in fresh for message_id in part_ids]
    for part, part_ids in fresh:
        _pass_on(connection, part, route, reply.done, part_ids if session.lasting else None)


def _pass_on(
    connection: Connection,
    batch: Batch,
    route: Route | None = None,
    done: Done | None = None,
    packet_ids: Sequence[int] | None = None,
) -> None:
    """Publish a batch, for the client's account if that is metered."""
    if connection.meter is None:
        connection.broker.publish(batch, route, done, packet_ids)
    else:
        connection.broker.publish_for(connection.meter, batch, route, done, packet_ids)


class _Reply:
    """The acknowledgement of a batch, to be sent when it is safe."""

    __slots__ = ("_connection", "_high", "_ids", "_low", "_matched", "_qos", "_session", "fresh", "left")

    def __init__(
        self, connection: Connection, qos: int, ids: tuple[int, ...], high: bytes, low: bytes
    ) -> None:
        self._connection = connection
        self._session = connection.session
        self._qos = qos
        self._ids = ids
        self._high = high
        self._low = low
        self._matched = False
        self.left = 1
        """Parts of the batch that are not safe yet."""
        self.fresh: Sequence[int] = ()
        """The ids of QoS 2 messages that came for the first time."""

    def done(self, matched: bool, fault: Fault | None) -> None:
        """Note that a part is safe, or cannot be made so."""
        if fault is not None:
            self._failed(fault)
            return
        self._matched = self._matched or matched
        self.left -= 1
        if self.left == 0:
            self.send(0 if self._matched else Reason.NO_MATCHING_SUBSCRIBERS)

    def _failed(self, fault: Fault) -> None:
        """Refuse messages that cannot be kept; 3.1.1 knows no way to but silence."""
        session, connection = self._session, self._connection
        if session is not None and session.incoming is not None:
            session.incoming.difference_update(self.fresh)
            if self.fresh and session.lasting:  # or the id would count as taken after a restart
                connection.broker.journal.save_incoming(session)
        first, self.left = self.left > 0, -1
        if not first or connection.session is not session:
            return
        kind = fields.PUBACK if self._qos == 1 else fields.PUBREC
        reason = Reason.QUOTA_EXCEEDED if fault.full else Reason.UNSPECIFIED_ERROR
        properties = {"reason_string": fault.text} if connection.problem_information else {}
        fresh = set(self.fresh or self._ids)
        for message_id in self._ids:
            if message_id not in fresh:  # it came before, and is kept
                connection.reply(Ack(kind, message_id, 0))
            elif connection.form == FORM_V5:
                connection.reply(Ack(kind, message_id, reason, dict(properties)))

    def send(self, reason: int, text: str = "") -> None:
        """Acknowledge, or refuse with a reason, all messages; unless the client has left meanwhile."""
        connection = self._connection
        if connection.session is not self._session:
            return
        if connection.form != FORM_V5:
            reason = 0  # 3.1.1 knows no way to refuse a message but to take it and drop it
        if reason >= 0x80 and connection.problem_information:  # [MQTT-3.1.2-29]
            kind = fields.PUBACK if self._qos == 1 else fields.PUBREC
            refusal = connection.encoded(Ack(kind, 1, reason, {"reason_string": text or describe(reason)}))
            refusals = bytearray(refusal * len(self._ids))
            if refusal:
                id_at = 2 if refusal[1] < 128 else 3  # a reason string is never so long as to need more
                refusals[id_at :: len(refusal)] = self._high
                refusals[id_at + 1 :: len(refusal)] = self._low
                connection.write(refusals)
                connection.broker.figures.packets_sent += len(self._ids)
            return
        connection.write(_acks(0x40 if self._qos == 1 else 0x50, self._high, self._low, reason))
        connection.broker.figures.packets_sent += len(self._high)


def _wrong_payload(payload: bytes) -> int:
    """Check that a payload which claims to be UTF-8 is."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return Reason.PAYLOAD_FORMAT_INVALID
    return 0


def _allowed(
    connection: Connection, qos: int, ids: tuple[int, ...], refused: int
) -> tuple[int, ProtocolError | None]:
    """Return how many messages, in their order, may come under these ids, and what is wrong with the next."""
    if 0 in ids:
        return ids.index(0), violation("a packet identifier of 0")  # [MQTT-2.2.1-3]
    if qos == 2 and not refused and connection.session is not None:
        incoming = connection.session.incoming or set()
        most = connection.broker.limits.receive_maximum
        if len(incoming) + len(ids) > most and len(incoming) + len(fresh := set(ids) - incoming) > most:
            fresh.clear()
            for number, message_id in enumerate(ids):
                if message_id not in incoming:
                    fresh.add(message_id)
                if len(incoming) + len(fresh) > most:
                    return number, ProtocolError(  # [MQTT-3.3.4-7]
                        Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many messages are unacknowledged"
                    )
    return len(ids), None


def _first_time(
    connection: Connection, batch: Batch, ids: tuple[int, ...]
) -> list[tuple[Batch, Sequence[int]]]:
    """Note the ids of QoS 2 messages, and return those that have not come before [MQTT-4.3.3-10]."""
    session = connection.session
    assert session is not None
    if session.incoming is None:
        session.incoming = set()
    incoming = session.incoming
    unique = set(ids)
    if incoming.isdisjoint(unique) and len(unique) == len(ids):
        incoming |= unique
        return [(batch, ids)]
    fresh: list[int] = []
    for index, message_id in enumerate(ids):
        if message_id not in incoming:
            incoming.add(message_id)
            fresh.append(index)
    return [(batch.only(fresh), [ids[index] for index in fresh])] if fresh else []


def _pairs(high: bytes, low: bytes) -> tuple[int, ...]:
    """Join the high and low bytes of ids."""
    if len(high) == 1:
        return (high[0] << 8 | low[0],)
    both = bytearray(2 * len(high))
    both[0::2] = high
    both[1::2] = low
    return unpack(f">{len(high)}H", both)


def _acks(first: int, high: bytes, low: bytes, reason: int) -> bytes | bytearray:
    """Write acknowledgements for many packets."""
    count = len(high)
    if count == 1:
        return bytes((first, 3, high[0], low[0], reason) if reason else (first, 2, high[0], low[0]))
    if reason:
        acks = bytearray(bytes((first, 3, 0, 0, reason)) * count)
        acks[2::5] = high
        acks[3::5] = low
        return acks
    acks = bytearray(bytes((first, 2, 0, 0)) * count)
    acks[2::4] = high
    acks[3::4] = low
    return acks


def ack_run(data: bytes, start: int) -> int:
    """Return how many 4-byte acknowledgements like the one at `start` follow one another, itself included.

    At most MAX_ACK_RUN, and for what that takes, however much follows.
    """
    if data[start + 4 : start + 6] != data[start : start + 2]:
        return 1
    stop = start + 4 * MAX_ACK_RUN
    firsts = data[start:stop:4]
    lengths = data[start + 1 : stop : 4]
    ids = len(data[start + 3 : stop : 4])  # no more than have come whole
    alike = len(firsts) - len(firsts.lstrip(firsts[:1]))
    short = len(lengths) - len(lengths.lstrip(b"\x02"))
    return min(alike, short, ids)


def acknowledged(connection: Connection, first: int, acks: bytes) -> None:
    """Take a run of plain acknowledgements (4 bytes each) of one type, and answer it in one write."""
    session = connection.session
    assert session is not None
    ids = _pairs(acks[2::4], acks[3::4])
    if 0 in ids:
        raise violation("a packet identifier of 0")  # [MQTT-2.2.1-3]
    if first == 0x40:
        session.acknowledge(ids)
    elif first == 0x70:
        session.complete(ids)
    elif first == 0x50:
        if session.received(ids):
            connection.when_safe(lambda: connection.answer(acks, 0x62))
        else:  # [MQTT-4.3.3-4]
            _answer(connection, fields.PUBREL, [(one, session.received((one,))) for one in ids])
    else:
        incoming = session.incoming
        if incoming is not None and incoming.issuperset(ids):
            incoming.difference_update(ids)  # [MQTT-4.3.3-12]
            if session.lasting:
                connection.broker.journal.save_incoming(session)
            connection.when_safe(lambda: connection.answer(acks, 0x70))
        else:
            known: list[tuple[int, bool]] = []
            for message_id in ids:
                known.append((message_id, incoming is not None and message_id in incoming))
                if incoming is not None:
                    incoming.discard(message_id)
            if session.lasting and any(was_known for _, was_known in known):
                connection.broker.journal.save_incoming(session)
            _answer(connection, fields.PUBCOMP, known)


def _answer(connection: Connection, kind: int, known: list[tuple[int, bool]]) -> None:
    """Answer acknowledgements with the next step, when they cannot be forgotten any more.

    Those whose id was not `known` are told so, where the client's version can.
    """
    good = connection.encoded(Ack(kind, 1, 0))[:2]
    bad = connection.encoded(Ack(kind, 1, _UNKNOWN))
    head, tail = bad[:2], bad[4:]
    answers = b"".join(
        [
            (good if was_known else head) + message_id.to_bytes(2, "big") + (b"" if was_known else tail)
            for message_id, was_known in known
            if was_known or bad
        ]
    )

    def answer() -> None:
        connection.write(answers)
        connection.broker.figures.packets_sent += len(known)

    if answers:
        connection.when_safe(answer)


_UNKNOWN = Reason.PACKET_IDENTIFIER_NOT_FOUND
