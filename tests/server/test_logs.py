"""The broker's own log: lines for connections, as text or JSON, that clients cannot forge."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from pyrite.access.users import User, hash_password, write_users
from pyrite.client import BlockingClient, ConnectError
from pyrite.client.line import LineClient
from pyrite.process.logs import JsonFormatter, LogHandler, TextFormatter, parse_levels, part_of
from pyrite.protocols.events import Events
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

LISTEN = ("--listen=mqtt://127.0.0.1:0", "--listen=ws://127.0.0.1:0/mqtt", "--listen=line://127.0.0.1:0")
PASSWORD = "open-sesame"
FORGERY = 'x\n2026-01-01T00:00:00.000Z INFO connections: connected client="root" \x1b[2J'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    write_users(tmp_path / "users", [User("ann", hash_password(PASSWORD))])
    (tmp_path / "pyrite.toml").write_text(
        "[logging]\nformat = 'json'\n[limits]\nmax_connections_per_address = 3\n"
        "[access]\nusers = 'users'\n[[access.rule]]\nusers = ['*']\npublish = ['#']\n"
    )
    with BrokerProcess("--config=pyrite.toml", "--ephemeral", *LISTEN, cwd=tmp_path) as broker:
        yield broker


def lines(broker: BrokerProcess, event: str, count: int = 1) -> list[dict[str, object]]:
    """Return the lines of an event, once there are enough."""

    def found() -> list[dict[str, object]]:
        return [line for line in map(json.loads, list(broker.log)) if line["event"] == event]

    wait_until(lambda: len(found()) >= count)
    assert len(found()) == count
    return found()


def connect(url: str, client_id: str, password: str = PASSWORD, version: int = 5) -> BlockingClient:
    return BlockingClient(url, client_id=client_id, username="ann", password=password, version=version)


def test_a_connection_is_logged_when_it_opens_and_closes(broker: BrokerProcess) -> None:
    with connect(broker.urls[0], "first", version=4) as client:
        (came,) = lines(broker, "connected")
        client.publish("a", b"x" * 1_000, qos=1)
    (gone,) = lines(broker, "disconnected")
    assert came | {"time": "", "resumed": False} == {
        "time": "",
        "level": "info",
        "part": "connections",
        "event": "connected",
        "client": "first",
        "user": "ann",
        "protocol": "MQTT 3.1.1",
        "address": "127.0.0.1",
        "resumed": False,
    }
    age = datetime.now(UTC) - datetime.fromisoformat(str(came["time"]))
    assert str(came["time"]).endswith("Z")
    assert timedelta(0) < age < timedelta(minutes=1)
    assert gone["client"] == "first"
    assert gone["reason"] == "the client disconnected"
    assert isinstance(gone["seconds"], float)
    assert isinstance(gone["bytes_received"], int)
    assert isinstance(gone["bytes_sent"], int)
    assert 1_000 < gone["bytes_received"] < 1_200
    assert 4 <= gone["bytes_sent"] < 200


def test_websocket_and_line_connections_are_logged(broker: BrokerProcess) -> None:
    with connect(broker.urls[1], "web"):
        lines(broker, "connected")
    lines(broker, "disconnected")
    client = LineClient("127.0.0.1", broker.port(2))
    client.connect("typed", user="ann", password=PASSWORD)
    client.close()
    assert [line["protocol"] for line in lines(broker, "connected", 2)] == ["MQTT 5", "line"]
    assert [line["client"] for line in lines(broker, "disconnected", 2)] == ["web", "typed"]


def test_a_refusal_is_logged_with_its_reason_and_without_the_password(broker: BrokerProcess) -> None:
    with pytest.raises(ConnectError), connect(broker.urls[0], "thief", "wrong-word"):
        pass
    (refused,) = lines(broker, "refused")
    assert refused["part"] == "access"
    assert refused["client"] == "thief"
    assert refused["user"] == "ann"
    assert refused["reason"] == "wrong user name or password"
    with connect(broker.urls[0], "owner"):
        lines(broker, "connected")
    written = "".join(broker.log)
    assert PASSWORD not in written
    assert "wrong-word" not in written


def test_a_connection_beyond_the_limit_is_logged(broker: BrokerProcess) -> None:
    held = [socket.create_connection(("127.0.0.1", broker.port())) for _ in range(4)]
    (refused,) = lines(broker, "refused")
    assert refused["reason"] == "too many connections from this address"
    for one in held:
        one.close()


UPGRADE = (
    "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{}\r\n"
)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("no HTTP\r\n\r\n", "did not receive a valid HTTP request"),
        (UPGRADE.format("/other", ""), "MQTT over WebSocket is at /mqtt"),
        (UPGRADE.format("/mqtt", ""), "this is an MQTT broker: offer the subprotocol mqtt"),
        (
            UPGRADE.format("/mqtt", "Sec-WebSocket-Protocol: mqtt\r\nOrigin: https://a.example\r\n"),
            "a page of https://a.example; only pages of this machine are accepted",
        ),
    ],
)
def test_a_refused_websocket_is_logged(broker: BrokerProcess, said: str, reason: str) -> None:
    with socket.create_connection(("127.0.0.1", broker.port(1)), timeout=20) as client:
        client.sendall(said.encode())
        while client.recv(4_096):
            pass
    (refused,) = lines(broker, "refused")
    assert refused["reason"] == f"WebSocket: {reason}"
    assert refused["address"] == "127.0.0.1"


def test_a_connection_timeout_is_logged_on_every_listener(tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    (tmp_path / "pyrite.toml").write_text(
        "[logging]\nformat = 'json'\n[limits]\nconnect_timeout = 0.2\n[tls]\ncertificate = 'server.pem'\n"
    )
    schemes = ("mqtt", "ws", "mqtts", "https", "flights")
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in schemes]
    with BrokerProcess("--config=pyrite.toml", "--data=data", *listen, cwd=tmp_path) as broker:
        for number in range(len(schemes)):
            with socket.create_connection(("127.0.0.1", broker.port(number)), timeout=20) as client:
                assert client.recv(1) == b""
        reasons = [line["reason"] for line in lines(broker, "refused", len(schemes))]
    assert sorted(map(str, reasons)) == [
        *["TLS: the handshake took too long"] * 3,
        *["no CONNECT within the time limit"] * 2,
    ]


def test_a_takeover_is_logged(broker: BrokerProcess) -> None:
    with connect(broker.urls[0], "same"):
        lines(broker, "connected")
        with connect(broker.urls[0], "same"):
            (gone,) = lines(broker, "disconnected")
            assert gone["reason"] == "taken over by another connection"


def test_a_keep_alive_timeout_is_logged(broker: BrokerProcess) -> None:
    name, word = b"ann", PASSWORD.encode()
    variable = b"\x00\x04MQTT\x04\xc2\x00\x01\x00\x05quiet"
    variable += b"\x00\x03" + name + len(word).to_bytes(2, "big") + word
    with socket.create_connection(("127.0.0.1", broker.port())) as client:
        client.sendall(bytes((0x10, len(variable))) + variable)
        (gone,) = lines(broker, "disconnected")
    assert gone["client"] == "quiet"
    assert gone["reason"] == "keep-alive timeout"
    assert isinstance(gone["seconds"], float)
    assert 1 < gone["seconds"] < 5


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_lines_cannot_be_forged(form: str) -> None:
    with BrokerProcess(*LISTEN, "--ephemeral", "--log-format", form) as broker:
        with BlockingClient(broker.urls[0], client_id=FORGERY, username=FORGERY):
            wait_until(lambda: len(broker.log) == 1)
        wait_until(lambda: len(broker.log) == 2)
    assert all("root" in line and line.isprintable() for line in broker.log)
    assert not any(line.startswith("2026-01-01") for line in broker.log)
    if form == "json":
        assert [json.loads(line)["client"] for line in broker.log] == [FORGERY, FORGERY]


def test_log_levels_can_be_set_by_component() -> None:
    level = "info,connections=error"
    with (
        BrokerProcess(*LISTEN, "--ephemeral", "--log-level", level) as broker,
        BlockingClient(broker.urls[0]),
    ):
        pass
    assert broker.log == []


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("loud", "debug, info, warning, error"),
        ("kitchen=info", "access, connections, flight, http, log, server"),
        ("log=info,log=debug", "one level for each part"),
        ("log=", "debug, info, warning, error"),
    ],
)
def test_an_invalid_level_is_an_error(level: str, expected: str) -> None:
    command = [sys.executable, "-m", "pyrite", "serve", "--ephemeral", "--log-level", level]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert f"log_level = {level!r}" in done.stderr
    assert expected in done.stderr


def test_levels_are_parsed() -> None:
    assert parse_levels("warning") == {"": "warning"}
    assert parse_levels("access=debug, log=info") == {"access": "debug", "log": "info"}


@pytest.mark.parametrize(
    ("logger", "part"),
    [
        ("pyrite.journal.disk", "log"),
        ("pyrite.logbook", "server"),
        ("pyrite.server.server", "server"),
        ("pyrite.server.sockets", "connections"),
        ("pyrite.server.flight", "flight"),
        ("asyncio", "server"),
    ],
)
def test_every_logger_belongs_to_a_component(logger: str, part: str) -> None:
    assert part_of(logger) == part


class Clock:
    """A clock set by the test."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_log_lines_beyond_the_rate_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pyrite.connections")
    clock = Clock()
    told = Events(3, clock)
    for number in range(10):
        told.tell("connected", client=str(number))
    assert len(caplog.records) == 3
    told.settle()
    assert len(caplog.records) == 3, "the second is not over"
    clock.now += 1
    told.settle()
    told.tell("connected", client="last")
    assert [record.getMessage() for record in caplog.records[3:]] == ["left out", "connected"]
    assert caplog.records[3].__dict__["fields"] == {"lines": 7}


