"""The protocol core of the client, without I/O."""

from __future__ import annotations

import pytest

from pyrite.client import Message, PublishError
from pyrite.client.protocol import Answered, Connected, ConnectRefused, Ended, Protocol, Settled
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Ping,
    Publish,
    Suback,
    Subscribe,
    Wish,
    decode,
    encode,
)
from pyrite.protocols.mqtt.reasons import ProtocolError


def packets(data: bytes) -> list[Packet]:
    """Decode what a client sends."""
    found = []
    while data:
        reader = fields.Reader(data, 1)
        length = reader.varint()
        found.append(decode(data[0], reader.take(length), 5))
        data = data[reader.position :]
    return found


def connected(protocol: Protocol | None = None, present: bool = False, **properties: int) -> Protocol:
    """Return a protocol whose connection was accepted; its first output is still pending."""
    protocol = protocol or Protocol()
    protocol.connect(Connect("me"))
    assert [type(packet) for packet in packets(protocol.take())] == [Connect]
    events = protocol.receive(encode(Connack(0, present, dict(properties)), 5))
    assert isinstance(events[0], Connected)
    return protocol


def sent(protocol: Protocol) -> list[Packet]:
    """Return the pending packets."""
    return packets(protocol.take()) if protocol.has_output else []


def publishes(protocol: Protocol) -> list[tuple[bytes, int, bool]]:
    """Return the pending messages as (payload, packet identifier, DUP)."""
    return [(one.payload, one.packet_id, one.dup) for one in sent(protocol) if isinstance(one, Publish)]


def test_packets_can_arrive_in_pieces_of_any_size() -> None:
    stream = encode(Connack(), 5) + b"".join(
        encode(Publish(b"a/b", bytes(size), properties={"content_type": "x"} if size % 2 else {}), 5)
        for size in (0, 1, 127, 128, 20_000)
    )
    for portion in (1, 2, 3, 1_000, len(stream)):
        protocol = Protocol()
        protocol.connect(Connect("me"))
        events = []
        for at in range(0, len(stream), portion):
            events += protocol.receive(stream[at : at + portion])
        sizes = [len(event.payload) for event in events if isinstance(event, Message)]
        assert sizes == [0, 1, 127, 128, 20_000]


def test_qos_2_takes_four_packets() -> None:
    protocol = connected()
    outgoing = protocol.publish("a", b"x", 2)
    (first,) = sent(protocol)
    assert isinstance(first, Publish)
    assert protocol.receive(encode(Ack(fields.PUBREC, first.packet_id), 5)) == []
    assert sent(protocol) == [Ack(fields.PUBREL, first.packet_id)]
    assert protocol.receive(encode(Ack(fields.PUBCOMP, first.packet_id), 5)) == [Settled(outgoing)]
    assert protocol.in_flight == 0


def test_the_in_flight_window_respects_receive_maximum() -> None:
    """[MQTT-3.3.4-7]"""
    protocol = connected(receive_maximum=2)
    for number in range(4):
        protocol.publish("a", b"%d" % number, 1)
    flying = publishes(protocol)
    assert [payload for payload, _, _ in flying] == [b"0", b"1"]
    protocol.receive(encode(Ack(fields.PUBACK, flying[0][1]), 5))
    assert [payload for payload, _, _ in publishes(protocol)] == [b"2"]


def test_unacknowledged_messages_are_sent_again_on_a_resumed_session() -> None:
    """[MQTT-4.4.0-1], [MQTT-3.3.1-1]"""
    protocol = connected()
    for number, qos in enumerate((0, 1, 2, 2)):
        protocol.publish("a", b"%d" % number, qos)
    before = publishes(protocol)
    protocol.receive(encode(Ack(fields.PUBREC, before[2][1]), 5))
    protocol.lost()
    protocol.publish("a", b"4", 1)
    connected(protocol, present=True)
    again = sent(protocol)
    assert again[1] == Ack(fields.PUBREL, before[2][1])
    messages = [(one.payload, one.packet_id, one.dup) for one in again if isinstance(one, Publish)]
    assert messages[:2] == [(b"1", before[1][1], True), (b"3", before[3][1], True)]
    assert (messages[2][0], messages[2][2]) == (b"4", False)


def test_a_new_session_is_sent_all_messages_without_pubrec_as_new() -> None:
    protocol = connected()
    protocol.publish("a", b"1", 1)
    taken = protocol.publish("a", b"2", 2)
    before = publishes(protocol)
    protocol.receive(encode(Ack(fields.PUBREC, before[1][1]), 5))
    protocol.lost()
    protocol.connect(Connect("me"))
    protocol.take()
    events = protocol.receive(encode(Connack(), 5))
    assert events[1:] == [Settled(taken)]
    assert [(payload, dup) for payload, _, dup in publishes(protocol)] == [(b"1", False)]


