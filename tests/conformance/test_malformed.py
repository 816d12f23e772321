"""Malformed packets of every kind, and the server's answer (section 4.13).

Each case ends its own connection with the reason code that the specification gives for it, and no other.
Where the specification forbids something without giving a code, Malformed Packet (0x81) and Protocol Error
(0x82) are both right.
"""

from __future__ import annotations

import pytest

from .client import Closed
from .conftest import Broker
from .wire import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Will,
    ack_packet,
    connect_packet,
    disconnect_packet,
    options,
    packet,
    prop,
    properties,
    publish_packet,
    string,
    subscribe_packet,
    u16,
    unsubscribe_packet,
)

MALFORMED, PROTOCOL = (0x81,), (0x82,)
EITHER = (0x81, 0x82)
_HEAD = string("MQTT") + b"\x05"
_TWICE = {
    "session_expiry_interval": 1, "receive_maximum": 1, "maximum_packet_size": 1000, "topic_alias_maximum": 1,
    "request_response_information": 1, "request_problem_information": 1, "authentication_method": "m",
}  # fmt: skip
_WILL_TWICE = {
    "will_delay_interval": 1, "payload_format_indicator": 1, "message_expiry_interval": 1,
    "content_type": "t", "response_topic": "t", "correlation_data": b"d",
}  # fmt: skip
_NOT_IN_CONNECT = {
    "payload_format_indicator": 1, "message_expiry_interval": 1, "content_type": "t", "response_topic": "t",
    "correlation_data": b"d", "subscription_identifier": 1, "assigned_client_identifier": "c",
    "server_keep_alive": 1, "will_delay_interval": 1, "response_information": "r", "server_reference": "s",
    "reason_string": "r", "topic_alias": 1, "maximum_qos": 1, "retain_available": 1,
    "wildcard_subscription_available": 1, "subscription_identifiers_available": 1,
    "shared_subscription_available": 1,
}  # fmt: skip
_NOT_IN_PUBLISH = {
    "session_expiry_interval": 1, "assigned_client_identifier": "c", "server_keep_alive": 1,
    "authentication_method": "m", "authentication_data": b"d", "request_problem_information": 1,
    "will_delay_interval": 1, "request_response_information": 1, "response_information": "r",
    "server_reference": "s", "reason_string": "r", "receive_maximum": 1, "topic_alias_maximum": 1,
    "maximum_qos": 1, "retain_available": 1, "maximum_packet_size": 1000,
    "wildcard_subscription_available": 1, "subscription_identifiers_available": 1,
    "shared_subscription_available": 1,
}  # fmt: skip


def _raw_connect(flags: int, payload: bytes, raw: bytes = b"\x00") -> bytes:
    return packet(CONNECT, 0, _HEAD + bytes([flags]) + u16(60) + raw + payload)


def _will(properties_of_will: bytes) -> bytes:
    return _raw_connect(0x06, string("c") + properties_of_will + string("t") + string(b"gone"))


