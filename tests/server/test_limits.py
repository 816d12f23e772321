"""The [limits] table on a real broker: packets, connections, and the time to connect."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.client import Client, Closed
from tests.conformance.wire import CONNACK, PUBLISH, connect_packet, publish_packet
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

from .conftest import Serve
from .peers import MIB, PLAIN_AND_LAYERED, SCHEMES, Server, endpoint_of

# Packet size


def sized(topic: str, size: int) -> bytes:
    """Return a PUBLISH of this size."""
    packet = publish_packet(topic, bytes(size - len(publish_packet(topic, bytes(size))) + size))
    assert len(packet) == size
    return packet


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_a_packet_too_large_ends_the_connection_with_the_reason(serve: Serve, scheme: str) -> None:
    server = serve("[limits]\nmax_packet_size = 1000\n", scheme)
    client = server.connect(scheme)
    client.subscribe("t")
    client.send(sized("t", 1000))
    assert client.expect(PUBLISH).size == 1000
    client.send(sized("t", 1001))
    client.expect_disconnect(0x95)


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_a_client_still_sending_a_packet_too_large_gets_the_reason(serve: Serve, scheme: str) -> None:
    server = serve("[limits]\nmax_packet_size = 1000\n", scheme)
    client = server.connect(scheme)
    packet = publish_packet("t", bytes(8 * MIB))
    for at in range(0, len(packet), 65536):
        client.send(packet[at : at + 65536])
    client.expect_disconnect(0x95)


def test_a_v3_client_whose_packet_is_too_large_is_closed(serve: Serve) -> None:
    client = serve("[limits]\nmax_packet_size = 1000\n").connect(version=4)
    client.send(publish_packet("t", bytes(1000), version=4))
    client.expect_closed()


def test_a_connect_too_large_is_refused(serve: Serve) -> None:
    client = serve("[limits]\nmax_packet_size = 100\n").open()
    client.send(connect_packet("c" * 100))
    try:
        assert client.read().reason == 0x95
        client.expect_closed()
    except Closed:
        pass  # without an answer, since the client has not sent any MQTT packet yet


# Connections


def refused(server: Server, scheme: str) -> bool:
    """Whether a new connection is closed at once."""
    stream = server.dial(scheme)
    try:
        return stream.receive(1.0) == b""
    except TimeoutError:
        return False
    finally:
        stream.close()


def try_to_connect(server: Server, scheme: str) -> Client | None:
    """Connect, or return None if the broker closes the connection."""
    try:
        return server.connect(scheme)
    except (OSError, AssertionError, Closed):
        return None


def test_clients_leave_descriptors_for_the_log(tmp_path: Path) -> None:
    """A broker with few file descriptors refuses clients, and still writes its log."""
    few = ["sh", "-c", 'ulimit -n 120; exec "$@"', "few"]
    listen = "--listen=line://127.0.0.1:0"
    with BrokerProcess(listen, "--data", str(tmp_path / "data"), before=few) as broker, ExitStack() as stack:
        connected = []
        for _ in range(100):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port()), timeout=10))
            one.settimeout(10)
            try:
                one.sendall(b"Ping\n")
                if one.recv(5) != b"Pong\n":
                    break
            except ConnectionError:
                break
            connected.append(one)
        assert 40 <= len(connected) <= 60
        connected[0].sendall(b"Publish a 1\nx\n")
        assert connected[0].recv(9) == b"PubAck a\n"


@pytest.mark.parametrize("key", ["max_connections", "max_connections_per_address"])
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_a_connection_beyond_the_limit_is_closed_and_the_others_stay(
    serve: Serve, scheme: str, key: str
) -> None:
    server = serve(f"[limits]\n{key} = 3\n", scheme)
    clients = [server.connect(scheme) for _ in range(3)]
    assert refused(server, scheme)
    for client in clients:
        client.ping()


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_an_encrypted_connection_beyond_the_limit_is_closed(serve: Serve, scheme: str) -> None:
    server = serve("[limits]\nmax_connections = 2\n", scheme)
    clients = [server.connect(scheme) for _ in range(2)]
    assert try_to_connect(server, scheme) is None
    for client in clients:
        client.ping()


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_a_connection_that_ends_makes_room_for_another(serve: Serve, scheme: str) -> None:
    server = serve("[limits]\nmax_connections = 1\nmax_connections_per_address = 1\n", scheme)
    for leave in (Client.disconnect, Client.close, Client.disconnect):
        client = wait_until(lambda: try_to_connect(server, scheme), "the place is free")
        assert client is not None
        leave(client)


def test_the_limit_per_address_counts_addresses_separately(serve: Serve) -> None:
    server = serve("[limits]\nmax_connections_per_address = 2\n", "mqtt", "unix")
    for scheme in ("mqtt", "unix"):
        for _ in range(2):
            server.connect(scheme)
        assert refused(server, scheme)


# Time to CONNECT


SOON = 0.5
IMPATIENT = f"[limits]\nconnect_timeout = {SOON}\n"
SLACK = 1.5
"""Seconds that a loaded machine may be late."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_silent_connection_is_closed_in_time(serve: Serve, scheme: str) -> None:
    server = serve(IMPATIENT, scheme)
    stream = server.dial(scheme)
    began = time.monotonic()
    assert stream.receive(SOON + SLACK) == b""
    assert time.monotonic() - began > SOON * 0.7


