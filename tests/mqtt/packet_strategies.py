"""Hypothesis strategies for MQTT packets of every type and version."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    Ack,
    Auth,
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
)

VERSIONS = st.sampled_from([V5, V311, V31])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
BINARY = st.binary(max_size=8) | st.binary(min_size=120, max_size=140)
U16 = st.integers(0, 0xFFFF)
U32 = st.integers(0, 0xFFFFFFFF)
BIT = st.integers(0, 1)
QOS = st.integers(0, 2)
IDS = st.integers(1, 0xFFFF)
NOT_ZERO = st.integers(1, 0xFFFF)
PAIRS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3)
TOPICS = TEXT.filter(bool).map(str.encode)

MESSAGE = {
    "payload_format": BIT,
    "message_expiry": U32,
    "content_type": TEXT,
    "response_topic": TEXT,
    "correlation_data": BINARY,
    "user_property": PAIRS,
}
WHY = {"reason_string": TEXT, "user_property": PAIRS}
AUTHENTICATION = {"authentication_method": TEXT, "authentication_data": BINARY}
LIMITS = {
    "session_expiry": U32,
    "receive_maximum": NOT_ZERO,
    "topic_alias_maximum": U16,
    "maximum_packet_size": st.integers(1, 0xFFFFFFFF),
}
CONNECT = {
    **LIMITS,
    **AUTHENTICATION,
    "request_problem_information": BIT,
    "request_response_information": BIT,
    "user_property": PAIRS,
}
CONNACK = {
    **LIMITS,
    **AUTHENTICATION,
    **WHY,
    "assigned_client_id": TEXT,
    "server_keep_alive": U16,
    "response_information": TEXT,
    "server_reference": TEXT,
    "maximum_qos": BIT,
    "retain_available": BIT,
    "wildcard_subscription_available": BIT,
    "subscription_identifier_available": BIT,
    "shared_subscription_available": BIT,
}
IDENTIFIERS = st.integers(1, 268_435_455)

ACK_REASONS = {
    fields.PUBACK: [0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    fields.PUBREC: [0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    fields.PUBREL: [0x00, 0x92],
    fields.PUBCOMP: [0x00, 0x92],
}
DISCONNECT_REASONS = [
    0x00,
    0x04,
    0x80,
    0x81,
    0x82,
    0x83,
    0x87,
    0x89,
    0x8B,
    0x8D,
    0x8E,
    0x93,
    0x97,
    0x9C,
    0xA2,
]


def properties(version: int, known: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a subset of these properties; an empty one before version 5."""
    return st.fixed_dictionaries({}, optional=known) if version == V5 else st.just({})


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    """Return any PUBLISH."""
    qos = draw(QOS)
    known = {
        **MESSAGE,
        "topic_alias": NOT_ZERO,
        "subscription_identifier": st.lists(IDENTIFIERS, min_size=1, max_size=3),
    }
    return Publish(
        draw(TOPICS),
        draw(BINARY),
        qos,
        draw(st.booleans()),
        draw(st.booleans()) if qos else False,
        draw(IDS) if qos else 0,
        draw(properties(version, known)),
    )


@st.composite
def acks(draw: st.DrawFn, version: int) -> Ack:
    """Return any PUBACK, PUBREC, PUBREL or PUBCOMP."""
    kind = draw(st.sampled_from(sorted(ACK_REASONS)))
    reason = draw(st.sampled_from(ACK_REASONS[kind])) if version == V5 else 0
    return Ack(kind, draw(IDS), reason, draw(properties(version, WHY)))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    """Return any CONNECT."""
    will = None
    if draw(st.booleans()):
        known = {**MESSAGE, "will_delay": U32}
        will = WillMessage(
            draw(TOPICS), draw(BINARY), draw(QOS), draw(st.booleans()), draw(properties(version, known))
        )
    username = draw(st.none() | TEXT)
    password = draw(st.none() | BINARY) if version == V5 or username is not None else None
    return Connect(
        draw(TEXT),
        version,
        draw(st.booleans()),
        draw(U16),
        will,
        username,
        password,
        draw(properties(version, CONNECT)),
    )


@st.composite
def subscribes(draw: st.DrawFn, version: int) -> Subscribe:
    """Return any SUBSCRIBE."""
    flags = st.booleans() if version == V5 else st.just(False)
    wishes = st.builds(Wish, TOPICS, QOS, flags, flags, st.integers(0, 2) if version == V5 else st.just(0))
    known = {"subscription_identifier": IDENTIFIERS, "user_property": PAIRS}
    return Subscribe(
        draw(IDS), draw(st.lists(wishes, min_size=1, max_size=3)), draw(properties(version, known))
    )


def packets(version: int) -> st.SearchStrategy[Packet]:
    """Return any packet of a version, sent by either side."""
    pairs = properties(version, {"user_property": PAIRS})
    why = properties(version, WHY)
    reasons = st.lists(st.integers(0, 255), min_size=1, max_size=3)
    if version == V5:
        disconnect = st.builds(
            Disconnect,
            st.sampled_from(DISCONNECT_REASONS),
            properties(version, {**WHY, "session_expiry": U32, "server_reference": TEXT}),
        )
        more: list[st.SearchStrategy[Packet]] = [
            st.builds(Auth, st.sampled_from([0x00, 0x18, 0x19]), properties(version, AUTHENTICATION | WHY))
        ]
    else:
        disconnect = st.builds(Disconnect)
        more = []
    return st.one_of(
        publishes(version),
        acks(version),
        connects(version),
        subscribes(version),
        st.builds(Connack, st.integers(0, 255), st.booleans(), properties(version, CONNACK)),
        st.builds(Suback, st.just(fields.SUBACK), IDS, reasons, why),
        st.builds(Suback, st.just(fields.UNSUBACK), IDS, reasons if version == V5 else st.just([]), why),
        st.builds(Unsubscribe, IDS, st.lists(TOPICS, min_size=1, max_size=3), pairs),
        st.builds(Ping, st.sampled_from([fields.PINGREQ, fields.PINGRESP])),
        disconnect,
        *more,
    )
