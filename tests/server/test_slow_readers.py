"""Clients that do not read: their queues are bounded and counted, and intact when they read again."""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.conformance.client import Client
from tests.conformance.wire import PUBLISH, publish_packet, subscribe_packet
from tests.support.waiting import wait_until

from .conftest import Serve
from .peers import MIB, PLAIN_AND_LAYERED, Server, WebSocket, endpoint_of, unique

WAITING = 4 * MIB
LIMITED = f"[limits]\nmax_waiting_bytes = {WAITING}\n[mqtt]\nsys_interval = 1\n"
SLACK = 24 * MIB
"""Memory that a broker may need besides: buffers of the allocator, of a read, of a write."""


def numbered(topic: str, number: int, size: int = 1000) -> bytes:
    return publish_packet(topic, b"%08d" % number + bytes(size - 8))


def flood(publisher: Client, topic: str, count: int, size: int = 1000) -> None:
    """Publish numbered QoS 0 messages, and wait until the broker has read them."""
    for start in range(0, count, 100):
        publisher.send(b"".join(numbered(topic, number, size) for number in range(start, start + 100)))
    publisher.ping()


def slow_reader(server: Server, scheme: str, topic: str, qos: int = 0) -> Client:
    client = server.connect(scheme, receive_buffer=65536)
    client.subscribe(topic, qos=qos)
    return client


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_memory_stays_bounded_while_a_subscriber_does_not_read(serve: Serve, scheme: str, topic: str) -> None:
    server = serve(LIMITED, *{scheme, "mqtt"})
    slow_reader(server, scheme, topic)
    publisher = server.connect()
    before = server.resident
    highest = 0
    for _ in range(6):
        flood(publisher, topic, 10_000)  # 60 MB in all
        highest = max(highest, server.resident)
    assert highest - before < WAITING + SLACK


@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
def test_messages_dropped_for_a_slow_subscriber_are_counted(serve: Serve, scheme: str, topic: str) -> None:
    server = serve(LIMITED, *{scheme, "mqtt"})
    slow, publisher = slow_reader(server, scheme, topic), server.connect()
    flood(publisher, topic, 20_000)
    received = numbers_before_end(slow, publisher, topic)
    assert 0 < len(received) < 20_000
    dropped = 20_000 - len(received)
    wait_until(lambda: server.figure("publish/messages/dropped") == dropped, f"{dropped} are counted")


@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
def test_messages_to_a_slow_subscriber_are_intact_and_in_order(serve: Serve, scheme: str, topic: str) -> None:
    server = serve(LIMITED, *{scheme, "mqtt"})
    slow, publisher = slow_reader(server, scheme, topic), server.connect()
    flood(publisher, topic, 20_000)
    received = numbers_before_end(slow, publisher, topic)
    assert received == sorted(set(received))


def numbers_before_end(slow: Client, publisher: Client, topic: str) -> list[int]:
    """Read up to the answer to a request, which nothing can overtake; return the message numbers."""
    found = []
    slow.send(subscribe_packet(60_000, [(unique("end"), 0)]))
    while (packet := slow.read()).kind == PUBLISH:
        assert packet.topic == topic
        found.append(int(packet.payload[:8]))
    return found


@pytest.mark.parametrize(
    ("scheme", "waiting"),
    [(scheme, waiting) for scheme in PLAIN_AND_LAYERED for waiting in (WAITING, 30_000)],
)
def test_a_subscriber_that_reads_again_gets_messages_again(
    serve: Serve, scheme: str, topic: str, waiting: int
) -> None:
    server = serve(f"[limits]\nmax_waiting_bytes = {waiting}\n", *{scheme, "mqtt"})
    slow, publisher = slow_reader(server, scheme, topic), server.connect()
    for number in range(2000):
        publisher.send(numbered(topic, number, 7000))
        publisher.ping()  # so that each is a batch of its own
    last = -1
    with contextlib.suppress(TimeoutError):  # until it has everything that waited
        while True:
            last = int(slow.read(0.5).payload[:8])
    assert last < 1999, "the test is not one if nothing is dropped"
    for number in range(2000, 2010):
        publisher.send(numbered(topic, number, 7000))
        assert int(slow.read().payload[:8]) == number


@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
def test_qos_1_messages_wait_for_a_slow_subscriber(serve: Serve, scheme: str, topic: str) -> None:
    server = serve(f"[limits]\nmax_waiting_bytes = {MIB}\n", *{scheme, "mqtt"})
    slow, publisher = slow_reader(server, scheme, topic, qos=1), server.connect()
    publish_all(publisher, topic, 10_000)
    assert receive_all(slow, 10_000) == list(range(10_000))


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
@pytest.mark.parametrize("name", ["t", "a/longer/topic"])  # packets, and so what waits, of another size
def test_no_qos_1_message_is_lost_with_a_small_output_buffer(serve: Serve, scheme: str, name: str) -> None:
    server = serve("[limits]\nmax_waiting_bytes = 20000\nmax_packet_size = 20000\n", *{scheme, "mqtt"})
    slow, publisher = slow_reader(server, scheme, name, qos=1), server.connect()
    publish_all(publisher, name, 8_000)
    assert receive_all(slow, 8_000) == list(range(8_000))


