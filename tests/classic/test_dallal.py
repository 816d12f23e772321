"""Dallal: the sessions and statements of its page, through its own programs."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyrite.client.line import DEFAULT_PING_INTERVAL, LineClient
from pyrite.protocols.line.options import LineOptions
from tests.classic.line_programs import (
    ClassicServer,
    a_port_in_use_is_one_sentence,
    client_answers_pings,
    client_pings,
    dial_when_open,
    failures_are_one_sentence,
    unused_ports,
)
from tests.classic.programs import Program, Start
from tests.support.process import BrokerProcess

BOTH = pytest.mark.parametrize("udp", [False, True], ids=["tcp", "udp"])


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess("--ephemeral", "--listen=line://127.0.0.1:0", "--listen=udp://127.0.0.1:0") as process:
        yield process


def address(broker: BrokerProcess, udp: bool) -> list[str]:
    return [*(["--udp"] if udp else []), "127.0.0.1", str(broker.port(1 if udp else 0))]


def lines_until(program: Program, last: str) -> list[str]:
    """Return the output up to a line that starts with this text."""
    lines = [program.line(60)]
    while not lines[-1].startswith(last):
        lines.append(program.line(60))
    return lines


# The sessions of the page


def played(line: str) -> str:
    """Return a line of the server's output without the port."""
    return re.sub(r"(by \('127\.0\.0\.1', )\d+\)$", r"\g<1>40226)", line.rstrip("\n"))


def test_the_session_of_the_page_runs_as_shown(start: Start) -> None:
    server = ClassicServer(start, "dallal")
    where = ["127.0.0.1", str(server.ports[0])]
    subscriber = start("dallal/client.py", *where, "subscribe", "topic-1", "topic-2")
    assert subscriber.line() == "subscribing on topic-1 topic-2\n"
    connected = [server.program.line() for _ in range(2)]
    assert [played(line) for line in connected] == ["Connected by ('127.0.0.1', 40226)"] * 2
    for topic in ("topic-1", "topic-2", "topic-1"):
        publisher = start("dallal/client.py", *where, "publish", topic, "message")
        assert publisher.end() == (0, "your message published successfully\n", "")
        assert subscriber.line() == f"{topic}: message\n"
        came, went = server.program.line(), server.program.line()
        assert played(came) == "Connected by ('127.0.0.1', 40226)"
        assert played(went) == "Disconnected by ('127.0.0.1', 40226)"
        assert went == came.replace("Connected", "Disconnected")
    subscriber.end(signal.SIGINT)
    gone = {server.program.line() for _ in range(2)}
    assert gone == {line.replace("Connected", "Disconnected") for line in connected}
    assert server.program.end(signal.SIGINT) == (0, "stopped\n", "")


def test_the_server_prints_connections_and_disconnections_only(start: Start) -> None:
    port, udp_port = unused_ports(2)
    server = start(
        "dallal/server.py", "--port", str(port), "--udp-port", str(udp_port), "--ping-interval", "0.2"
    )
    with dial_when_open(port, server) as client:
        address = client.getsockname()
        received = client.makefile("rb")
        assert [received.readline() for _ in range(2)] == [b"Ping\n"] * 2
    while (line := server.line()) != f"Disconnected by {address}\n":
        assert line in (f"Connected by {address}\n", f"No response to Ping from {address}\n")
    assert server.end(signal.SIGINT) == (0, "", "stopped\n")


def test_the_session_of_the_page_runs_over_udp(start: Start) -> None:
    server = ClassicServer(start, "dallal")
    where = ["--udp", "127.0.0.1", str(server.ports[1])]
    subscriber = start("dallal/client.py", *where, "subscribe", "topic-1", "topic-2", merged=True)
    assert subscriber.line() == "subscribing on topic-1 topic-2\n"
    for topic in ("topic-1", "topic-2", "topic-1"):
        publisher = start("dallal/client.py", *where, "publish", topic, "message")
        assert publisher.end() == (0, "your message published successfully\n", "")
        assert subscriber.line() == f"{topic}: message\n"
    assert server.program.end(signal.SIGINT) == (0, "stopped\n", ""), "no connections over UDP"
    assert subscriber.line() == "the broker is shutting down\n"


