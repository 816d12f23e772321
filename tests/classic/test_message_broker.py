"""The message broker: the session and statements of its page, through its own programs."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import pytest

from pyrite.client.line import LineClient
from tests.classic.line_programs import (
    ClassicServer,
    Peer,
    a_port_in_use_is_one_sentence,
    client_answers_pings,
    client_pings,
    dial_when_open,
    failures_are_one_sentence,
    unused_ports,
)
from tests.classic.programs import CLASSIC, Program, Start

CLIENT = "message_broker/client.py"


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """The port of a server with default settings."""
    started: list[Program] = []

    def start(program: str, *arguments: str, **options: bool) -> Program:
        started.append(Program(str(CLASSIC / program), *arguments, merged=options.get("merged", False)))
        return started[-1]

    try:
        yield str(ClassicServer(start, "message_broker").ports[0])
        code, printed, _ = started[0].end(signal.SIGINT)
        assert (code, printed) == (0, "stopped\n")
    finally:
        for program in started:
            program.process.kill()


def test_the_session_of_the_page_runs_as_shown(start: Start, port: str) -> None:
    subscriber = start(CLIENT, "127.0.0.1", port, "subscribe", "topic-1", "topic-2")
    assert subscriber.line() == "subscribing on topic-1 topic-2\n"
    for topic in ("topic-1", "topic-2", "topic-1"):
        publisher = start(CLIENT, "127.0.0.1", port, "publish", topic, "message")
        assert publisher.end() == (0, "your message published successfully\n", "")
        assert subscriber.line() == f"{topic}: message\n"
    assert subscriber.end(signal.SIGINT) == (130, "", "stopped\n")


def test_failures_are_printed_as_on_the_page(start: Start) -> None:
    """Neither PubAck nor SubAck arrives within 10 s."""
    with Peer() as server:
        publisher = start(CLIENT, "127.0.0.1", server.port, "publish", "topic", "message")
        subscriber = start(CLIENT, "127.0.0.1", server.port, "subscribe", "topic-1", "topic-2")
        too_late = "the server cannot be reached: no answer came within 10 s\n"
        assert publisher.end() == (1, "your message publishing failed\n", too_late)
        assert subscriber.end() == (1, "subscribing failed\n", too_late)


def test_every_subscriber_gets_every_message_of_a_burst_in_order(start: Start, port: str) -> None:
    subscribers = [start(CLIENT, "127.0.0.1", port, "subscribe", "burst", "other") for _ in range(2)]
    for subscriber in subscribers:
        assert subscriber.line() == "subscribing on burst other\n"
    with LineClient("127.0.0.1", int(port)) as publisher:
        publisher.publish_many("burst", [b"%d" % number for number in range(500)])
    for subscriber in subscribers:
        assert [subscriber.line() for _ in range(500)] == [f"burst: {number}\n" for number in range(500)]


def test_a_subscriber_that_reads_slowly_gets_every_message(start: Start, port: str) -> None:
    """More messages than may be in flight to a client or wait in memory for it."""
    payload, small = b"x" * 1_000_000, 5_000
    subscriber = start(CLIENT, "127.0.0.1", port, "subscribe", "slow")
    assert subscriber.line() == "subscribing on slow\n"
    subscriber.process.send_signal(signal.SIGSTOP)
    with LineClient("127.0.0.1", int(port), timeout=60) as publisher:
        publisher.publish_many("slow", [b"%d" % number for number in range(small)])
        for number in range(80):
            publisher.publish("slow", b"%d %s" % (number, payload))
    subscriber.process.send_signal(signal.SIGCONT)
    assert [subscriber.line(60) for _ in range(small)] == [f"slow: {number}\n" for number in range(small)]
    for number in range(80):
        assert subscriber.line(60).startswith(f"slow: {number} xxx")


def test_messages_are_ascii_strings_of_any_length(start: Start, port: str) -> None:
    subscriber = start(CLIENT, "127.0.0.1", port, "subscribe", "length")
    assert subscriber.line() == "subscribing on length\n"
    for message in ("", "two  spaces", "-h", "y" * 100_000):
        publisher = start(CLIENT, "127.0.0.1", port, "publish", "length", message)
        assert publisher.end() == (0, "your message published successfully\n", "")
        assert subscriber.line() == f"length: {message}\n"


def test_each_topic_has_its_own_connection(start: Start) -> None:
    with Peer() as server:
        subscriber = start(CLIENT, "127.0.0.1", server.port, "subscribe", "a", "b", "c")
        for topic in "abc":
            server.accept()
            assert server.line() == f"Subscribe {topic} ack"
            server.say(f"SubAck {topic}")
        assert subscriber.line() == "subscribing on a b c\n"


def test_the_server_pings_and_closes_no_connection(start: Start) -> None:
    server = ClassicServer(start, "message_broker", "--ping-interval", "0.2")
    with socket.create_connection(("127.0.0.1", server.ports[0]), timeout=20) as silent:
        reading = silent.makefile("rb")
        assert [reading.readline() for _ in range(8)] == [b"Ping\n"] * 8
        silent.sendall(b"Ping here\n")
        while (line := reading.readline()) == b"Ping\n":
            pass
        assert line == b"Pong here\n"


def test_the_server_prints_nothing(start: Start) -> None:
    """Neither at its start nor about clients, not even silent ones."""
    (port,) = unused_ports(1)
    server = start("message_broker/server.py", "--port", str(port), "--ping-interval", "0.1")
    with dial_when_open(port, server) as silent:
        reading = silent.makefile("rb")
        assert [reading.readline() for _ in range(5)] == [b"Ping\n"] * 5
    assert server.end(signal.SIGINT) == (0, "", "stopped\n")


def test_nothing_is_sent_to_a_client_that_has_closed(start: Start, port: str) -> None:
    with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as leaving:
        leaving.sendall(b"Subscribe gone\n")
        reading = leaving.makefile("rb")
        assert reading.readline() == b"SubAck gone\n"
        leaving.shutdown(socket.SHUT_WR)
        assert start(CLIENT, "127.0.0.1", port, "publish", "gone", "hello").end()[0] == 0
        assert reading.read() == b""


def test_the_client_answers_ping_with_pong(start: Start) -> None:
    client_answers_pings(start, "message_broker")


def test_the_client_sends_ping(start: Start) -> None:
    client_pings(start, "message_broker")


def test_errors_are_one_sentence(start: Start) -> None:
    failures_are_one_sentence(start, "message_broker")
    a_port_in_use_is_one_sentence(start, "message_broker")
