"""MQTT over WebSocket (section 6): handshake, frames, packets and close."""

from __future__ import annotations

import socket

import pytest

from tests.conformance.client import Client
from tests.conformance.wire import (
    CONNACK,
    PINGRESP,
    PUBLISH,
    SUBACK,
    Will,
    connect_packet,
    publish_packet,
    subscribe_packet,
)
from tests.support.waiting import wait_until

from .peers import Server, Stream, WebSocket, dial, endpoint_of, unique

PINGREQ_PACKET = b"\xc0\x00"


@pytest.fixture(params=["ws", "wss"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def upgrade(server: Server, scheme: str, path: str = "/mqtt", offered: str | None = "mqtt") -> WebSocket:
    """Request an upgrade, and return the WebSocket with its status."""
    client = Client(WebSocket(dial(server.urls[scheme], server.context), "127.0.0.1", path, offered))
    server.adopt(client)
    assert isinstance(client.transport, WebSocket)
    return client.transport


def websocket_of(client: Client) -> WebSocket:
    assert isinstance(client.transport, WebSocket)
    return client.transport


# The handshake


@pytest.mark.parametrize("offered", ["mqtt", "other, mqtt", "mqtt,other"])
def test_the_subprotocol_mqtt_is_selected(server: Server, scheme: str, offered: str) -> None:
    websocket = upgrade(server, scheme, offered=offered)
    assert websocket.status == 101
    assert websocket.headers["sec-websocket-protocol"] == "mqtt"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8080", 101),
        ("http://127.0.0.1:8080", 101),
        ("https://page.localhost", 101),
        ("http://[::1]:3000", 101),
        ("https://elsewhere.example", 403),
        ("https://localhost.example", 403),
        ("https://192.0.2.7", 403),
        ("null", 403),
        ("http://[broken", 403),
    ],
)
def test_a_local_listener_accepts_only_pages_of_this_machine(
    server: Server, origin: str, status: int
) -> None:
    """Otherwise a page of any site could publish to the broker on its visitor's machine."""
    stream = dial(server.urls["ws"], server.context)
    stream.send(
        b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\nOrigin: " + origin.encode() + b"\r\n\r\n"
    )
    answer = stream.receive(10)
    stream.close()
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("offered", [None, "other", "MQTT", ""])
def test_a_client_that_does_not_offer_mqtt_is_refused(
    server: Server, scheme: str, offered: str | None
) -> None:
    assert upgrade(server, scheme, offered=offered).status == 400


@pytest.mark.parametrize("path", ["/", "/other", "/mqtt/", "/mqtt/deeper", "/MQTT"])
def test_another_path_is_not_found(server: Server, path: str) -> None:
    assert upgrade(server, "ws", path).status == 404


def test_a_query_after_the_path_is_ignored(server: Server) -> None:
    assert upgrade(server, "ws", "/mqtt?token=x").status == 101


def ask(server: Server, scheme: str, request: bytes) -> bytes:
    """Send bytes to the WebSocket port, and return everything up to the close."""
    stream: Stream = dial(server.urls[scheme], server.context)
    try:
        stream.send(request)
        answer = b""
        while chunk := stream.receive(5):
            answer += chunk
        return answer
    finally:
        stream.close()


def test_a_plain_get_is_told_to_upgrade(server: Server, scheme: str) -> None:
    answer = ask(server, scheme, b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 426 ")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"upgrade: websocket" in head.lower()
    assert f"content-length: {len(body)}".encode() in head.lower()


def test_a_plain_get_of_another_path_is_not_found(server: Server) -> None:
    assert ask(server, "ws", b"GET /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /mqtt HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"GET /mqtt HTTP/1.0\r\n\r\n",
        b"GET /mqtt HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /mqtt HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\x00\xff\x00\xff\r\n\r\n",
        connect_packet("not over TCP") + b"\r\n\r\n",
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: too short\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 8\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n",
    ],
    ids=["POST", "HTTP/1.0", "no header", "many headers", "long path", "bytes", "MQTT", "key", "version"],
)
def test_an_invalid_upgrade_is_refused_and_closed(server: Server, request_: bytes) -> None:
    answer = ask(server, "ws", request_)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


def test_a_handshake_may_come_in_pieces(server: Server) -> None:
    stream = dial(server.urls["ws"])
    try:
        request = (
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        )
        for at in range(0, len(request), 7):
            stream.send(request[at : at + 7])
        assert stream.receive(5).startswith(b"HTTP/1.1 101 ")
    finally:
        stream.close()