CONNECTS = {
    "reserved connect flag": (connect_packet("c", reserved=1), MALFORMED),
    "will QoS 3": (connect_packet("c", will=Will("t", qos=3)), MALFORMED),
    "will QoS without will": (connect_packet("c", flags=0x0A), EITHER),
    "will retain without will": (connect_packet("c", flags=0x22), EITHER),
    "will flag without will fields": (_raw_connect(0x06, string("c")), MALFORMED),
    "will flag without will payload": (_raw_connect(0x06, string("c") + b"\x00" + string("t")), MALFORMED),
    "will fields without will flag": (
        _raw_connect(0x02, string("c") + b"\x00" + string("t") + string("p")),
        MALFORMED,
    ),
    "user name flag without user name": (_raw_connect(0x82, string("c")), MALFORMED),
    "user name without user name flag": (_raw_connect(0x02, string("c") + string("user")), MALFORMED),
    "password flag without password": (_raw_connect(0xC2, string("c") + string("user")), MALFORMED),
    "password without password flag": (
        _raw_connect(0x82, string("c") + string("user") + string("password")),
        MALFORMED,
    ),
    "no client identifier": (_raw_connect(0x02, b""), MALFORMED),
    "client identifier cut short": (_raw_connect(0x02, b"\x00\x05abc"), MALFORMED),
    "no properties": (packet(CONNECT, 0, _HEAD + b"\x02\x00\x3c"), MALFORMED),
    "property length past the end": (
        packet(CONNECT, 0, _HEAD + b"\x02\x00\x3c\x7f" + string("c")),
        MALFORMED,
    ),
    "unknown property": (connect_packet("c", raw=b"\x7f\x00"), MALFORMED),
    "property cut short": (connect_packet("c", raw=b"\x11\x00\x00"), MALFORMED),
    "receive maximum 0": (connect_packet("c", receive_maximum=0), PROTOCOL),
    "maximum packet size 0": (connect_packet("c", maximum_packet_size=0), PROTOCOL),
    "request response information 2": (connect_packet("c", request_response_information=2), PROTOCOL),
    "request problem information 2": (connect_packet("c", request_problem_information=2), PROTOCOL),
    "authentication data without method": (connect_packet("c", authentication_data=b"d"), PROTOCOL),
    "unknown will property": (_will(b"\x02\x7f\x00"), MALFORMED),
    "will property that is none": (_will(properties(session_expiry_interval=1)), MALFORMED),
    "empty will topic": (connect_packet("c", will=Will("")), (0x81, 0x82, 0x90)),
    "will topic with #": (connect_packet("c", will=Will("a/#")), (0x81, 0x82, 0x90)),
    "will topic with +": (connect_packet("c", will=Will("a/+/b")), (0x81, 0x82, 0x90)),
    **{
        f"{name} twice": (connect_packet("c", raw=prop(name, value) * 2), PROTOCOL)
        for name, value in _TWICE.items()
    },
    "authentication data twice": (
        connect_packet("c", raw=prop("authentication_method", "m") + prop("authentication_data", b"d") * 2),
        PROTOCOL,
    ),
    **{
        f"will {name} twice": (_will(properties(**{name: [value, value]})), PROTOCOL)
        for name, value in _WILL_TWICE.items()
    },
    **{
        f"{name} in CONNECT": (connect_packet("c", raw=prop(name, value)), MALFORMED)
        for name, value in _NOT_IN_CONNECT.items()
    },
}

