"""Section 1.5: how values are encoded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Broker
from .wire import (
    CONNACK,
    PINGREQ,
    PUBLISH,
    Will,
    auth_packet,
    connect_packet,
    disconnect_packet,
    options,
    packet,
    publish_packet,
    subscribe_packet,
    unsubscribe_packet,
)

NOT_UTF8 = {
    "U+0000": b"a\x00b",
    "U+D800": b"\xed\xa0\x80",
    "U+DFFF": b"\xed\xbf\xbf",
    "a surrogate pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "an overlong slash": b"\xc0\xaf",
    "an overlong U+0000": b"\xc0\x80",
    "a lone continuation byte": b"a\x80",
    "a cut sequence": b"\xe2\x82",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
    "the byte FF": b"\xff",
}

IN_CONNECT: dict[str, Callable[[bytes], bytes]] = {
    "client identifier": lambda bad: connect_packet(bad),
    "will topic": lambda bad: connect_packet("c", will=Will(bad)),
    "will content type": lambda bad: connect_packet("c", will=Will("t", properties={"content_type": bad})),
    "will response topic": lambda bad: connect_packet(
        "c", will=Will("t", properties={"response_topic": bad})
    ),
    "will user property": lambda bad: connect_packet(
        "c", will=Will("t", properties={"user_property": ("name", bad)})
    ),
    "user name": lambda bad: connect_packet("c", username=bad),
    "user property name": lambda bad: connect_packet("c", user_property=(bad, "value")),
    "user property value": lambda bad: connect_packet("c", user_property=("name", bad)),
    "authentication method": lambda bad: connect_packet("c", authentication_method=bad),
}

AFTER_CONNECT: dict[str, Callable[[bytes], bytes]] = {
    "topic name": lambda bad: publish_packet(bad),
    "response topic": lambda bad: publish_packet("t", response_topic=bad),
    "content type": lambda bad: publish_packet("t", content_type=bad),
    "PUBLISH user property name": lambda bad: publish_packet("t", user_property=(bad, "value")),
    "PUBLISH user property value": lambda bad: publish_packet("t", user_property=("name", bad)),
    "topic filter of SUBSCRIBE": lambda bad: subscribe_packet(1, [(bad, 0)]),
    "topic filter of a shared subscription": lambda bad: subscribe_packet(1, [(b"$share/g/" + bad, 0)]),
    "SUBSCRIBE user property": lambda bad: subscribe_packet(1, [("t", 0)], user_property=(bad, "value")),
    "topic filter of UNSUBSCRIBE": lambda bad: unsubscribe_packet(1, [bad]),
    "UNSUBSCRIBE user property": lambda bad: unsubscribe_packet(1, ["t"], user_property=("name", bad)),
    "DISCONNECT reason string": lambda bad: disconnect_packet(0, reason_string=bad),
    "DISCONNECT user property": lambda bad: disconnect_packet(0, user_property=(bad, "value")),
    "AUTH method": lambda bad: auth_packet(0x19, authentication_method=bad),
}


@pytest.mark.parametrize("bad", NOT_UTF8.values(), ids=NOT_UTF8)
@pytest.mark.parametrize("build", IN_CONNECT.values(), ids=IN_CONNECT)
def test_a_connect_with_a_string_that_is_not_utf8_is_malformed(
    broker: Broker, build: Callable[[bytes], bytes], bad: bytes
) -> None:
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.7-1] [MQTT-3.1.3-4] [MQTT-3.1.3-11] [MQTT-3.1.3-12]"""
    client = broker.open()
    client.send(build(bad))
    client.expect_refused(0x81)