@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
def test_a_client_that_sends_no_connect_is_closed_in_time(serve: Serve, scheme: str) -> None:
    client = serve(IMPATIENT, scheme).open(scheme)
    client.expect_closed(SOON + SLACK)


@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
def test_a_connect_sent_byte_by_byte_is_closed_in_time(serve: Serve, scheme: str) -> None:
    client = serve(IMPATIENT, scheme).open(scheme)
    drip(client, connect_packet("slow" * 100))


@pytest.mark.parametrize("scheme", ["ws", "mqtts"])
def test_a_tls_or_websocket_handshake_sent_byte_by_byte_is_closed_in_time(serve: Serve, scheme: str) -> None:
    stream = serve(IMPATIENT, scheme).dial(scheme)
    opening = (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" if scheme == "mqtts" else b"GET /mqtt HTTP/1.1\r\n"
    )
    drip(Client(stream), opening + b"X-Slow: loris\r\n" * 50)


def drip(client: Client, data: bytes) -> None:
    """Send one byte after the other; the connection must be closed all the same."""
    endpoint = endpoint_of(client)
    deadline = time.monotonic() + SOON + SLACK
    for byte in data:
        client.send(bytes([byte]))
        endpoint.settimeout(0.02)
        try:
            if not endpoint.recv(1):
                return
        except TimeoutError:
            pass
        except OSError:
            return
        assert time.monotonic() < deadline, "the connection is still open"
    pytest.fail("the connection took it all")


def test_a_client_that_has_connected_in_time_stays(serve: Serve) -> None:
    client = serve(IMPATIENT).connect()
    with pytest.raises(TimeoutError):
        client.read(2 * SOON)
    client.ping()


# Messages in flight


def test_messages_beyond_the_receive_maximum_end_the_connection(serve: Serve) -> None:
    server = serve("[limits]\nreceive_maximum = 2\n")
    client = server.connect()
    assert client.connack is not None
    assert client.connack.properties["receive_maximum"] == 2
    for packet_id in (1, 2, 3):
        client.send(publish_packet("t", qos=2, packet_id=packet_id))
    client.expect_disconnect(0x93)


def test_sys_topics_do_not_count_as_retained_messages(serve: Serve) -> None:
    server = serve("[limits]\nmax_retained_messages = 10\n[mqtt]\nsys_interval = 1\n")
    client = server.connect()
    for number in range(10):
        answer = client.publish(f"t/{number}", b"kept", qos=1, retain=True)
        assert answer is not None
        assert answer.reason < 0x80
    client.subscribe("t/#")
    assert [client.expect(PUBLISH).payload for _ in range(10)] == [b"kept"] * 10


def test_connack_announces_limits(serve: Serve) -> None:
    client = serve("[limits]\nmax_packet_size = 1000\nreceive_maximum = 7\n").open()
    client.send(connect_packet("c"))
    offered = client.expect(CONNACK).properties
    assert (offered["maximum_packet_size"], offered["receive_maximum"]) == (1000, 7)