PACKETS = {
    # Fixed headers.
    "packet type 0": (packet(0, 0), EITHER),
    **{
        f"reserved flags {flags:04b} of {name}": (packet(kind, flags, body), MALFORMED)
        for name, kind, good, body in [
            ("PUBACK", PUBACK, 0, u16(1)),
            ("PUBREC", PUBREC, 0, u16(1)),
            ("PUBREL", PUBREL, 2, u16(1)),
            ("PUBCOMP", PUBCOMP, 0, u16(1)),
            ("SUBSCRIBE", SUBSCRIBE, 2, u16(1) + b"\x00" + string("t") + b"\x00"),
            ("UNSUBSCRIBE", UNSUBSCRIBE, 2, u16(1) + b"\x00" + string("t")),
            ("PINGREQ", PINGREQ, 0, b""),
            ("DISCONNECT", DISCONNECT, 0, b""),
            ("AUTH", AUTH, 0, b"\x19" + properties(authentication_method="m")),
        ]
        for flags in (0, 1, 2, 3, 4, 8, 15)
        if flags != good
    },
    "CONNACK from a client": (packet(CONNACK, 0, b"\x00\x00\x00"), EITHER),
    "SUBACK from a client": (packet(SUBACK, 0, u16(1) + b"\x00\x00"), EITHER),
    "UNSUBACK from a client": (packet(UNSUBACK, 0, u16(1) + b"\x00\x00"), EITHER),
    "PINGRESP from a client": (packet(PINGRESP, 0), EITHER),
    "PINGREQ with a body": (packet(PINGREQ, 0, b"\x00"), MALFORMED),
    # PUBLISH.
    "PUBLISH of QoS 3": (publish_packet("t", qos=3, packet_id=1), MALFORMED),
    "PUBLISH of QoS 3 with DUP and RETAIN": (
        publish_packet("t", qos=3, packet_id=1, dup=True, retain=True),
        MALFORMED,
    ),
    "empty PUBLISH": (packet(PUBLISH, 0), MALFORMED),
    "PUBLISH with its topic cut short": (packet(PUBLISH, 0, b"\x00\x05abc"), MALFORMED),
    "PUBLISH of QoS 1 without packet identifier": (packet(PUBLISH, 2, string("t")), MALFORMED),
    "PUBLISH of QoS 1 with packet identifier 0": (publish_packet("t", qos=1, packet_id=0), EITHER),
    "PUBLISH of QoS 2 with packet identifier 0": (publish_packet("t", qos=2, packet_id=0), EITHER),
    "PUBLISH without property length": (packet(PUBLISH, 0, string("t")), MALFORMED),
    "PUBLISH with property length past the end": (packet(PUBLISH, 0, string("t") + b"\x20x"), MALFORMED),
    "PUBLISH with an unknown property": (publish_packet("t", raw=b"\x7e\x01"), MALFORMED),
    "PUBLISH with a property cut short": (publish_packet("t", raw=b"\x02\x00\x00"), MALFORMED),
    "PUBLISH with a string property cut short": (publish_packet("t", raw=b"\x03\x00\x09abc"), MALFORMED),
    "PUBLISH to no topic": (publish_packet(""), PROTOCOL),
    "PUBLISH to an alias never set": (publish_packet("", topic_alias=1), PROTOCOL),
    "PUBLISH with topic alias 0": (publish_packet("t", topic_alias=0), (0x82, 0x94)),
    "PUBLISH to a topic with #": (publish_packet("a/#"), (0x90,)),
    "PUBLISH to a topic with +": (publish_packet("a/+/b"), (0x90,)),
    "PUBLISH of QoS 1 to a topic with #": (publish_packet("#", qos=1, packet_id=1), (0x90,)),
    "PUBLISH with a subscription identifier": (publish_packet("t", subscription_identifier=1), PROTOCOL),
    "PUBLISH with a response topic with #": (publish_packet("t", response_topic="a/#"), (0x81, 0x82, 0x90)),
    "PUBLISH with a response topic with +": (publish_packet("t", response_topic="+"), (0x81, 0x82, 0x90)),
    **{
        f"PUBLISH with {name} twice": (publish_packet("t", raw=prop(name, value) * 2), PROTOCOL)
        for name, value in {
            "payload_format_indicator": 1, "message_expiry_interval": 1, "content_type": "t",
            "response_topic": "t", "correlation_data": b"d", "topic_alias": 1,
        }.items()
    },
    **{
        f"PUBLISH with {name}": (publish_packet("t", raw=prop(name, value)), MALFORMED)
        for name, value in _NOT_IN_PUBLISH.items()
    },
    # PUBACK, PUBREC, PUBREL, PUBCOMP.
    **{
        f"{name} without packet identifier": (packet(kind, flags), MALFORMED)
        for name, kind, flags in [
            ("PUBACK", PUBACK, 0), ("PUBREC", PUBREC, 0), ("PUBREL", PUBREL, 2), ("PUBCOMP", PUBCOMP, 0),
        ]
    },
    **{
        f"{name} with reason code 0x05": (ack_packet(kind, 1, 0x05), EITHER)
        for name, kind in [("PUBACK", PUBACK), ("PUBREC", PUBREC), ("PUBREL", PUBREL), ("PUBCOMP", PUBCOMP)]
    },
    **{
        f"{name} with bytes past its end": (packet(kind, flags, u16(1) + b"\x00\x00\x00"), MALFORMED)
        for name, kind, flags in [
            ("PUBACK", PUBACK, 0), ("PUBREC", PUBREC, 0), ("PUBREL", PUBREL, 2), ("PUBCOMP", PUBCOMP, 0),
        ]
    },
    **{
        f"{name} with a foreign property": (ack_packet(kind, 1, 0, topic_alias=1), MALFORMED)
        for name, kind in [("PUBACK", PUBACK), ("PUBREC", PUBREC), ("PUBREL", PUBREL), ("PUBCOMP", PUBCOMP)]
    },
    **{
        f"{name} with two reason strings": (ack_packet(kind, 1, 0, reason_string=["a", "b"]), PROTOCOL)
        for name, kind in [("PUBACK", PUBACK), ("PUBREC", PUBREC), ("PUBREL", PUBREL), ("PUBCOMP", PUBCOMP)]
    },
    # SUBSCRIBE.
    "SUBSCRIBE without filters": (subscribe_packet(1, []), PROTOCOL),
    "SUBSCRIBE with packet identifier 0": (subscribe_packet(0, [("t", 0)]), EITHER),
    "SUBSCRIBE without options": (packet(SUBSCRIBE, 2, u16(1) + b"\x00" + string("t")), MALFORMED),
    "SUBSCRIBE with its filter cut short": (packet(SUBSCRIBE, 2, u16(1) + b"\x00\x00\x05t"), MALFORMED),
    "SUBSCRIBE with reserved option bit 6": (subscribe_packet(1, [("t", 0x40)]), MALFORMED),
    "SUBSCRIBE with reserved option bit 7": (subscribe_packet(1, [("t", 0x80)]), MALFORMED),
    "SUBSCRIBE with a reserved bit in the second filter": (
        subscribe_packet(1, [("t", 0), ("u", 0xC1)]),
        MALFORMED,
    ),
    "SUBSCRIBE with QoS 3": (subscribe_packet(1, [("t", 3)]), EITHER),
    "SUBSCRIBE with retain handling 3": (subscribe_packet(1, [("t", 0x30)]), PROTOCOL),
    "SUBSCRIBE with no local on a shared subscription": (
        subscribe_packet(1, [("$share/g/t", options(no_local=True))]),
        PROTOCOL,
    ),
    "SUBSCRIBE with subscription identifier 0": (
        subscribe_packet(1, [("t", 0)], subscription_identifier=0),
        PROTOCOL,
    ),
    "SUBSCRIBE with two subscription identifiers": (
        subscribe_packet(1, [("t", 0)], subscription_identifier=[1, 2]),
        PROTOCOL,
    ),
    "SUBSCRIBE with a foreign property": (subscribe_packet(1, [("t", 0)], reason_string="r"), MALFORMED),
    "SUBSCRIBE with an unknown property": (subscribe_packet(1, [("t", 0)], raw=b"\x7d\x00"), MALFORMED),
    "SUBSCRIBE with property length past the end": (
        packet(SUBSCRIBE, 2, u16(1) + b"\x30" + string("t")),
        MALFORMED,
    ),
    # UNSUBSCRIBE.
    "UNSUBSCRIBE without filters": (unsubscribe_packet(1, []), PROTOCOL),
    "UNSUBSCRIBE with packet identifier 0": (unsubscribe_packet(0, ["t"]), EITHER),
    "UNSUBSCRIBE with its filter cut short": (packet(UNSUBSCRIBE, 2, u16(1) + b"\x00\x00\x05t"), MALFORMED),
    "UNSUBSCRIBE with a foreign property": (
        unsubscribe_packet(1, ["t"], subscription_identifier=1),
        MALFORMED,
    ),
    # DISCONNECT.
    "DISCONNECT with reason code 0x03": (disconnect_packet(0x03), EITHER),
    "DISCONNECT with bytes past its end": (packet(DISCONNECT, 0, b"\x00\x00\x00"), MALFORMED),
    "DISCONNECT with a server reference": (disconnect_packet(0, server_reference="s"), EITHER),
    "DISCONNECT with a foreign property": (disconnect_packet(0, receive_maximum=5), MALFORMED),
    "DISCONNECT with two session expiry intervals": (
        disconnect_packet(0, session_expiry_interval=[0, 0]),
        PROTOCOL,
    ),
    "DISCONNECT with two reason strings": (disconnect_packet(0, reason_string=["a", "b"]), PROTOCOL),
    "DISCONNECT that starts a session expiry": (disconnect_packet(0, session_expiry_interval=5), PROTOCOL),
    # AUTH, on a connection that has no authentication method.
    "AUTH": (packet(AUTH, 0, b"\x19" + properties(authentication_method="m")), PROTOCOL),
    "AUTH without anything": (packet(AUTH, 0), EITHER),
}  # fmt: skip