@BOTH
def test_a_message_is_published_and_printed(broker: BrokerProcess, start: Start, udp: bool) -> None:
    where = address(broker, udp)
    subscriber = start("dallal/client.py", *where, "subscribe", f"news-{udp}", f"sport-{udp}")
    assert subscriber.line() == f"subscribing on news-{udp} sport-{udp}\n"
    for topic, message in ((f"sport-{udp}", "two  spaces"), (f"news-{udp}", "")):
        publisher = start("dallal/client.py", *where, "publish", topic, message)
        assert publisher.end() == (0, "your message published successfully\n", "")
        assert subscriber.line() == f"{topic}: {message}\n"
    assert subscriber.end(signal.SIGINT) == (130, "", "stopped\n")


def test_each_topic_has_its_own_connection(broker: BrokerProcess, start: Start) -> None:
    subscriber = start("dallal/client.py", *address(broker, False), "subscribe", "a", "b", "c")
    subscriber.line()
    established = Path(f"/proc/{subscriber.process.pid}/net/tcp").read_text()
    port = f":{broker.port(0):04X}"
    ends = {row.split()[9] for row in established.splitlines()[1:] if row.split()[2].endswith(port)}
    sockets = {
        one.readlink().name
        for one in Path(f"/proc/{subscriber.process.pid}/fd").iterdir()
        if one.is_symlink()
    }
    assert sum(f"socket:[{inode}]" in sockets for inode in ends) == 3