def test_frames_may_follow_the_handshake_at_once(server: Server) -> None:
    stream = dial(server.urls["ws"])
    try:
        stream.send(
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\n\r\n" + WebSocket.encode(2, connect_packet("eager"))
        )
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.split(b"\r\n\r\n", 1)[1]:
            answer += stream.receive(5)
        assert answer.split(b"\r\n\r\n", 1)[1][2] == CONNACK << 4
    finally:
        stream.close()


# Frames and packets


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_packet_may_be_split_over_frames(server: Server, scheme: str, topic: str, size: int) -> None:
    client = server.open(scheme)
    data = connect_packet("") + subscribe_packet(1, [(topic, 0)]) + publish_packet(topic, b"in pieces")
    for at in range(0, len(data), size):
        client.send(data[at : at + size])
    assert client.expect(CONNACK).reason == 0
    client.expect(SUBACK)
    assert client.expect(PUBLISH).payload == b"in pieces"


def test_several_packets_may_be_in_one_frame(server: Server, scheme: str, topic: str) -> None:
    client = server.open(scheme)
    packets = [publish_packet(topic, b"%d" % number) for number in range(100)]
    client.send(connect_packet("") + subscribe_packet(1, [(topic, 0)]) + b"".join(packets) + PINGREQ_PACKET)
    client.expect(CONNACK)
    client.expect(SUBACK)
    assert [client.expect(PUBLISH).payload for _ in range(100)] == [b"%d" % n for n in range(100)]
    client.expect(PINGRESP)


def test_a_packet_may_be_split_over_the_fragments_of_a_message(server: Server, scheme: str) -> None:
    client = server.open(scheme)
    websocket, data = websocket_of(client), connect_packet("")
    websocket.frame(WebSocket.BINARY, data[:3], final=False)
    websocket.frame(WebSocket.PING, b"in between")
    websocket.frame(WebSocket.CONTINUATION, data[3:8], final=False)
    websocket.frame(WebSocket.CONTINUATION, data[8:])
    assert client.expect(CONNACK).reason == 0


def test_a_frame_may_come_in_pieces(server: Server, topic: str) -> None:
    client = server.connect("ws")
    client.subscribe(topic)
    frame = WebSocket.encode(WebSocket.BINARY, publish_packet(topic, bytes(300)))
    for at in range(len(frame)):
        websocket_of(client).stream.send(frame[at : at + 1])
    assert client.receive().payload == bytes(300)


def test_an_empty_frame_is_ignored(server: Server, scheme: str) -> None:
    client = server.connect(scheme)
    client.send(b"")
    client.ping()


def test_masks_are_applied(server: Server, topic: str) -> None:
    client = server.connect("ws")
    client.subscribe(topic)
    data, mask = publish_packet(topic, b"masked"), b"\x12\x34\x56\x78"
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
    websocket_of(client).stream.send(bytes([0x82, 0x80 | len(data)]) + mask + masked)
    assert client.receive().payload == b"masked"


# Control frames


def test_a_ping_is_answered_with_the_same_data(server: Server, scheme: str) -> None:
    websocket = websocket_of(server.connect(scheme))
    websocket.frame(WebSocket.PING, b"are you there?")
    assert websocket.read_frame() == (WebSocket.PONG, b"are you there?")


def test_a_ping_before_connect_is_answered(server: Server) -> None:
    websocket = websocket_of(server.open("ws"))
    websocket.frame(WebSocket.PING, b"?")
    assert websocket.read_frame() == (WebSocket.PONG, b"?")


def test_an_unsolicited_pong_is_ignored(server: Server, scheme: str) -> None:
    client = server.connect(scheme)
    websocket_of(client).frame(WebSocket.PONG, b"here")
    client.ping()


def expect_end(websocket: WebSocket, *codes: int) -> None:
    """Require a close frame with one of these codes, possibly after a DISCONNECT, and the end."""
    while (found := websocket.read_frame())[0] == WebSocket.BINARY:
        assert found[1][0] == 0xE0
    assert found[0] == WebSocket.CLOSE
    assert int.from_bytes(found[1][:2], "big") in codes
    websocket.frame(WebSocket.CLOSE, found[1][:2])
    assert websocket.read_frame() == (WebSocket.CLOSE, b"")
    assert websocket.closed


