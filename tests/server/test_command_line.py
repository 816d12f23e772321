"""`pyrite serve`: arguments, output, and errors at the start."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process import BrokerProcess

from .conftest import Certificates, Serve
from .peers import Server, open_client, run_refused, run_serve


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def works(url: str, context: None = None) -> None:
    client = open_client(url, context=context)
    try:
        assert client.connect().reason == 0
        client.ping()
    finally:
        client.close()


# What it says


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss", "unix"])
def test_every_kind_of_listener_serves_clients(server: Server, scheme: str) -> None:
    server.connect(scheme).ping()


def test_listeners_are_announced_in_order_with_real_ports_before_readiness(
    tmp_path: Path,
) -> None:
    listeners = [
        "mqtt://127.0.0.1:0",
        f"unix://{tmp_path}/socket",
        "ws://127.0.0.1:0/here",
        "mqtt://127.0.0.1:0",
    ]
    arguments = [part for url in listeners for part in ("--listen", url)]
    with BrokerProcess("--ephemeral", *arguments) as broker:
        first, unix, websocket, second = broker.urls
        assert unix == listeners[1]
        assert websocket == f"ws://127.0.0.1:{broker.port(2)}/here"
        assert 0 not in (broker.port(0), broker.port(2), broker.port(3))
        assert broker.port(0) != broker.port(3)
        for url in (first, unix, websocket, second):
            works(url)


def test_readiness_is_announced_at_once_on_a_pipe() -> None:
    command = [sys.executable, "-m", "pyrite", "serve", "--ephemeral", "--listen", "mqtt://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=20)
    assert first.startswith("listening on mqtt://127.0.0.1:")
    assert second == "pyrite ready\n"
    assert rest == ""


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_an_ipv6_listener_is_announced_in_brackets(scheme: str) -> None:
    with BrokerProcess("--ephemeral", "--listen", f"{scheme}://[::1]:0") as broker:
        assert broker.urls[0].startswith(f"{scheme}://[::1]:{broker.port()}")
        works(broker.urls[0])


def test_a_port_may_be_chosen() -> None:
    with taken_port() as port:
        pass
    with BrokerProcess("--ephemeral", "--listen", f"mqtt://127.0.0.1:{port}") as broker:
        assert broker.urls == [f"mqtt://127.0.0.1:{port}"]
        works(broker.urls[0])


def test_a_port_can_be_reused_right_after_a_restart() -> None:
    with BrokerProcess("--ephemeral", "--listen", "mqtt://127.0.0.1:0") as broker:
        url = broker.urls[0]
        client = open_client(url)
        client.connect()
        assert broker.stop() == 0  # the broker closes first: its end is in TIME_WAIT now
        client.close()
    with BrokerProcess("--ephemeral", "--listen", url) as broker:
        works(url)


# Which settings are in force


def test_the_defaults_are_two_listeners_on_this_machine() -> None:
    printed = run_serve("--print-config").stdout
    assert '"line://127.0.0.1:1373", "udp://127.0.0.1:1234", "flight://127.0.0.1:8815", ' in printed
    assert '"http://127.0.0.1:8080"]\n' in printed


def test_listeners_of_the_command_line_replace_the_defaults() -> None:
    printed = run_serve("--print-config", "--listen", "mqtt://127.0.0.1:7", "--listen", "unix:///x").stdout
    assert 'listen = ["mqtt://127.0.0.1:7", "unix:///x"]\n' in printed


def test_listeners_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text('listen = ["mqtt://127.0.0.1:6", "ws://127.0.0.1:5"]\n')
    printed = run_serve(
        "--print-config", "--config", "pyrite.toml", "--listen", "unix:///x", cwd=tmp_path
    ).stdout
    assert 'listen = ["unix:///x"]\n' in printed


def test_the_command_line_overrides_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text('data = "one"\n')
    printed = run_serve("--print-config", "--config", "pyrite.toml", "--data", "two", cwd=tmp_path).stdout
    assert 'data = "two"\n' in printed


def test_the_command_line_can_set_ephemeral() -> None:
    assert "ephemeral = false\n" in run_serve("--print-config").stdout
    assert "ephemeral = true\n" in run_serve("--print-config", "--ephemeral").stdout


def test_an_ephemeral_broker_leaves_nothing_on_disk(tmp_path: Path) -> None:
    with BrokerProcess("--ephemeral", "--listen", "mqtt://127.0.0.1:0", cwd=tmp_path) as broker:
        works(broker.urls[0])
    assert list(tmp_path.iterdir()) == []


def test_print_config_ends_without_listening() -> None:
    with taken_port() as port:
        done = run_serve("--print-config", "--listen", f"mqtt://127.0.0.1:{port}")
    assert (done.code, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--lisen", "x"], ["surplus"], ["--config"]])
def test_an_invalid_command_line_ends_with_code_2_and_usage(arguments: list[str]) -> None:
    done = run_serve(*arguments)
    assert done.code == 2
    assert "usage: pyrite" in done.stderr
    assert "Traceback" not in done.stderr


# Where it cannot listen


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_an_address_in_use_is_reported_in_one_line(scheme: str) -> None:
    with taken_port() as port:
        line = run_refused(1, "--ephemeral", "--listen", f"{scheme}://127.0.0.1:{port}")
    assert f"{scheme}://127.0.0.1:{port}" in line
    assert "in use" in line


def test_one_address_in_use_among_several_ends_the_start() -> None:
    with taken_port() as port:
        url = f"mqtt://127.0.0.1:{port}"
        line = run_refused(1, "--ephemeral", "--listen", "mqtt://127.0.0.1:0", "--listen", url)
    assert url in line


def test_the_same_address_twice_is_in_use() -> None:
    with taken_port() as port:
        url = f"mqtt://127.0.0.1:{port}"
    assert url in run_refused(1, "--ephemeral", "--listen", url, "--listen", url)


def test_a_host_of_another_machine_is_reported() -> None:
    assert "192.0.2.1" in run_refused(1, "--ephemeral", "--allow-anonymous", "--listen", "mqtt://192.0.2.1:0")


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:1883",
        "amqp://127.0.0.1:1883",
        "mqtt://",
        "mqtt://127.0.0.1:99999",
        "mqtt://127.0.0.1:port",
        "mqtt://127.0.0.1:-1",
        "mqtt://127.0.0.1:1883/path",
        "ws://127.0.0.1:8083/mqtt?query",
        "unix://socket",
        "unix://host/socket",
        "unix:///",
        "mqtt://[::1",
        "",
    ],
)
def test_an_invalid_listener_is_refused_with_what_was_expected(url: str) -> None:
    line = run_refused(2, "--ephemeral", "--listen", url)
    assert repr(url) in line
    assert "listen" in line
    assert "the command line" in line


def test_a_password_in_a_listener_is_refused_and_not_printed() -> None:
    line = run_refused(2, "--ephemeral", "--listen", "mqtt://user:secret@127.0.0.1:1883")
    assert "listen = 'mqtt://(not shown)@127.0.0.1:1883': a listener has no user name" in line
    assert "secret" not in line


# The file of a Unix socket


def socket_url(path: Path) -> str:
    return f"unix://{path}"


def test_a_unix_socket_is_removed_at_shutdown(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with BrokerProcess("--ephemeral", "--listen", socket_url(path)) as broker:
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert broker.stop() == 0
    assert not path.exists()


def test_a_unix_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with BrokerProcess("--ephemeral", "--listen", socket_url(path)) as broker:
        broker.process.kill()
        broker.stop()
    assert path.is_socket()
    with BrokerProcess("--ephemeral", "--listen", socket_url(path)) as broker:
        works(broker.urls[0])


def test_a_unix_socket_in_use_is_refused_and_keeps_serving(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with BrokerProcess("--ephemeral", "--listen", socket_url(path)) as broker:
        assert socket_url(path) in run_refused(2, "--ephemeral", "--listen", socket_url(path))
        works(broker.urls[0])


def test_an_ordinary_file_is_not_replaced_by_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "diary"
    path.write_text("dear diary")
    assert socket_url(path) in run_refused(2, "--ephemeral", "--listen", socket_url(path))
    assert path.read_text() == "dear diary"


def test_a_folder_is_not_replaced_by_a_unix_socket(tmp_path: Path) -> None:
    assert socket_url(tmp_path) in run_refused(2, "--ephemeral", "--listen", socket_url(tmp_path))
    assert tmp_path.is_dir()


@pytest.mark.parametrize("name", ["missing/socket", "s" * 120])
def test_a_unix_socket_that_cannot_be_created_is_reported(tmp_path: Path, name: str) -> None:
    url = socket_url(tmp_path / name)
    assert url in run_refused(1, "--ephemeral", "--listen", url)


def test_a_failed_start_removes_its_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with taken_port() as port:
        url = f"mqtt://127.0.0.1:{port}"
        run_refused(1, "--ephemeral", "--listen", socket_url(path), "--listen", url)
    assert not path.exists()


def test_plain_and_encrypted_listeners_can_be_combined(serve: Serve, certificates: Certificates) -> None:
    server = serve(f"[tls]\ncertificate = '{certificates.server}'\n", "mqtts", "mqtt", "wss", "ws")
    for scheme in ("mqtts", "mqtt", "wss", "ws"):
        server.connect(scheme).ping()