@pytest.mark.parametrize("bad", NOT_UTF8.values(), ids=NOT_UTF8)
@pytest.mark.parametrize("build", AFTER_CONNECT.values(), ids=AFTER_CONNECT)
def test_a_packet_with_a_string_that_is_not_utf8_is_malformed(
    broker: Broker, build: Callable[[bytes], bytes], bad: bytes
) -> None:
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.7-1] [MQTT-3.3.2-1] [MQTT-3.3.2-13] [MQTT-3.3.2-19]
    [MQTT-3.8.3-1] [MQTT-3.10.3-1] [MQTT-4.7.3-2]
    """
    client, bystander = broker.connect(), broker.connect()
    client.send(build(bad))
    client.expect_disconnect(0x81)
    bystander.ping()


def test_a_byte_order_mark_is_a_character_like_any_other(broker: Broker, topic: str) -> None:
    """[MQTT-1.5.4-3] EF BB BF is U+FEFF wherever it appears, and is not stripped off."""
    client = broker.connect()
    marked = f"\ufeff{topic}"
    client.subscribe(marked)
    client.publish(topic, b"without")
    client.publish(marked, b"with", content_type="\ufefftext", user_property=[("\ufeffk", "v\ufeff")])
    message = client.receive()
    assert (message.topic, message.payload) == (marked, b"with")
    assert message.properties["content_type"] == "\ufefftext"
    assert message.properties["user_property"] == [("\ufeffk", "v\ufeff")]


@pytest.mark.parametrize(
    "text", ["\u0001", "\u007f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\U0010ffff"]
)
def test_the_edges_of_unicode_pass_unchanged(broker: Broker, topic: str, text: str) -> None:
    """[MQTT-1.5.4-1] Well-formed UTF-8 is delivered."""
    client = broker.connect()
    client.subscribe(topic)
    client.publish(topic, user_property=[(text, text)], content_type=text)
    assert client.receive().properties == {"user_property": [(text, text)], "content_type": text}


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 16_383, 16_384, 16_385, 100_000])
def test_lengths_are_encoded_in_as_few_bytes_as_possible(broker: Broker, topic: str, size: int) -> None:
    """[MQTT-1.5.5-1] The reader of this suite refuses a length that is longer than it need be."""
    client = broker.connect()
    client.subscribe(topic)
    overhead = len(publish_packet(topic)) - 2
    payload = bytes(max(size - overhead, 0))
    client.publish(topic, payload)
    assert client.receive().payload == payload


@pytest.mark.parametrize("size", [126, 127, 128, 16_383, 16_384])
def test_property_lengths_are_encoded_in_as_few_bytes_as_possible(
    broker: Broker, topic: str, size: int
) -> None:
    """[MQTT-1.5.5-1] The same for the length of the properties."""
    client = broker.connect()
    client.subscribe(topic)
    data = bytes(size - 3)
    client.publish(topic, correlation_data=data)
    assert client.receive().properties == {"correlation_data": data}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes([PUBLISH << 4]) + b"\xff\xff\xff\xff\x7f", id="remaining length"),
        pytest.param(bytes([PUBLISH << 4]) + b"\x80\x80\x80\x80\x01", id="remaining length, small value"),
        pytest.param(packet(PUBLISH, 0, b"\x00\x01t" + b"\x80\x80\x80\x80\x01"), id="property length"),
        pytest.param(
            publish_packet("t", raw=b"\x0b\x80\x80\x80\x80\x01"), id="subscription identifier in PUBLISH"
        ),
        pytest.param(
            subscribe_packet(1, [("t", options())], raw=b"\x0b\xff\xff\xff\xff\x01"),
            id="subscription identifier in SUBSCRIBE",
        ),
    ],
)
def test_a_variable_byte_integer_of_five_bytes_is_malformed(broker: Broker, data: bytes) -> None:
    """Section 1.5.5: at most four bytes. [MQTT-4.13.1-1]"""
    client, bystander = broker.connect(), broker.connect()
    client.send(data)
    client.expect_disconnect(0x81)
    bystander.ping()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes([PINGREQ << 4, 0x80, 0x00]), id="remaining length 0"),
        pytest.param(b"\x30\x84\x00" + publish_packet("t")[2:], id="remaining length 4"),
        pytest.param(packet(PUBLISH, 0, b"\x00\x01t" + b"\x80\x00"), id="property length"),
        pytest.param(publish_packet("t", raw=b"\x81\x00\x01"), id="property identifier"),
        pytest.param(
            subscribe_packet(1, [("t", options())], raw=b"\x0b\x81\x00"), id="subscription identifier"
        ),
    ],
)
def test_a_variable_byte_integer_longer_than_it_need_be_is_malformed(broker: Broker, data: bytes) -> None:
    """[MQTT-1.5.5-1] Pyrite holds the client to it."""
    client, bystander = broker.connect(), broker.connect()
    client.send(data)
    client.expect_disconnect(0x81)
    bystander.ping()


def test_a_packet_may_arrive_byte_by_byte(broker: Broker, client_id: str) -> None:
    """[MQTT-4.2.0-1] TCP is a stream of bytes without boundaries."""
    client = broker.open()
    for at in connect_packet(client_id, keep_alive=60, user_property=[("a", "b")]):
        client.send(bytes([at]))
    assert client.expect(CONNACK).reason == 0
    client.ping()
