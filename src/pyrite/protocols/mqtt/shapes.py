"""Shapes of PUBLISH packets: parse and check the first packet of a shape, and reuse the result. HOT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyrite.broker.message import Properties
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.delivery import FORM_V5
from pyrite.protocols.mqtt.fields import Reader, check_utf8
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, malformed, violation
from pyrite.protocols.mqtt.requests import REQUESTS
from pyrite.protocols.runs import Word
from pyrite.topics.filters import InvalidTopic, check_topic

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection


class Shape:
    """Everything but packet id and payload, which consecutive PUBLISH packets often have in common."""

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
        "retain",
        "singly",
        "size",
        "topic",
        "words",
    )

    prefix: bytes
    """The first bytes: fixed header and topic; with QoS 0 also the properties."""
    prefix_length: int
    size: int
    topic: bytes
    qos: int
    retain: bool
    id_at: int
    property_bytes: bytes
    """The bytes of the properties after the packet id (MQTT 5, QoS 1 and 2)."""
    properties: Properties | None
    payload_at: int
    form: int
    """The wire form (delivery.py) in which such packets can be sent unchanged, or -1."""
    singly: bool
    """Whether each message must be checked or handled separately, so that no run is formed."""
    plain: bool
    """Whether such packets may be part of a mixed batch: they have only topic and payload."""
    words: list[Word]
    """The words for `count_alike`; filled when a long run is first counted."""


def begins_run(data: bytes, start: int, body: int, stop: int) -> bool:
    """Return whether the PUBLISH at `start` is followed by another of the same topic and size."""
    topic_end = body + 2 + (data[body] << 8 | data[body + 1]) if stop - body >= 2 else stop
    return stop < len(data) and data[start:topic_end] == data[stop : stop + topic_end - start]


def read_shape(connection: Connection, data: bytes, start: int, body: int, stop: int) -> Shape:
    """Parse and check the PUBLISH at `start`, whose fixed header ends at `body` and which ends at `stop`."""
    first = data[start]
    qos = first >> 1 & 3
    if qos == 3:
        raise malformed("QoS 3 is not allowed")  # [MQTT-3.3.1-4]
    if first & 0x08 and not qos:
        raise malformed("DUP is set with QoS 0")  # [MQTT-3.3.1-2]
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
    shape.property_bytes = b""
    shape.form = -1 if first & 0x08 else connection.form | first & 7  # DUP is not propagated [MQTT-3.3.1-3]
    payload_at = properties_at
    alias = 0
    properties: Properties | None = None
    if connection.form == FORM_V5:
        if properties_at < stop and data[properties_at] == 0:
            payload_at += 1
        else:
            payload_at, alias, properties = _read_properties(data, properties_at, stop)
        if qos:
            shape.property_bytes = data[properties_at:payload_at]
    shape.properties = properties
    if topic not in connection.broker.subscriptions.cache.routes:  # a topic that has a route is valid
        _check_topic(connection, topic, bool(alias))
    if alias:
        topic = _alias_topic(connection, alias, topic)
        shape.form = -1
    shape.topic = topic
    _check_options(connection, shape)
    shape.prefix = data[start : topic_end if qos else payload_at]
    shape.prefix_length = len(shape.prefix)
    shape.size = stop - start
    shape.id_at = topic_end - start
    shape.payload_at = payload_at - start
    is_request = topic.startswith(REQUESTS)
    shape.singly = is_request or (
        connection.options.check_payload_format and properties is not None and bool(properties.payload_format)
    )
    shape.plain = (
        shape.form >= 0
        and not shape.retain
        and properties is None
        and connection.meter is None
        and connection.broker.policy.allows_all
        and not topic.startswith(b"$")
    )
    return shape


def _read_properties(data: bytes, at: int, stop: int) -> tuple[int, int, Properties | None]:
    """Return the end of the properties, the topic alias or 0, and the properties of the message."""
    reader = Reader(data, at, stop)
    values = reader.properties(fields.PUBLISH)
    if "subscription_identifier" in values:
        raise violation("PUBLISH from a client has a subscription identifier")  # [MQTT-3.3.4-6]
    check_response_topic(values)
    alias: int = values.pop("topic_alias", 0)
    return reader.position, alias, message_properties(values) if values else None


def check_response_topic(values: dict[str, Any]) -> None:
    """Raise ProtocolError if a response topic is not a topic name."""
    response_topic = values.get("response_topic")
    if response_topic is not None and (not response_topic or "+" in response_topic or "#" in response_topic):
        raise violation("the response topic is not a topic name without wildcards")  # [MQTT-3.3.2-14]


def message_properties(values: dict[str, Any]) -> Properties:
    """Return a message's properties from those of a packet."""
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
        raise violation("PUBLISH has neither a topic nor a topic alias")
    check_utf8(topic)
    try:
        check_topic(topic, connection.broker.limits.max_topic_levels)
    except InvalidTopic as error:
        raise ProtocolError(Reason.TOPIC_NAME_INVALID, str(error)) from None


def _alias_topic(connection: Connection, alias: int, topic: bytes) -> bytes:
    """Record a topic alias if `topic` is given; return the topic of the alias."""
    if alias > connection.options.topic_alias_maximum:
        raise ProtocolError(
            Reason.TOPIC_ALIAS_INVALID, "the topic alias exceeds the maximum"
        )  # [MQTT-3.3.2-9]
    if connection.aliases_in is None:
        connection.aliases_in = {}
    if topic:
        connection.aliases_in[alias] = topic
        return topic
    known = connection.aliases_in.get(alias)
    if known is None:
        raise violation("unknown topic alias")
    return known


def _check_options(connection: Connection, shape: Shape) -> None:
    """Raise ProtocolError if a packet uses what the CONNACK said is not available."""
    options = connection.options
    if shape.qos > options.maximum_qos:
        raise ProtocolError(Reason.QOS_NOT_SUPPORTED, "the QoS exceeds the maximum")  # [MQTT-3.2.2-11]
    if shape.retain and not options.retain_available:
        raise ProtocolError(
            Reason.RETAIN_NOT_SUPPORTED, "retained messages are not available"
        )  # [MQTT-3.2.2-14]
