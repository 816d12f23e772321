"""How `pyrite pub` and `pyrite sub` end: refusals, lost connections, interrupts, and their messages."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.test_authenticator import PLUGIN
from tests.support.process import BrokerProcess

from .harness import PYRITE, SECONDS, Commands

pytestmark = pytest.mark.slow

CONNACK, PUBACK = bytes.fromhex("20 03 00 00 00"), bytes.fromhex("40 02 00 01")


class Peer:
    """Accepts a connection, answers each read with the next of its answers, and closes."""

    def __init__(self, *answers: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._answers = answers
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._socket, self._socket.accept()[0] as connection:
            connection.settimeout(SECONDS)
            for answer in self._answers:
                connection.recv(1_000)
                connection.sendall(answer)
            connection.recv(1_000)

    def close(self) -> None:
        self._thread.join(SECONDS)


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def make(*answers: bytes) -> Peer:
        peers.append(Peer(*answers))
        return peers[-1]

    yield make
    for one in peers:
        one.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Options for a broker that denies bob the topics under private/."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "doorman.py").write_text(PLUGIN)
    (folder / "pyrite.toml").write_text("[mqtt]\nauthenticator = 'doorman:make'\n")
    arguments = ("--ephemeral", "--config", "pyrite.toml", "--listen", "mqtt://127.0.0.1:0")
    with BrokerProcess(*arguments, cwd=folder) as broker:
        yield "-h", "127.0.0.1", "-p", str(broker.port()), "-u", "bob", "-P", "secret"


@pytest.mark.parametrize("version", ["mqttv5", "mqttv311"])
def test_sub_exits_when_every_subscription_is_refused(
    guarded: tuple[str, ...], commands_at: Callable[..., Commands], version: str
) -> None:
    result = commands_at(*guarded).run("sub", "-V", version, "-t", "private/a", "-t", "private/b")
    assert result.returncode == (135 if version == "mqttv5" else 128)
    said = result.stderr.decode()
    assert said.startswith("pyrite sub: the broker refused the subscription to private/a: ")
    assert "the broker refused the subscription to private/b: " in said


def test_sub_continues_with_the_subscriptions_that_were_accepted(
    guarded: tuple[str, ...], commands_at: Callable[..., Commands]
) -> None:
    commands = commands_at(*guarded)
    subscriber = commands.subscribe("-t", "private/a", "-t", "public/a", "-C", "1")
    subscriber.wait_for("the broker refused the subscription to private/a: Not authorized")
    commands.publish("-t", "public/a", "-m", "hello")
    assert subscriber.output() == b"hello\n"


def test_sub_does_not_reconnect_after_a_session_takeover(commands: Commands, topic: str) -> None:
    first = commands.subscribe("-i", topic, "-t", topic)
    commands.subscribe("-i", topic, "-t", topic)
    assert first.exit_code() == 142
    assert b"closed the connection: Session taken over" in first.output("stderr")


def test_pub_counts_unacknowledged_messages_when_the_connection_is_lost(
    peer: Callable[..., Peer], commands_at: Callable[..., Commands]
) -> None:
    port = peer(CONNACK, PUBACK).port
    result = commands_at("-h", "127.0.0.1", "-p", str(port)).run(
        "pub", "-t", "a", "-l", "-q", "1", "--max-inflight", "1", stdin=b"first\nsecond\n"
    )
    assert result.returncode == 1
    assert result.stderr.decode() == (
        f"pyrite pub: the connection to 127.0.0.1:{port} was lost. Messages not acknowledged: 1.\n"
    )


def test_a_connection_closed_before_connack_suggests_version_or_tls(
    peer: Callable[..., Peer], commands_at: Callable[..., Commands]
) -> None:
    port = peer().port
    result = commands_at("-h", "127.0.0.1", "-p", str(port)).run("pub", "-t", "a", "-m", "x")
    assert result.returncode == 1
    assert b"closed the connection. Does it support this MQTT version" in result.stderr


@pytest.mark.parametrize(
    ("limit", "options", "exit_code", "said"),
    [
        ("24 01", "-q 2", 155, "the broker supports QoS 1 at most: lower -q."),
        ("25 00", "-r", 154, "the broker does not support retained messages: drop -r."),
        ("22 0001", "-D publish topic-alias 2", 148, "the broker does not accept topic alias 2."),
        ("27 00000013", "-D publish content-type text/plain", 149, "the broker's maximum packet size (19)."),
    ],
)
def test_pub_refuses_what_connack_rules_out(
    peer: Callable[..., Peer],
    commands_at: Callable[..., Commands],
    limit: str,
    options: str,
    exit_code: int,
    said: str,
) -> None:
    properties = bytes.fromhex(limit)
    connack = bytes((0x20, 3 + len(properties), 0, 0, len(properties))) + properties
    commands = commands_at("-h", "127.0.0.1", "-p", str(peer(connack).port))
    result = commands.run("pub", "-t", "a", "-m", "x", *options.split())
    assert result.returncode == exit_code
    assert result.stderr.decode().endswith(f"{said}\n")


@pytest.mark.parametrize("qos", ["0", "1"])
def test_pub_waits_until_a_slow_broker_has_read_everything(
    commands_at: Callable[..., Commands], tmp_path: Path, qos: str
) -> None:
    content = bytes(20_000_000)
    (tmp_path / "file").write_bytes(content)
    with socket.create_server(("127.0.0.1", 0)) as server:
        publisher = commands_at("-h", "127.0.0.1", "-p", str(server.getsockname()[1])).start(
            "pub", "-t", "a", "-q", qos, "-f", str(tmp_path / "file")
        )
        with server.accept()[0] as connection:
            connection.settimeout(SECONDS)
            connection.recv(1_000)
            connection.sendall(CONNACK)
            with pytest.raises(subprocess.TimeoutExpired):  # it must not exit at its close timeout of 2 s
                publisher.process.wait(3)
            received = 0
            while received < len(content):
                received += len(connection.recv(1_000_000))
                assert received
            connection.sendall(PUBACK)
            assert publisher.exit_code() == 0


def test_an_interrupted_publisher_disconnects_normally(commands: Commands, topic: str) -> None:
    watcher = commands.subscribe("-t", f"{topic}/#", "-C", "1")
    will = ("--will-topic", f"{topic}/will", "--will-payload", "gone")
    publisher = commands.start("pub", "-d", "-t", topic, "-l", *will)
    publisher.wait_for("connected to")
    publisher.process.send_signal(signal.SIGINT)
    assert publisher.exit_code() == 130
    assert b"Traceback" not in publisher.output("stderr")
    commands.publish("-t", f"{topic}/end", "-m", "no will")
    assert watcher.output() == b"no will\n"


@pytest.mark.parametrize(
    ("closing", "words", "complaint"),
    [("<&-", "pub -t a -l", "stdin is closed"), (">&-", "sub -t a", "stdout is closed")],
)
def test_closed_stdin_or_stdout_is_explained(closing: str, words: str, complaint: str) -> None:
    line = f'exec "$0" "$@" {closing}'
    done = subprocess.run(["sh", "-c", line, *PYRITE, *words.split()], capture_output=True, timeout=SECONDS)
    assert done.returncode == 2
    assert complaint in done.stderr.decode()


def test_topic_aliases_work_in_both_directions(commands: Commands, topic: str) -> None:
    alias = ("-D", "connect", "topic-alias-maximum", "5")
    subscriber = commands.subscribe("-t", topic, "-q", "1", "-C", "3", "-F", "%t %A %p", *alias)
    commands.publish("-t", topic, "-q", "1", "-l", "-D", "publish", "topic-alias", "7", stdin=b"1\n2\n3\n")
    assert subscriber.output().decode() == "".join(f"{topic} 1 {number}\n" for number in (1, 2, 3))


def test_a_resumed_session_receives_what_it_missed(commands: Commands, topic: str) -> None:
    session = ("-i", topic.replace("/", "-"), "-c", "-q", "1")
    assert commands.run("sub", *session, "-t", topic, "-E").returncode == 0
    commands.publish("-t", topic, "-q", "1", "-m", "missed")
    assert commands.run("sub", *session, "-t", "elsewhere", "-C", "1").stdout == b"missed\n"


def test_a_url_can_name_a_unix_socket(
    tmp_path: Path, topic: str, commands_at: Callable[..., Commands]
) -> None:
    where = f"unix://{tmp_path}/socket"
    with BrokerProcess("--ephemeral", "--listen", where):
        commands = commands_at("-L", where)
        subscriber = commands.subscribe("-t", topic, "-C", "1")
        commands.publish("-t", topic, "-m", "hello")
        assert subscriber.output() == b"hello\n"