@pytest.mark.parametrize(("data", "reasons"), CONNECTS.values(), ids=CONNECTS)
def test_a_malformed_connect_is_refused(broker: Broker, data: bytes, reasons: tuple[int, ...]) -> None:
    """[MQTT-3.1.4-1] [MQTT-2.2.2-1] [MQTT-3.1.2-3] [MQTT-3.1.2-9] [MQTT-3.1.2-11] [MQTT-3.1.2-12]
    [MQTT-3.1.2-13] [MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT-3.1.3-1]
    [MQTT-3.1.3-3] [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT-3.2.2-8] [MQTT-3.14.0-1] [MQTT-4.13.1-1]
    [MQTT-4.13.2-1] A CONNACK with the reason, then the end; never a DISCONNECT.
    """
    bystander, client = broker.connect(), broker.open()
    client.send(data)
    client.expect_refused(*reasons)
    bystander.ping()


@pytest.mark.parametrize(("data", "reasons"), PACKETS.values(), ids=PACKETS)
def test_a_malformed_packet_ends_the_connection(
    broker: Broker, data: bytes, reasons: tuple[int, ...]
) -> None:
    """[MQTT-2.1.3-1] [MQTT-2.2.1-3] [MQTT-2.2.2-1] [MQTT-3.3.1-4] [MQTT-3.3.2-1] [MQTT-3.3.2-2]
    [MQTT-3.3.2-8] [MQTT-3.3.2-14] [MQTT-3.3.4-6] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.1-1]
    [MQTT-3.6.2-1] [MQTT-3.7.2-1] [MQTT-3.8.1-1] [MQTT-3.8.3-2] [MQTT-3.8.3-4] [MQTT-3.8.3-5]
    [MQTT-3.10.1-1] [MQTT-3.10.3-2] [MQTT-3.14.1-1] [MQTT-3.14.2-1] [MQTT-3.15.1-1]
    [MQTT-4.7.0-1] [MQTT-4.12.0-7] [MQTT-4.13.1-1] [MQTT-4.13.2-1]
    A DISCONNECT with the reason, then the end; other connections are not affected.
    """
    client, bystander = broker.connect(), broker.connect()
    client.send(data)
    client.expect_disconnect(*reasons)
    bystander.ping()


