"""Dallal and the message broker: the words on the screen, exit codes, and time-outs."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.classic.programs import Start
from tests.support.process import BrokerProcess

BOTH = pytest.mark.parametrize("udp", [False, True], ids=["tcp", "udp"])


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess("--ephemeral", "--listen=line://127.0.0.1:0", "--listen=udp://127.0.0.1:0") as process:
        yield process


def address(broker: BrokerProcess, udp: bool) -> list[str]:
    return [*(["--udp"] if udp else []), "127.0.0.1", str(broker.port(1 if udp else 0))]


@BOTH
def test_a_message_is_published_and_printed(broker: BrokerProcess, start: Start, udp: bool) -> None:
    where = address(broker, udp)
    subscriber = start("dallal/client.py", *where, "subscribe", f"news-{udp}", f"sport-{udp}")
    assert subscriber.line() == f"subscribing on news-{udp} sport-{udp}\n"
    for topic, message in ((f"sport-{udp}", "two  spaces"), (f"news-{udp}", "")):
        publisher = start("dallal/client.py", *where, "publish", topic, message)
        assert publisher.end() == (0, "your message published successfully\n", "")
        assert subscriber.line() == f"{topic}: {message}\n"
    code, rest, errors = subscriber.end(signal.SIGINT)
    assert (code, rest) == (130, "")
    assert "Traceback" not in errors


def test_one_connection_a_topic(broker: BrokerProcess, start: Start) -> None:
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


def test_no_one_listens(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        code, printed, errors = start("dallal/client.py", "127.0.0.1", port, "publish", "a", "b").end()
        assert (code, printed) == (1, "your message publishing failed\n")
        assert "refused" in errors
        code, printed, _ = start("dallal/client.py", "127.0.0.1", port, "subscribe", "a").end()
        assert (code, printed) == (1, "subscribing failed\n")


def test_no_acknowledgement_comes(start: Start) -> None:
    """Within 10 s, from a server that accepts and says nothing."""
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
def test_server_and_client(start: Start, program: str) -> None:
    """With the server that belongs to it, and a client that any Python starts."""
    ports = ["--port", "0"] + (["--udp-port", "0"] if program == "dallal" else [])
    server = start(f"{program}/server.py", *ports)
    port = server.line().rstrip().rpartition(":")[2]
    while server.line() != "pyrite ready\n":
        pass
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
