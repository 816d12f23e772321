"""`pyrite pub` and `pyrite sub` against mosquitto's broker and clients."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import SECONDS, Commands, Mosquitto

pytestmark = pytest.mark.slow

needs_mosquitto_clients = pytest.mark.skipif(
    not (shutil.which("mosquitto_pub") and shutil.which("mosquitto_sub")),
    reason="mosquitto_pub and mosquitto_sub are not installed",
)
ANN = ("-u", "ann", "-P", "secret")


@needs_mosquitto_clients
def test_mosquitto_sub_receives_what_pyrite_pub_publishes(
    broker: int, commands: Commands, topic: str
) -> None:
    session = (
        "-h",
        "127.0.0.1",
        "-p",
        str(broker),
        "-V",
        "5",
        "-i",
        topic.replace("/", "-"),
        "-c",
        "-q",
        "1",
    )
    subscriber = ["mosquitto_sub", *session, "-t", topic]
    subprocess.run([*subscriber, "-E"], check=True, timeout=SECONDS)
    properties = ("-D", "publish", "content-type", "text/plain", "-D", "publish", "user-property", "a", "1")
    commands.publish("-t", topic, "-q", "1", "-m", "hello", *properties)
    received = subprocess.run(
        [*subscriber, "-C", "1", "-F", "%t %q %p %C %P"], check=True, timeout=SECONDS, capture_output=True
    )
    assert received.stdout == f"{topic} 1 hello text/plain a:1\n".encode()


@needs_mosquitto_clients
def test_pyrite_sub_receives_what_mosquitto_pub_publishes(
    broker: int, commands: Commands, topic: str
) -> None:
    subscriber = commands.subscribe("-t", topic, "-q", "2", "-C", "1", "-F", "%t %q %p %C %P")
    subprocess.run(
        [
            *("mosquitto_pub", "-h", "127.0.0.1", "-p", str(broker), "-V", "5", "-t", topic, "-q", "2"),
            *("-m", "hello", "-D", "publish", "content-type", "text/plain"),
            *("-D", "publish", "user-property", "a", "1"),
        ],
        check=True,
        timeout=SECONDS,
    )
    assert subscriber.output() == f"{topic} 2 hello text/plain a:1\n".encode()


@pytest.fixture(params=["tcp", "unix", "tls", "ws"])
def way(request: pytest.FixtureRequest, mosquitto: Mosquitto) -> tuple[str, ...]:
    """Options that connect to mosquitto over each transport."""
    return {
        "tcp": ("-h", "127.0.0.1", "-p", str(mosquitto.plain)),
        "unix": ("--unix", str(mosquitto.unix)),
        "tls": ("-L", f"mqtts://localhost:{mosquitto.tls}", "--cafile", str(mosquitto.ca)),
        "ws": ("-L", f"ws://127.0.0.1:{mosquitto.websockets}/mqtt"),
    }[str(request.param)]


def test_a_large_message_is_published_through_every_transport(
    way: tuple[str, ...], mosquitto: Mosquitto, commands_at: Callable[..., Commands], tmp_path: Path
) -> None:
    content = os.urandom(5_000_000)
    (tmp_path / "file").write_bytes(content)
    # Received over TCP only: mosquitto's WebSockets deliver 4 KiB every 100 ms.
    directly = commands_at(*ANN, "-h", "127.0.0.1", "-p", str(mosquitto.plain))
    subscriber = directly.subscribe("-t", "allowed/large", "-q", "1", "-C", "1", "-N")
    commands_at(*ANN, *way).publish("-t", "allowed/large", "-q", "1", "-f", str(tmp_path / "file"))
    assert subscriber.output() == content


def test_many_small_messages_pass_through_every_transport(
    way: tuple[str, ...], commands_at: Callable[..., Commands]
) -> None:
    commands = commands_at(*ANN, *way)
    lines = b"".join(b"%d\n" % number for number in range(500))
    subscriber = commands.subscribe("-t", "allowed/small", "-q", "1", "-C", "500")
    commands.publish("-t", "allowed/small", "-q", "1", "-l", stdin=lines)
    assert subscriber.output() == lines


@pytest.mark.parametrize(("version", "exit_code"), [("mqttv5", 135), ("mqttv311", 5)])
def test_a_refused_connection_exits_with_the_brokers_reason(
    mosquitto: Mosquitto, commands_at: Callable[..., Commands], version: str, exit_code: int
) -> None:
    commands = commands_at("-h", "127.0.0.1", "-p", str(mosquitto.plain), "-u", "ann", "-P", "wrong")
    result = commands.run("pub", "-V", version, "-t", "allowed/a", "-m", "x")
    assert result.returncode == exit_code
    expected = f"pyrite pub: 127.0.0.1:{mosquitto.plain} refused the connection: Not authorized.\n"
    assert result.stderr.decode() == expected


@pytest.mark.parametrize("qos", ["1", "2"])
def test_a_refused_message_exits_with_the_brokers_reason(
    mosquitto: Mosquitto, commands_at: Callable[..., Commands], qos: str
) -> None:
    commands = commands_at(*ANN, "-h", "127.0.0.1", "-p", str(mosquitto.plain))
    result = commands.run("pub", "-t", "forbidden", "-m", "x", "-q", qos)
    assert result.returncode == 135
    assert result.stderr == b"pyrite pub: the broker refused the message on forbidden: Not authorized.\n"


def test_an_unknown_certificate_authority_is_refused_with_advice(
    mosquitto: Mosquitto, commands_at: Callable[..., Commands]
) -> None:
    result = commands_at(*ANN).run(
        "pub", "-L", f"mqtts://localhost:{mosquitto.tls}", "-t", "allowed/a", "-m", "x"
    )
    assert result.returncode == 1
    assert b"certificate verify failed" in result.stderr
    assert b"--cafile" in result.stderr


def test_a_certificate_for_another_host_needs_insecure(
    mosquitto: Mosquitto, commands_at: Callable[..., Commands]
) -> None:
    way = ("-h", "127.0.0.1", "-p", str(mosquitto.tls), "--cafile", str(mosquitto.ca))
    commands = commands_at(*ANN, *way)
    assert commands.run("pub", "-t", "allowed/a", "-m", "x").returncode == 1
    assert commands.run("pub", "-t", "allowed/a", "-m", "x", "--insecure").returncode == 0
