"""A client that floods the broker does not delay others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conformance.client import Client
from tests.conformance.wire import publish_packet, subscribe_packet
from tests.support.waiting import let_pass

from .conftest import Serve
from .peers import SCHEMES, Server, WebSocket, endpoint_of

TIME = 1.0
"""Seconds of every flood."""
PATIENCE = 0.25
"""Seconds within which 99 of 100 messages of a well-behaved pair have to arrive."""


@contextmanager
def flooding(client: Client, data: bytes) -> Iterator[list[int]]:
    """Send `data` repeatedly, as fast as the broker reads, while the block runs; count the bytes."""
    endpoint = endpoint_of(client)
    endpoint.settimeout(0.1)
    if isinstance(client.transport, WebSocket):
        data = WebSocket.encode(WebSocket.BINARY, data)
    view, stopped, sent = memoryview(data), threading.Event(), [0]

    def flood() -> None:
        at = 0
        while not stopped.is_set():
            try:
                count = endpoint.send(view[at:])
            except TimeoutError:
                continue
            except OSError:
                return
            sent[0] += count
            at = (at + count) % len(data)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield sent
    finally:
        stopped.set()
        thread.join(10)


def latencies(publisher: Client, subscriber: Client, topic: str, qos: int) -> list[float]:
    """Send messages one by one for a while, require them in order, and return their latencies."""
    found = []
    end = time.monotonic() + TIME
    number = 0
    while time.monotonic() < end:
        began = time.monotonic()
        publisher.publish(topic, b"%d" % number, qos=qos)
        assert subscriber.receive(30.0).payload == b"%d" % number
        found.append(time.monotonic() - began)
        number += 1
        let_pass(0.01, "the pair is well-behaved: about 100 messages a second")
    return found


def assert_prompt(found: list[float]) -> None:
    found.sort()
    late = found[-1 - len(found) // 100]
    assert late < PATIENCE, f"1 of 100 messages took {late:.3f} s or more ({len(found)} messages)"


def pair(server: Server, scheme: str, topic: str, qos: int) -> tuple[Client, Client]:
    publisher, subscriber = server.connect(scheme), server.connect(scheme)
    subscriber.subscribe(topic, qos=qos)
    return publisher, subscriber


@pytest.mark.parametrize(("scheme", "qos"), [("mqtt", 0), ("mqtt", 1), ("wss", 1)])
def test_a_flood_to_a_slow_consumer_does_not_delay_others(
    serve: Serve, scheme: str, qos: int, topic: str
) -> None:
    server = serve("", *{scheme, "mqtt"})
    slow = server.connect(scheme, receive_buffer=65536)
    slow.subscribe("flood")
    publisher, subscriber = pair(server, "mqtt", topic, qos)
    with flooding(server.connect(scheme), publish_packet("flood", bytes(1000)) * 64) as sent:
        found = latencies(publisher, subscriber, topic, qos)
    assert sent[0] > 3_000_000, "that was no flood"
    assert_prompt(found)


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        ("mqtt", "PINGREQ"),
        ("wss", "PINGREQ"),
        ("mqtt", "SUBSCRIBE"),
        ("mqtt", "PUBLISH of QoS 1 on many topics"),
    ],
)
def test_a_flood_of_requests_does_not_delay_others(serve: Serve, scheme: str, kind: str, topic: str) -> None:
    requests = {
        "PINGREQ": b"\xc0\x00" * 16_384,
        "SUBSCRIBE": subscribe_packet(1, [("a", 0)]) * 3_000,
        "PUBLISH of QoS 1 on many topics": b"".join(
            publish_packet(f"many/{number}", qos=1, packet_id=number + 1) for number in range(2000)
        ),
    }[kind]
    server = serve("", *{scheme, "mqtt"})
    publisher, subscriber = pair(server, "mqtt", topic, 1)
    client = server.connect(scheme)
    with flooding(client, requests), draining(client):
        found = latencies(publisher, subscriber, topic, 1)
    assert_prompt(found)


@contextmanager
def draining(client: Client) -> Iterator[None]:
    """Read and drop what the broker sends, while the block runs."""
    endpoint, stopped = endpoint_of(client), threading.Event()

    def drain() -> None:
        while not stopped.is_set():
            try:
                if not endpoint.recv(65536):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(10)


def test_a_subscriber_with_ten_thousand_retained_messages_does_not_delay_others(
    serve: Serve, topic: str
) -> None:
    server = serve()
    publisher, subscriber = pair(server, "mqtt", topic, 1)
    keeper = server.connect()
    for start in range(0, 10_000, 1000):
        keeper.send(
            b"".join(publish_packet(f"kept/{n}", b"x", retain=True) for n in range(start, start + 1000))
        )
    keeper.ping()
    with flooding(server.connect(receive_buffer=65536), subscribe_packet(1, [("kept/#", 0)])):
        found = latencies(publisher, subscriber, topic, 1)
    assert_prompt(found)


def test_every_kind_of_connection_is_served_while_others_flood(serve: Serve, topic: str) -> None:
    server = serve("", *SCHEMES)
    pairs = [pair(server, scheme, f"{topic}/{scheme}", 1) for scheme in SCHEMES]
    with flooding(server.connect(), publish_packet("flood", bytes(1000)) * 64):
        end = time.monotonic() + TIME
        number = 0
        while time.monotonic() < end:
            for scheme, (publisher, subscriber) in zip(SCHEMES, pairs, strict=True):
                publisher.publish(f"{topic}/{scheme}", b"%d" % number, qos=1)
                assert subscriber.receive().payload == b"%d" % number
            number += 1
    assert number > 3