def test_a_missing_acknowledgement_is_reported(start: Start) -> None:
    """Within 10 s, from a server that accepts and sends nothing."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = str(silent.getsockname()[1])
        began = time.monotonic()
        publisher = start("dallal/client.py", "127.0.0.1", port, "publish", "a", "b")
        subscriber = start("dallal/client.py", "127.0.0.1", port, "subscribe", "a")
        assert publisher.end()[:2] == (1, "your message publishing failed\n")
        assert subscriber.end()[:2] == (1, "subscribing failed\n")
        assert 9.5 < time.monotonic() - began < 25


def test_a_server_that_ends_ends_its_subscribers(start: Start) -> None:
    with BrokerProcess("--ephemeral", "--listen=line://127.0.0.1:0") as broker:
        subscriber = start("dallal/client.py", "127.0.0.1", str(broker.port()), "subscribe", "a")
        subscriber.line()
        broker.stop()
        code, rest, errors = subscriber.end()
        assert (code, rest) == (1, "")
        assert "shutting down" in errors


@pytest.mark.parametrize("program", ["dallal", "message_broker"])
def test_server_and_client_take_the_arguments_of_the_page(start: Start, program: str) -> None:
    """With its own server, and a client started by any Python."""
    ports = ["--port", "0"] + (["--udp-port", "0"] if program == "dallal" else [])
    server = start(f"{program}/server.py", *ports)
    port = server.line().rstrip().rpartition(":")[2]
    client = start(f"{program}/client.py", "localhost", port, "publish", "news", "hello")
    assert client.end() == (0, "your message published successfully\n", "")
    code, _, errors = server.end(signal.SIGINT)
    assert code == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "arguments", [[], ["localhost"], ["localhost", "x", "publish", "a", "b"], ["h", "1", "dance"]]
)
def test_wrong_arguments_are_explained(start: Start, arguments: list[str]) -> None:
    code, printed, errors = start("dallal/client.py", *arguments).end()
    assert (code, printed) == (2, "")
    assert errors.startswith("usage: client.py")


# The server


def test_a_client_that_answers_no_ping_is_printed_and_closed_after_three_periods(start: Start) -> None:
    server = ClassicServer(start, "dallal", "--ping-interval", "0.3")
    with socket.create_connection(("127.0.0.1", server.ports[0]), timeout=20) as silent:
        port = silent.getsockname()[1]
        received = silent.makefile("rb").read()
    assert received == b"Ping\n" * 3 + b"Error silent no Pong received\n"
    printed = lines_until(server.program, "Disconnected by")
    assert printed.count(f"Connected by ('127.0.0.1', {port})\n") == 1
    assert sum(line == f"No response to Ping from ('127.0.0.1', {port})\n" for line in printed) == 3
    assert LineOptions().ping_interval == 10
    assert LineOptions().missed_rounds == 3


def test_a_newer_message_replaces_one_that_was_not_delivered(broker: BrokerProcess, start: Start) -> None:
    subscriber = start("dallal/client.py", *address(broker, False), "subscribe", "newest")
    assert subscriber.line() == "subscribing on newest\n"
    subscriber.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, subscriber.process.pid, os.WSTOPPED)
    with LineClient("127.0.0.1", broker.port(0)) as publisher:
        for number in range(50):
            publisher.publish("newest", b"%d" % number)
    subscriber.process.send_signal(signal.SIGCONT)
    assert [subscriber.line(), subscriber.line()] == ["newest: 0\n", "newest: 49\n"]


# Ping and Pong


def test_the_client_answers_ping_with_pong(start: Start) -> None:
    client_answers_pings(start, "dallal")


def test_the_client_sends_ping_every_10_s(start: Start) -> None:
    client_pings(start, "dallal")
    assert DEFAULT_PING_INTERVAL == 10


def test_over_udp_a_client_reports_a_missing_pong_and_recovers(start: Start) -> None:
    server = ClassicServer(start, "dallal")
    port = server.ports[1]
    where = ["--udp", "--ping-interval", "1", "127.0.0.1", str(port)]
    subscriber = start("dallal/client.py", *where, "subscribe", "news", "sport", merged=True)
    assert subscriber.line() == "subscribing on news sport\n"
    with LineClient("127.0.0.1", server.ports[0]) as publisher:
        publisher.publish("news", b"before")
    lines_until(subscriber, "news: before\n")
    server.program.end(signal.SIGKILL)
    lines_until(subscriber, f"no Pong came from 127.0.0.1:{port} within 1 s\n")
    again = ClassicServer(start, "dallal", ports=(0, port))
    lines_until(subscriber, f"127.0.0.1:{port} had forgotten this client: subscribed again\n")
    with LineClient("127.0.0.1", again.ports[0]) as publisher:
        for number in range(3):
            for topic in ("news", "sport"):
                publisher.publish(topic, b"%d" % number)
                lines_until(subscriber, f"{topic}: {number}\n")


def test_over_udp_a_client_recovers_from_a_restart_between_two_pings(start: Start) -> None:
    server = ClassicServer(start, "dallal")
    port = server.ports[1]
    with LineClient("127.0.0.1", port, udp=True, ping_interval=4) as client:
        client.subscribe("news", latest=True)
        server.program.end(signal.SIGKILL)
        again = ClassicServer(start, "dallal", ports=(0, port))
        with LineClient("127.0.0.1", again.ports[0]) as publisher:
            for _ in range(100):
                publisher.publish("news", b"hello")
                if message := next(client.messages(0.5), None):
                    break
        assert message is not None
        assert message.payload == b"hello"


# Errors


def test_errors_are_one_sentence(start: Start) -> None:
    failures_are_one_sentence(start, "dallal")
    a_port_in_use_is_one_sentence(start, "dallal")


@BOTH
def test_an_empty_topic_is_refused(broker: BrokerProcess, start: Start, udp: bool) -> None:
    for command, failed in (
        (["publish", "", "hello"], "your message publishing failed\n"),
        (["subscribe", "news", ""], "subscribing failed\n"),
    ):
        client = start("dallal/client.py", *address(broker, udp), *command)
        assert client.end() == (1, failed, "a topic must not be empty\n")


def test_a_message_too_long_for_a_datagram_is_refused(broker: BrokerProcess, start: Start) -> None:
    client = start("dallal/client.py", *address(broker, True), "publish", "news", "x" * 70_000)
    code, printed, errors = client.end()
    assert (code, printed) == (1, "your message publishing failed\n")
    assert errors == "70025 bytes do not fit into a datagram of 65507\n"
