"""Shutdown by SIGTERM and SIGINT, whatever the clients do."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.conformance.client import Client
from tests.conformance.wire import PUBLISH, connect_packet, publish_packet
from tests.support.process import BrokerProcess
from tests.support.waiting import let_pass

from .conftest import Serve
from .peers import MIB, PLAIN_AND_LAYERED, SCHEMES, Server, WebSocket, endpoint_of

ALLOWED = 2.0
"""Seconds from the signal to the end of the process."""
SIGNALS = [signal.SIGTERM, signal.SIGINT]


def stop_in_time(server: Server, number: int = signal.SIGTERM) -> None:
    """Stop the broker; it must end with code 0, and in time."""
    began = time.monotonic()
    server.signal(number)
    assert server.process.process.wait(10) == 0
    took = time.monotonic() - began
    assert server.wait() == 0
    assert took < ALLOWED, f"the broker took {took:.2f} s to stop"


def stuff(server: Server, scheme: str) -> Client:
    """Return a client that does not read the megabytes sent to it."""
    stuck = server.connect(scheme, receive_buffer=65536)
    stuck.subscribe("flood")
    publisher = server.connect()
    for _ in range(10):
        publisher.publish("flood", bytes(MIB))
    publisher.ping()
    return stuck


@pytest.mark.parametrize(
    ("scheme", "number"), [("mqtt", signal.SIGTERM), ("wss", signal.SIGTERM), ("mqtt", signal.SIGINT)]
)
def test_a_v5_client_is_told_that_the_server_shuts_down(serve: Serve, scheme: str, number: int) -> None:
    server = serve("", scheme)
    client = server.connect(scheme)
    server.signal(number)
    client.expect_disconnect(0x8B)
    assert server.wait() == 0


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_a_v3_client_is_closed_without_a_word(serve: Serve, scheme: str) -> None:
    server = serve("", scheme)
    client = server.connect(scheme, version=4)
    server.signal()
    client.expect_closed()
    assert server.wait() == 0


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_broker_without_clients_stops_at_once(serve: Serve, number: int) -> None:
    server = serve("", *SCHEMES, "unix")
    stop_in_time(server, number)


@pytest.mark.parametrize("scheme", ["mqtt", "wss", "unix"])
def test_the_broker_ends_in_time_with_clients_that_do_not_close(serve: Serve, scheme: str) -> None:
    server = serve("", scheme)
    for version in (4, 5):
        server.connect(scheme, version=version)
    stop_in_time(server)


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_the_broker_ends_in_time_with_a_client_that_never_reads(serve: Serve, scheme: str) -> None:
    server = serve("", *{scheme, "mqtt"})
    stuff(server, scheme)
    stop_in_time(server)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_broker_ends_in_time_with_silent_connections(serve: Serve, scheme: str) -> None:
    server = serve("", scheme)
    server.dial(scheme)
    half = server.open(scheme)
    half.send(connect_packet("half")[:5])
    stop_in_time(server)


@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
def test_the_broker_ends_in_time_while_a_client_floods_it(serve: Serve, scheme: str) -> None:
    server = serve("", scheme)
    client = server.connect(scheme)
    client.subscribe("echo")
    endpoint_of(client).settimeout(0.2)
    flood = publish_packet("echo", bytes(1000)) * 1000
    data = WebSocket.encode(WebSocket.BINARY, flood) if scheme in ("ws", "wss") else flood
    with contextlib.suppress(TimeoutError):
        for _ in range(60):
            endpoint_of(client).sendall(data)  # its own echo, which it does not read
    stop_in_time(server)


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_the_broker_ends_in_time_while_a_client_floods_it_with_requests(serve: Serve, scheme: str) -> None:
    server = serve("", scheme)
    client = server.connect(scheme)
    endpoint_of(client).settimeout(0.1)
    data = b"\xc0\x00" * 100_000
    if scheme == "ws":
        data = WebSocket.encode(WebSocket.BINARY, data)
    with contextlib.suppress(TimeoutError):
        for _ in range(20):
            endpoint_of(client).sendall(data)
    stop_in_time(server)


def test_two_signals_count_as_one(serve: Serve) -> None:
    server = serve()
    server.connect()
    server.signal()
    server.signal(signal.SIGINT)
    stop_in_time(server)


def test_sighup_during_shutdown_does_not_kill_the_broker(serve: Serve) -> None:
    server = serve()
    server.signal()
    with contextlib.suppress(ProcessLookupError):
        for _ in range(100_000):
            server.signal(signal.SIGHUP)
            if server.process.process.poll() is not None:
                break
            let_pass(0.000_5, "the broker gets to handle the signal")
    assert server.wait() == 0


def test_a_client_that_reads_gets_waiting_messages_before_the_reason(serve: Serve) -> None:
    server = serve()
    client = stuff(server, "mqtt")
    server.signal()
    messages = 0
    while (found := client.read()).kind == PUBLISH:
        assert len(found.payload) == MIB
        messages += 1
    assert messages > 0
    assert found.reason == 0x8B
    client.expect_closed()
    assert server.wait() == 0


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_no_connection_is_accepted_during_shutdown(serve: Serve, scheme: str) -> None:
    server = serve("", scheme)
    stuck, client = server.connect(scheme), server.connect(scheme)
    server.signal()
    client.expect_disconnect(0x8B)
    assert server.process.process.poll() is None, "too late to tell: the broker has ended"
    with pytest.raises(ConnectionRefusedError):
        server.dial(scheme)
    stuck.close()
    client.close()
    assert server.wait() == 0


def test_a_client_that_is_connecting_is_disconnected(serve: Serve) -> None:
    server = serve()
    witness, late = server.connect(), server.open()
    server.signal()
    witness.expect_disconnect(0x8B)
    late.send(connect_packet("late"))
    late.expect_closed()
    assert server.wait() == 0


def test_clients_are_sent_the_server_reference(serve: Serve) -> None:
    server = serve('[mqtt]\nserver_reference = "other.example.org"\n')
    client = server.connect()
    server.signal()
    assert client.expect_disconnect(0x8B).properties["server_reference"] == "other.example.org"
    assert server.wait() == 0


def test_a_websocket_is_closed_by_a_close_frame(serve: Serve) -> None:
    server = serve("", "ws")
    client = server.connect("ws")
    server.signal()
    client.expect_disconnect(0x8B)
    assert isinstance(client.transport, WebSocket)
    assert client.transport.close_code in (1000, 1001)
    assert server.wait() == 0


def test_many_clients_are_all_disconnected_in_time(serve: Serve) -> None:
    server = serve("", "mqtt", "ws")
    clients = [server.connect(scheme) for scheme in ("mqtt", "ws") for _ in range(100)]
    server.signal()
    for client in clients:
        client.expect_disconnect(0x8B)
        client.close()
    assert server.wait() == 0


def test_a_write_error_at_shutdown_is_reported_and_sets_the_exit_code(tmp_path: Path) -> None:
    broker = BrokerProcess("--data", "data", "--listen", "mqtt://127.0.0.1:0", cwd=tmp_path)
    server = Server(broker, None)
    publisher = server.connect()
    psutil.Process(broker.process.pid).rlimit(resource.RLIMIT_FSIZE, (1, 1))  # no file may grow any more
    publisher.publish("last", b"x", retain=True)
    publisher.ping()
    server.close_clients()
    assert broker.stop() == 1
    said = [line for line in broker.log if line.startswith("pyrite serve: ")]
    assert len(said) == 1
    assert "what came last may be lost: " in said[0]
    assert "the state of sessions cannot be written: " in said[0]
