"""Packets up to the maximum size, in small pieces, arrive unchanged over every kind of listener."""

from __future__ import annotations

import random
from hashlib import sha256

import pytest

from tests.conformance.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, ack_packet, publish_packet

from .conftest import Serve
from .peers import MIB, PLAIN_AND_LAYERED, Server

LARGEST = 16 * MIB
PIECE = 100_000


def largest(topic: str, qos: int) -> bytes:
    """Return a PUBLISH of exactly the maximum packet size, with random bytes."""
    packet_id = 1 if qos else None
    room = (
        LARGEST
        - len(publish_packet(topic, bytes(LARGEST - 100), qos=qos, packet_id=packet_id))
        + LARGEST
        - 100
    )
    packet = publish_packet(topic, random.Random(qos).randbytes(room), qos=qos, packet_id=packet_id)
    assert len(packet) == LARGEST
    return packet


def payload_of(packet: bytes, topic: str, qos: int) -> bytes:
    return packet[1 + 4 + 2 + len(topic) + (2 if qos else 0) + 1 :]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_a_packet_of_the_maximum_size_passes_in_pieces(
    server: Server, scheme: str, qos: int, topic: str
) -> None:
    subscriber, publisher = server.connect(scheme), server.connect(scheme)
    subscriber.subscribe(topic, qos=qos)
    packet = largest(topic, qos)
    for at in range(0, LARGEST, PIECE):
        publisher.send(packet[at : at + PIECE])
    if qos:
        assert publisher.expect(PUBACK if qos == 1 else PUBREC, 15).reason == 0
    if qos == 2:
        publisher.send(ack_packet(PUBREL, 1))
        publisher.expect(PUBCOMP)
    message = subscriber.receive(15)
    assert (message.size, message.qos) == (LARGEST, qos)
    assert sha256(message.payload).digest() == sha256(payload_of(packet, topic, qos)).digest()


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_a_packet_of_the_maximum_size_passes_through_tls(server: Server, scheme: str, topic: str) -> None:
    subscriber, publisher = server.connect(scheme), server.connect(scheme)
    subscriber.subscribe(topic, qos=1)
    packet = largest(topic, 1)
    publisher.send(packet)
    publisher.expect(PUBACK, 15)
    assert sha256(subscriber.receive(15).payload).digest() == sha256(payload_of(packet, topic, 1)).digest()


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_a_packet_one_byte_larger_ends_the_connection(server: Server, scheme: str, topic: str) -> None:
    client = server.connect(scheme)
    length = LARGEST + 1 - 5
    client.send(
        bytes([0x30, length & 127 | 128, length >> 7 & 127 | 128, length >> 14 & 127 | 128, length >> 21])
    )
    client.expect_disconnect(0x95)


def test_a_packet_may_come_byte_by_byte(server: Server, topic: str) -> None:
    client = server.connect()
    client.subscribe(topic, qos=1)
    payload = random.Random(1).randbytes(2000)
    for byte in publish_packet(topic, payload, qos=1, packet_id=7):
        client.send(bytes([byte]))
    assert client.wait_for(PUBACK).packet_id == 7
    assert client.receive().payload == payload


def test_a_packet_may_end_anywhere_in_a_piece(server: Server, topic: str) -> None:
    client, source = server.connect(), random.Random(2)
    client.subscribe(topic)
    payloads = [source.randbytes(source.randrange(3000)) for _ in range(300)]
    stream = b"".join(publish_packet(topic, payload) for payload in payloads)
    at = 0
    while at < len(stream):
        size = source.randrange(1, 5000)
        client.send(stream[at : at + size])
        at += size
    assert [client.expect(PUBLISH).payload for _ in payloads] == payloads


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_partial_writes_to_a_slow_reader_keep_messages_intact(
    server: Server, scheme: str, qos: int, topic: str
) -> None:
    slow = server.connect(scheme, receive_buffer=8192)
    slow.subscribe(topic, qos=qos)
    publisher = server.connect()
    source = random.Random(3)
    payloads = [source.randbytes(source.randrange(1, 120_000)) for _ in range(100)]  # 6 MB
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    expected = [sha256(payload).digest() for payload in payloads]
    assert [sha256(slow.receive().payload).digest() for _ in payloads] == expected


def test_a_large_message_to_many_subscribers_of_both_versions_is_intact(server: Server, topic: str) -> None:
    subscribers = [server.connect(version=version) for version in (4, 5) for _ in range(5)]
    for number, subscriber in enumerate(subscribers):
        subscriber.subscribe(topic, qos=number % 3)
    payload = random.Random(4).randbytes(MIB)
    server.connect().publish(topic, payload, qos=2)
    for subscriber in subscribers:
        assert subscriber.receive().payload == payload


def test_a_client_is_not_sent_a_packet_larger_than_its_maximum(server: Server, topic: str) -> None:
    client, publisher = server.connect(maximum_packet_size=1000), server.connect()
    client.subscribe(topic, qos=1)
    for size in (100, 5000, 200):
        publisher.publish(topic, bytes(size), qos=1)
    assert [len(client.receive().payload) for _ in range(2)] == [100, 200]


def test_the_maximum_can_be_raised_to_what_the_protocol_allows(serve: Serve) -> None:
    client = serve("[limits]\nmax_packet_size = 268435460\n").connect()
    assert client.connack is not None
    assert client.connack.properties["maximum_packet_size"] == 268_435_460
    length = 40 * MIB
    client.send(publish_packet("t", bytes(length), qos=1, packet_id=1))
    assert client.expect(PUBACK, 15).packet_id == 1


def test_an_unfinished_large_packet_delays_no_client(server: Server, topic: str) -> None:
    halfway, client = server.connect(), server.connect()
    halfway.send(publish_packet(topic, bytes(MIB))[: MIB // 2])
    client.subscribe(topic)
    client.publish(topic, b"small")
    assert client.receive().payload == b"small"
