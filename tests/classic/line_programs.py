"""Shared by the tests of Dallal and the message broker: servers, and a server controlled by the test."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.classic.programs import Program, Start
from tests.support.waiting import wait_until


class ClassicServer:
    """A server of a classic system on free ports, until the end of the test."""

    def __init__(self, start: Start, program: str, *options: str, ports: tuple[int, int] = (0, 0)) -> None:
        udp = ["--udp-port", str(ports[1])] if program == "dallal" else []
        arguments = [f"{program}/server.py", "--port", str(ports[0]), *udp, *options]
        self.program: Program = start(*arguments, merged=True)
        self.ports: list[int] = []
        """The TCP port and, for Dallal, the UDP port."""
        for _ in ("tcp", "udp") if udp else ("tcp",):
            line = self.program.line()
            assert line.startswith("listening on "), line
            self.ports.append(int(line.rpartition(":")[2]))


class Peer:
    """A server that accepts connections and reads and writes lines as the test says."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(20)
        self.port = str(self._listening.getsockname()[1])
        self._connections: list[socket.socket] = []
        self._received = b""

    def accept(self) -> None:
        """Accept the next connection."""
        connected = self._listening.accept()[0]
        connected.settimeout(20)
        self._connections.append(connected)

    def line(self) -> str:
        """Return the next line from the client that connected last."""
        while b"\n" not in self._received:
            data = self._connections[-1].recv(65_536)
            assert data, "the client closed the connection"
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def say(self, text: str) -> None:
        """Send it a line."""
        self._connections[-1].sendall(text.encode() + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listening, *self._connections):
            one.close()


def client_answers_pings(start: Start, program: str) -> None:
    """Assert that a client answers Ping with Pong while publishing and while subscribed."""
    with Peer() as server:
        publisher = start(f"{program}/client.py", "127.0.0.1", server.port, "publish", "news", "hello")
        server.accept()
        assert server.line() == "Publish news 5 id=1"
        assert server.line() == "hello"
        server.say("Ping")
        assert server.line() == "Pong"
        server.say("PubAck news id=1")
        assert publisher.end() == (0, "your message published successfully\n", "")
    with Peer() as server:
        subscriber = start(f"{program}/client.py", "127.0.0.1", server.port, "subscribe", "news")
        server.accept()
        assert server.line().startswith("Subscribe news")
        server.say("SubAck news")
        assert subscriber.line() == "subscribing on news\n"
        server.say("Ping")
        assert server.line() == "Pong"


def client_pings(start: Start, program: str) -> None:
    """Assert that a client sends Ping at its interval, and reports a missing Pong."""
    with Peer() as server:
        where = ["--ping-interval", "0.3", "127.0.0.1", server.port]
        subscriber = start(f"{program}/client.py", *where, "subscribe", "news", merged=True)
        server.accept()
        assert server.line().startswith("Subscribe news")
        server.say("SubAck news")
        assert subscriber.line() == "subscribing on news\n"
        for number in (1, 2):
            assert server.line() == f"Ping alive-{number}"
        away = f"no Pong came from 127.0.0.1:{server.port} within 0.3 s\n"
        assert subscriber.line() == away
        while not (ping := server.line()).startswith("Ping "):
            pass
        server.say(ping.replace("Ping", "Pong"))
        assert subscriber.line() == f"127.0.0.1:{server.port} answers again\n"


def failures_are_one_sentence(start: Start, program: str) -> None:
    """Assert output and exit codes of failing commands."""
    with socket.socket() as nobody, Peer() as server:
        nobody.bind(("127.0.0.1", 0))
        closed = str(nobody.getsockname()[1])
        refused = "the server cannot be reached: Connection refused\n"
        not_ascii = "a message is ASCII text, and this one has other characters\n"
        no_topic = "a topic must not be empty\n"
        expected = [
            ((closed, "publish", "a", "b"), "your message publishing failed\n", refused),
            ((closed, "subscribe", "a"), "subscribing failed\n", refused),
            ((server.port, "publish", "a", "grün"), "your message publishing failed\n", not_ascii),
            ((server.port, "publish", "", "b"), "your message publishing failed\n", no_topic),
            ((server.port, "subscribe", ""), "subscribing failed\n", no_topic),
        ]
        running = [start(f"{program}/client.py", "127.0.0.1", *asked) for asked, _, _ in expected]
        for client, (_, printed, reason) in zip(running, expected, strict=True):
            assert client.end() == (1, printed, reason)


def a_port_in_use_is_one_sentence(start: Start, program: str) -> None:
    """Assert output and exit code of a server whose port is in use."""
    with Peer() as other:
        code, printed, errors = start(f"{program}/server.py", "--port", other.port).end()
        assert (code, printed) == (1, "")
        assert errors.endswith(f"cannot listen on line://127.0.0.1:{other.port}: Address already in use\n")
        assert errors.count("\n") == 1


def unused_ports(count: int) -> list[int]:
    """Return ports that nothing listens on, outside the range of automatically assigned ports."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
    return found


def dial_when_open(port: int, program: Program) -> socket.socket:
    """Connect as soon as a program listens."""

    def dial() -> socket.socket | None:
        assert program.process.poll() is None
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionRefusedError:
            return None

    connection = wait_until(dial, f"something listens on port {port}")
    assert connection is not None
    return connection