def test_disabled_levels_do_not_count_towards_the_rate(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pyrite.connections")
    clock = Clock()
    told = Events(0, clock)
    told.tell("connected")
    clock.now += 1
    told.settle()
    assert caplog.records == []


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    trace = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("pyrite.journal.disk", logging.ERROR, "", 0, message, arguments, trace)


def test_a_traceback_follows_its_line() -> None:
    error = ValueError("bad\n2026-01-01T00:00:00.000Z INFO server: all is well")
    first, *others = TextFormatter().format(record("internal error", error=error)).split("\n")
    assert first.endswith("ERROR log: internal error")
    assert others
    assert all(line.startswith("  | ") for line in others)
    line = JsonFormatter().format(record("internal error", error=error))
    assert "\n" not in line
    assert "ValueError: bad\n2026" in json.loads(line)["traceback"]


def test_warnings_of_libraries_are_logged(tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(
        "import warnings\n"
        "from pyrite.broker.access import Access\n"
        "class Careless(Access):\n"
        "    def authenticate(self, credentials):\n"
        "        warnings.warn('look out')\n"
        "        return super().authenticate(credentials)\n"
    )
    (tmp_path / "pyrite.toml").write_text("[mqtt]\nauthenticator = 'careless:Careless'\n")
    arguments = ("--config=pyrite.toml", "--listen=mqtt://127.0.0.1:0", "--ephemeral", "--log-format=json")
    with BrokerProcess(*arguments, cwd=tmp_path) as broker, BlockingClient(broker.urls[0]):
        pass
    lines = [json.loads(line) for line in broker.log]
    (warning,) = [line for line in lines if "look out" in line.get("message", "")]
    assert (warning["level"], warning["part"]) == ("warning", "server")


def test_long_texts_are_truncated() -> None:
    long = record("refused")
    long.fields = {"client": "c" * 65_535}
    assert len(TextFormatter().format(long)) < 400
    assert len(JsonFormatter().format(long)) < 500


def test_an_unread_standard_error_does_not_block() -> None:
    read, write = os.pipe()
    handler = LogHandler(write, most=100)
    handler.setFormatter(TextFormatter())
    began = time.monotonic()
    for number in range(5_000):
        handler.emit(record("%s %s", number, "x" * 1_000))
    assert time.monotonic() - began < 5
    with os.fdopen(read, encoding="utf-8") as pipe, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipe.read)
        handler.close()
        os.close(write)
        written = reading.result(10).splitlines()
    lost = sum(int(line.split("lines=")[1].split()[0]) for line in written if "lines lost" in line)
    assert lost > 0
    assert lost + sum("xxx" in line for line in written) == 5_000


def test_a_broker_with_an_unread_standard_error_keeps_serving(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("[logging]\nconnection_lines = 1000000\n")
    command = [sys.executable, "-m", "pyrite", "serve", "--config=pyrite.toml", "--ephemeral", LISTEN[0]]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert process.stdout.readline() == "pyrite ready\n"
        for number in range(300):  # two lines of 400 bytes each: more than the pipe has room for
            with BlockingClient(url, client_id=f"{number}" + "c" * 250):
                pass
        process.terminate()
        assert process.wait(10) == 0


def test_a_running_broker_reports_dropped_lines(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("[logging]\nformat = 'json'\nconnection_lines = 1\n")
    with BrokerProcess("--config=pyrite.toml", "--ephemeral", *LISTEN, cwd=tmp_path) as broker:
        for _ in range(20):
            with BlockingClient(broker.urls[0]):
                pass

        def counted() -> int:
            told = [json.loads(line) for line in list(broker.log)]
            return sum(line["lines"] if line["event"] == "left out" else 1 for line in told)

        wait_until(lambda: counted() == 40)
        assert len(broker.log) < 40


def test_udp_clients_are_logged() -> None:
    arguments = ("--listen=udp://127.0.0.1:0", "--ephemeral", "--log-format=json")
    with BrokerProcess(*arguments) as broker, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(10)
        client.connect(("127.0.0.1", broker.port()))
        client.send(b"Connect phone\n")
        answer = client.recv(2_048)
        while answer.startswith(b"Ping"):
            client.send(answer.replace(b"Ping", b"Pong"))
            answer = client.recv(2_048)
        assert answer.startswith(b"Ack Connect phone")
        (came,) = lines(broker, "connected")
        assert came["client"] == "phone"
        client.send(b"Disconnect\n")
        (gone,) = lines(broker, "disconnected")
        assert gone["reason"] == "the client disconnected"