@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
def test_a_connect_with_reserved_header_flags_is_not_accepted(broker: Broker, flags: int) -> None:
    """[MQTT-2.1.3-1] The connection ends, with a CONNACK of 0x81 or without any."""
    good = connect_packet("c")
    client = broker.open()
    client.send(bytes([CONNECT << 4 | flags]) + good[1:])
    try:
        assert client.expect(CONNACK).reason == 0x81
    except Closed:
        return
    client.expect_closed()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(publish_packet("t"), id="PUBLISH"),
        pytest.param(subscribe_packet(1, [("t", 0)]), id="SUBSCRIBE"),
        pytest.param(packet(PINGREQ, 0), id="PINGREQ"),
        pytest.param(disconnect_packet(), id="DISCONNECT"),
        pytest.param(packet(AUTH, 0, b"\x18" + properties(authentication_method="m")), id="AUTH"),
        pytest.param(packet(CONNACK, 0, b"\x00\x00\x00"), id="CONNACK"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), id="TLS"),
    ],
)
def test_a_first_packet_that_is_not_connect_gets_no_answer(broker: Broker, data: bytes) -> None:
    """[MQTT-3.1.0-1] [MQTT-3.14.0-1] [MQTT-3.2.0-1] The server just closes the connection."""
    client = broker.open()
    client.send(data)
    client.expect_closed()


def test_a_second_connect_is_a_protocol_error(broker: Broker, client_id: str) -> None:
    """[MQTT-3.1.0-2] [MQTT-3.2.0-2] And it is not answered by a second CONNACK."""
    client = broker.connect(client_id)
    client.send(connect_packet(client_id))
    assert client.read().reason == 0x82
    client.expect_closed()


def test_nothing_after_a_malformed_packet_is_processed(broker: Broker, topic: str) -> None:
    """[MQTT-4.13.1-1] What follows in the same segment is ignored."""
    client, watcher = broker.connect(), broker.connect()
    watcher.subscribe(topic)
    client.send(packet(0, 0) + publish_packet(topic, b"dead"))
    client.expect_disconnect(*EITHER)
    assert watcher.received_before_fence(broker.connect()) == []
