"""The PROXY protocol: the addresses of clients behind a load balancer."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrite.process.proxy import FIXED, MAX_LENGTH, SIGNATURE, BadHeader, Header
from tests.support.waiting import wait_until

from .conftest import Certificates, start
from .peers import Server, Stream, WebSocket, trusting

TIMEOUT = 20.0
CONNECT = bytes.fromhex("100d00044d515454050200000000 00".replace(" ", ""))
FROM_IPV4 = b"PROXY TCP4 198.51.100.7 192.0.2.1 40000 1883\r\n"


def second(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + struct.pack("!BBH", 0x20 | command, family, len(body)) + body


def ipv6(address: str, port: int) -> bytes:
    return socket.inet_pton(socket.AF_INET6, address) + bytes(16) + struct.pack("!HH", port, 1883)


VALID = {
    FROM_IPV4: ("198.51.100.7", 40000),
    b"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n": ("2001:db8::7", 1),
    b"PROXY UNKNOWN\r\n": None,
    b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n": None,
    second(1, 0x11, bytes([198, 51, 100, 8, 1, 2, 3, 4]) + struct.pack("!HH", 5, 6)): ("198.51.100.8", 5),
    second(1, 0x21, ipv6("2001:db8::9", 77) + b"\x04\x00\x02ab"): ("2001:db8::9", 77),
    second(0, 0x11, bytes(12)): None,
    second(1, 0, b""): None,
}
INVALID = [
    b"GET / HTTP/1.1\r\n",
    CONNECT,
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
    b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n",
    b"PROXY TCP4 ::1 1.2.3.4 1 2\r\n",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n",
    b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
    b"PROXY " + b"x" * 200,
    b"PROXY \r\n",
    second(2, 0x11, bytes(12)),
    second(1, 0x12, bytes(12)),
    second(1, 0x31, bytes(216)),
    second(1, 0x11, bytes(11)),
    second(1, 0x21, bytes(12)),
    SIGNATURE + b"\x11\x11\x00\x0c" + bytes(12),
    SIGNATURE + struct.pack("!BBH", 0x21, 0x11, MAX_LENGTH + 1),
]


@pytest.mark.parametrize("header", VALID)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_header_is_parsed_in_any_pieces_and_nothing_after_it(header: bytes, size: int) -> None:
    parser, rest = Header(), header + CONNECT
    while not parser.is_complete:
        piece = rest[:size]
        taken = parser.feed(piece)
        assert taken > 0
        rest = rest[taken:]
    assert rest == CONNECT
    assert parser.client == VALID[header]


@pytest.mark.parametrize("data", INVALID)
def test_an_invalid_header_is_refused(data: bytes) -> None:
    with pytest.raises(BadHeader):
        Header().feed(data)
    parser = Header()
    with pytest.raises(BadHeader):  # noqa: PT012
        for byte in data:
            parser.feed(bytes((byte,)))


@given(st.lists(st.binary(min_size=1, max_size=40) | st.sampled_from([SIGNATURE, b"PROXY ", b"\r\n", b" "])))
def test_hostile_bytes_are_refused_or_taken_within_bounds(pieces: list[bytes]) -> None:
    parser, total = Header(), 0
    for piece in pieces:
        try:
            taken = parser.feed(piece)
        except BadHeader:
            return
        total += taken
        assert taken == len(piece) or parser.is_complete
        assert 0 < taken <= len(piece)
        assert total <= FIXED + MAX_LENGTH
        if parser.is_complete:
            return


# A broker


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Server]:
    """A broker that trusts a load balancer at 127.0.0.9."""
    limits = "[limits]\nconnect_timeout = 2\nmax_connections_per_address = 2\n"
    config = '[proxy]\ntrusted = ["127.0.0.9/32"]\n' + limits
    folder: Path = tmp_path_factory.mktemp("proxy")
    server = start(config, ("mqtt", "mqtts", "ws"), folder, certificates, None)
    yield server
    assert server.stop() == 0


def dial(server: Server, scheme: str, source: str) -> socket.socket:
    return socket.create_connection(
        ("127.0.0.1", urlsplit(server.urls[scheme]).port or 0), TIMEOUT, (source, 0)
    )


def is_closed(endpoint: socket.socket) -> bool:
    """Return True if the broker closes the connection; with unread input, the kernel resets it."""
    try:
        return endpoint.recv(1) == b""
    except ConnectionResetError:
        return True


def logged(server: Server, pattern: str) -> None:
    """Wait for a line of the broker's log."""
    wait_until(lambda: any(re.search(pattern, line) for line in server.process.log))