def test_a_qos_2_message_is_delivered_once() -> None:
    """[MQTT-4.3.3-2]"""
    protocol = connected()
    packet = Publish(b"a", b"x", 2, packet_id=7)
    (message,) = protocol.receive(encode(packet, 5))
    assert isinstance(message, Message)
    assert sent(protocol) == []
    protocol.acknowledge(message)
    assert sent(protocol) == [Ack(fields.PUBREC, 7)]
    protocol.lost()
    connected(protocol, present=True)
    packet.dup = True
    assert protocol.receive(encode(packet, 5)) == []
    assert sent(protocol) == [Ack(fields.PUBREC, 7)]
    protocol.receive(encode(Ack(fields.PUBREL, 7), 5))
    assert sent(protocol) == [Ack(fields.PUBCOMP, 7)]
    assert len(protocol.receive(encode(Publish(b"a", b"y", 2, packet_id=7), 5))) == 1


def test_a_message_of_an_earlier_connection_is_not_acknowledged() -> None:
    protocol = connected()
    (message,) = protocol.receive(encode(Publish(b"a", b"x", 1, packet_id=7), 5))
    assert isinstance(message, Message)
    protocol.lost()
    protocol.acknowledge(message)
    connected(protocol, present=True)
    protocol.acknowledge(message)
    assert sent(protocol) == []


def test_an_unanswered_subscribe_is_sent_again_on_the_next_connection() -> None:
    protocol = connected()
    number = protocol.subscribe([Wish(b"a/#", 1)])
    assert [type(packet) for packet in sent(protocol)] == [Subscribe]
    protocol.lost()
    connected(protocol)
    assert [type(packet) for packet in sent(protocol)] == [Subscribe]
    answer = encode(Suback(fields.SUBACK, number, [1], {"reason_string": "fine"}), 5)
    assert protocol.receive(answer) == [Answered(number, [1], "fine")]


def test_refusals_become_events() -> None:
    protocol = connected()
    for qos, kind in ((1, fields.PUBACK), (2, fields.PUBREC)):
        outgoing = protocol.publish("a", b"", qos)
        ((_, number, _),) = publishes(protocol)
        refusal = encode(Ack(kind, number, 0x97, {"reason_string": "full"}), 5)
        assert protocol.receive(refusal) == [Settled(outgoing, 0x97, "full")]
    assert protocol.receive(encode(Disconnect(0x8B), 5)) == [Ended(0x8B, "")]
    protocol.connect(Connect("me"))
    refusing = Connack(0x87)
    assert protocol.receive(encode(refusing, 5)) == [ConnectRefused(refusing)]


def test_messages_that_connack_rules_out_are_not_sent() -> None:
    protocol = connected(maximum_packet_size=20, maximum_qos=1, retain_available=0)
    protocol.publish("a", bytes(14))  # 2 for the header, 3 for the topic, 1 for the properties
    assert len(protocol.take()) == 20
    for arguments in (("a", bytes(15), 0, False), ("a", b"", 2, False), ("a", b"", 1, True)):
        with pytest.raises(PublishError):
            protocol.publish(*arguments)
    assert not protocol.has_output


def test_a_withdrawn_message_is_not_sent() -> None:
    protocol = connected(receive_maximum=1)
    protocol.publish("a", b"1", 1)
    protocol.withdraw(protocol.publish("a", b"2", 1))
    ((_, number, _),) = publishes(protocol)
    protocol.receive(encode(Ack(fields.PUBACK, number), 5))
    assert publishes(protocol) == []


def test_unanswered_pings_are_counted() -> None:
    protocol = connected()
    protocol.ping()
    assert sent(protocol) == [Ping(fields.PINGREQ)]
    assert protocol.pings_unanswered == 1
    protocol.receive(encode(Ping(fields.PINGRESP), 5))
    assert protocol.pings_unanswered == 0


@pytest.mark.parametrize(
    "data",
    [
        encode(Subscribe(1, [Wish(b"a")]), 5),
        encode(Connack(), 5),
        encode(Ping(fields.PINGREQ), 5),
        b"\x30\xff\xff\xff\xff\x01",
        b"\x30\x03\x00\x09a",
        b"\x32\x06\x00\x01a\x00\x00\x00",
        b"\x36\x06\x00\x01a\x00\x01\x00",
        b"\x30\x01\x00",
        b"\x30\x04\x00\x01\xff\x00",
        b"\x30\x05\x00\x01a\x02\x0b",
        encode(Publish(b"", properties={"topic_alias": 1}), 5),
        encode(Publish(b""), 5),
    ],
)
def test_protocol_violations_of_the_broker_raise_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        connected().receive(data)


def test_a_packet_before_connack_is_a_protocol_error() -> None:
    """[MQTT-3.2.0-1]"""
    protocol = Protocol()
    protocol.connect(Connect("me"))
    with pytest.raises(ProtocolError, match="CONNACK"):
        protocol.receive(encode(Publish(b"a"), 5))