@pytest.mark.parametrize("connected", [False, True])
def test_a_text_frame_ends_the_connection(server: Server, scheme: str, connected: bool) -> None:
    """[MQTT-6.0.0-1]"""
    client = server.connect(scheme) if connected else server.open(scheme)
    websocket_of(client).frame(WebSocket.TEXT, b"hello")
    expect_end(websocket_of(client), 1003)


def test_a_close_frame_is_answered_by_a_close_frame(server: Server, scheme: str) -> None:
    websocket = websocket_of(server.connect(scheme))
    websocket.frame(WebSocket.CLOSE, (1000).to_bytes(2, "big") + b"bye")
    assert websocket.read_frame() == (WebSocket.CLOSE, (1000).to_bytes(2, "big") + b"bye")
    assert websocket.read_frame() == (WebSocket.CLOSE, b"")
    assert websocket.closed


def test_a_disconnect_is_answered_by_a_close_frame(server: Server, scheme: str) -> None:
    client = server.connect(scheme)
    client.send(b"\xe0\x00")
    expect_end(websocket_of(client), 1000)


@pytest.mark.parametrize(
    ("frame", "codes"),
    [
        (b"\x82\x02\xc0\x00", (1002,)),
        (b"\xc2\x80\x00\x00\x00\x00", (1002,)),
        (b"\x83\x80\x00\x00\x00\x00", (1002,)),
        (b"\x80\x80\x00\x00\x00\x00", (1002,)),
        (b"\x09\x80\x00\x00\x00\x00", (1002,)),
        (b"\x89\xfe\x00\x7e\x00\x00\x00\x00" + bytes(126), (1002,)),
        (b"\x88\x81\x00\x00\x00\x00\x00", (1002,)),
        (b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", (1009,)),
    ],
    ids=["no mask", "reserved bit", "opcode 3", "continuation of nothing", "ping in fragments", "long ping",
         "close of one byte", "endless frame"],
)  # fmt: skip
def test_an_invalid_frame_ends_the_connection(server: Server, frame: bytes, codes: tuple[int, ...]) -> None:
    websocket = websocket_of(server.connect("ws"))
    websocket.stream.send(frame)
    expect_end(websocket, *codes)


# The end


def test_a_broken_connection_publishes_the_will(server: Server, scheme: str, topic: str) -> None:
    witness = server.connect()
    witness.subscribe(topic)
    client = server.connect(scheme, will=Will(topic, b"gone"))
    websocket_of(client).stream.socket.shutdown(socket.SHUT_RDWR)
    assert witness.receive().payload == b"gone"


def test_a_close_frame_without_disconnect_publishes_the_will(server: Server, scheme: str, topic: str) -> None:
    witness = server.connect()
    witness.subscribe(topic)
    client = server.connect(scheme, will=Will(topic, b"gone"))
    websocket_of(client).frame(WebSocket.CLOSE, (1001).to_bytes(2, "big"))
    assert witness.receive().payload == b"gone"


def test_a_takeover_closes_a_websocket(server: Server, scheme: str) -> None:
    client_id = unique("same")
    first = server.connect(scheme, client_id=client_id)
    second = server.connect(client_id=client_id)
    first.expect_disconnect(0x8E)
    second.ping()


def test_a_refused_upgrade_leaves_no_connection_behind(server: Server) -> None:
    before = server.descriptors
    for _ in range(20):
        ask(server, "ws", b"GET / HTTP/1.1\r\n\r\n")
    wait_until(lambda: server.descriptors <= before, "all sockets are closed")


@pytest.mark.parametrize("scheme", ["ws", "wss", "mqtts"])
@pytest.mark.parametrize("goodbye", [True, False], ids=["with a close frame", "without one"])
def test_everything_sent_before_the_close_is_handled(
    server: Server, scheme: str, goodbye: bool, topic: str
) -> None:
    """Handling many small frames takes several turns, so the client has closed before the last one."""
    count = 3_000
    witness = server.connect()
    witness.subscribe(topic)
    client = server.connect(scheme)
    packets = [publish_packet(topic, b"%d" % number * (1 + number % 7), version=5) for number in range(count)]
    endpoint = endpoint_of(client)
    if isinstance(client.transport, WebSocket):
        packets = [WebSocket.encode(WebSocket.BINARY, packet) for packet in packets]
        if goodbye:
            packets.append(WebSocket.encode(WebSocket.CLOSE, (1000).to_bytes(2, "big")))
    endpoint.sendall(b"".join(packets))
    endpoint.shutdown(socket.SHUT_WR)
    received = [witness.receive().payload for _ in range(count)]
    assert received == [b"%d" % number * (1 + number % 7) for number in range(count)]