def address_seen(server: Server, address: str) -> None:
    """Wait for the log to say that a client connected from an address."""
    logged(server, f"connected .*address={address} ")


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
def test_the_client_behind_a_load_balancer_is_known_by_its_own_address(
    behind: Server, certificates: Certificates, scheme: str
) -> None:
    with dial(behind, scheme, "127.0.0.9") as plain:
        address = {"mqtt": b"198.51.100.1", "mqtts": b"198.51.100.2"}[scheme]
        plain.sendall(b"PROXY TCP4 %s 192.0.2.1 40000 1883\r\n" % address)
        endpoint = plain
        if scheme == "mqtts":
            endpoint = trusting(certificates.authority).wrap_socket(plain, server_hostname="localhost")
        endpoint.sendall(CONNECT)
        assert endpoint.recv(1)[0] == 0x20
        address_seen(behind, address.decode())
        endpoint.close()


def test_a_header_and_a_packet_in_one_piece(behind: Server) -> None:
    with dial(behind, "mqtt", "127.0.0.9") as endpoint:
        endpoint.sendall(second(1, 0x21, ipv6("2001:db8::9", 77)) + CONNECT)
        assert endpoint.recv(1)[0] == 0x20
        address_seen(behind, "2001:db8::9")


def test_websockets_behind_a_load_balancer(behind: Server) -> None:
    endpoint = dial(behind, "ws", "127.0.0.9")
    endpoint.sendall(b"PROXY TCP4 198.51.100.3 192.0.2.1 40000 1883\r\n")
    websocket = WebSocket(Stream(endpoint), "localhost", "/mqtt")
    websocket.send(CONNECT)
    assert websocket.receive(TIMEOUT)[0] == 0x20
    address_seen(behind, "198.51.100.3")
    websocket.close()


def test_a_header_from_another_address_is_not_looked_for(behind: Server) -> None:
    with dial(behind, "mqtt", "127.0.0.8") as endpoint:
        endpoint.sendall(FROM_IPV4 + CONNECT)
        assert is_closed(endpoint), "to MQTT, the header is a malformed packet"


def test_a_load_balancer_without_a_header_is_refused_and_the_log_says_why(behind: Server) -> None:
    with dial(behind, "mqtt", "127.0.0.9") as endpoint:
        endpoint.sendall(CONNECT)
        assert is_closed(endpoint)
        logged(behind, 'refused .*address=127.0.0.9 reason="PROXY protocol: no PROXY protocol header"')
    with dial(behind, "mqtt", "127.0.0.9") as endpoint:
        endpoint.sendall(b"PROXY TCP4 ")
        assert is_closed(endpoint)
        logged(behind, 'reason="PROXY protocol: no header in time"')


def test_limits_of_an_address_count_for_the_clients_address(behind: Server) -> None:
    with (
        dial(behind, "mqtt", "127.0.0.9") as first,
        dial(behind, "mqtt", "127.0.0.9") as second_one,
        dial(behind, "mqtt", "127.0.0.9") as third,
        dial(behind, "mqtt", "127.0.0.9") as other,
    ):
        for endpoint in (first, second_one):
            endpoint.sendall(b"PROXY TCP4 198.51.100.5 192.0.2.1 1 2\r\n" + CONNECT)
            assert endpoint.recv(1)[0] == 0x20
        third.sendall(b"PROXY TCP4 198.51.100.5 192.0.2.1 1 2\r\n")
        assert is_closed(third)
        other.sendall(b"PROXY TCP4 198.51.100.6 192.0.2.1 1 2\r\n" + CONNECT)
        assert other.recv(1)[0] == 0x20