def publish_all(publisher: Client, topic: str, count: int) -> None:
    """Publish numbered QoS 1 messages of 1000 bytes, and wait for all acknowledgements."""
    for start in range(0, count, 500):
        publisher.send(
            b"".join(
                publish_packet(topic, b"%08d" % number + bytes(992), qos=1, packet_id=number % 500 + 1)
                for number in range(start, start + 500)
            )
        )
        for _ in range(500):
            publisher.read()


def receive_all(slow: Client, count: int) -> list[int]:
    """Acknowledge messages and return their numbers."""
    return [int(slow.receive().payload[:8]) for _ in range(count)]


def test_qos_1_messages_beyond_the_queue_are_dropped(serve: Serve, topic: str) -> None:
    server = serve("[limits]\nmax_queued_messages = 1000\nmax_inflight = 10\n")
    slow, publisher = slow_reader(server, "mqtt", topic, qos=1), server.connect()
    publish_all(publisher, topic, 2000)
    assert receive_all(slow, 1010) == list(range(1010))
    with pytest.raises(TimeoutError):
        slow.read(0.3)


def test_memory_stays_bounded_while_qos_1_messages_wait(serve: Serve, topic: str) -> None:
    server = serve(f"[limits]\nmax_queued_bytes = {8 * MIB}\nmax_waiting_bytes = {MIB}\nmax_inflight = 100\n")
    slow_reader(server, "mqtt", topic, qos=1)
    publisher = server.connect()
    before = server.resident
    publish_all(publisher, topic, 50_000)  # 50 MB
    assert server.resident - before < 8 * MIB + MIB + SLACK


# Clients that ask and do not listen

LITTLE = "[limits]\nmax_waiting_bytes = 65536\nmax_packet_size = 65536\n"
REQUESTS = {
    "PINGREQ": b"\xc0\x00" * 5_000,
    "SUBSCRIBE": subscribe_packet(1, [("a", 0)]) * 1_000,
    "PUBLISH": publish_packet("$SYS/not/allowed", qos=1, packet_id=1) * 1_000,
}


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [("mqtt", "PUBLISH"), ("wss", "PUBLISH"), ("unix", "PINGREQ"), ("unix", "SUBSCRIBE")],
)
def test_a_client_that_never_reads_its_answers_is_closed(serve: Serve, scheme: str, kind: str) -> None:
    server = serve(LITTLE, scheme)
    client, before = server.connect(scheme, receive_buffer=4096), server.resident
    requests = REQUESTS[kind]
    if scheme in ("ws", "wss"):
        requests = WebSocket.encode(WebSocket.BINARY, requests)
    assert closed_at_last(client, requests, 64 * MIB), "the client is connected still"
    assert server.resident - before < MIB + SLACK


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_websocket_that_never_reads_pongs_does_not_fill_the_memory(serve: Serve, scheme: str) -> None:
    server = serve(LITTLE, scheme)
    client, before = server.connect(scheme, receive_buffer=4096), server.resident
    closed_at_last(client, WebSocket.encode(WebSocket.PING, bytes(125)) * 500, 48 * MIB)
    assert server.resident - before < MIB + SLACK


def closed_at_last(client: Client, data: bytes, most: int) -> bool:
    """Send without reading, up to a number of bytes or 15 seconds; return whether the broker closed."""
    endpoint = endpoint_of(client)
    endpoint.settimeout(15)
    deadline = time.monotonic() + 15
    try:
        for _ in range(most // len(data)):
            endpoint.sendall(data)
            if time.monotonic() > deadline:
                return False
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def test_closing_a_client_that_does_not_read_frees_its_memory(serve: Serve, topic: str) -> None:
    server = serve(f"[limits]\nmax_waiting_bytes = {64 * MIB}\n")
    publisher = server.connect()
    before, descriptors = server.resident, server.descriptors
    peaks = []
    for _ in range(3):  # the process may keep what is free, but uses it again
        slow = slow_reader(server, "mqtt", topic)
        flood(publisher, topic, 60_000)
        peaks.append(server.resident)
        slow.close()
        wait_until(lambda: server.descriptors == descriptors, "the socket is closed")
    assert peaks[0] - before > 30 * MIB, "the test is not one if nothing waits"
    assert max(peaks) - peaks[0] < SLACK


@pytest.mark.parametrize(
    ("scheme", "fault"),
    [("mqtt", "in MQTT"), ("wss", "in MQTT"), ("wss", "in WebSocket")],
)
def test_a_client_with_a_protocol_error_is_closed_though_much_waits_for_it(
    serve: Serve, scheme: str, fault: str, topic: str
) -> None:
    server = serve("", *{scheme, "mqtt"})
    slow, publisher = slow_reader(server, scheme, topic), server.connect()
    flood(publisher, topic, 10_000)
    descriptors = server.descriptors
    if fault == "in MQTT":
        slow.send(b"\x00\x00")  # no packet at all
    else:
        assert isinstance(slow.transport, WebSocket)
        slow.transport.frame(WebSocket.TEXT, b"hello")
    wait_until(lambda: server.descriptors == descriptors - 1, "the socket is closed", 10)
