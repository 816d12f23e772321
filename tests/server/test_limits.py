"""The [limits] table, end to end: what lies within passes, what lies beyond is refused in the right words."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.client import Client, Closed
from tests.conformance.wire import CONNACK, PUBACK, PUBLISH, Will, ack_packet, connect_packet, publish_packet
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

from .conftest import Serve
from .peers import MIB, SCHEMES, Server, endpoint_of

# Packet size


def sized(topic: str, size: int) -> bytes:
    """Return a PUBLISH of just that size."""
    packet = publish_packet(topic, bytes(size - len(publish_packet(topic, bytes(size))) + size))
    assert len(packet) == size
    return packet


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_packet_too_large_ends_the_connection_and_says_so(serve: Serve, scheme: str) -> None:
    server = serve("[limits]\nmax_packet_size = 1000\n", scheme)
    client = server.connect(scheme)
    client.subscribe("t")
    client.send(sized("t", 1000))
    assert client.expect(PUBLISH).size == 1000
    client.send(sized("t", 1001))
    client.expect_disconnect(0x95)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_client_that_goes_on_sending_its_packet_too_large_still_learns_why(
    serve: Serve, scheme: str
) -> None:
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
        pass  # without a word, as to whoever has not shown yet that it speaks MQTT


# Connections


def refused(server: Server, scheme: str) -> bool:
    """Tell whether a new connection is closed before it gets anywhere."""
    stream = server.dial(scheme)
    try:
        return stream.receive(1.0) == b""
    except TimeoutError:
        return False
    finally:
        stream.close()


def try_to_connect(server: Server, scheme: str) -> Client | None:
    """Connect, or return None if the broker closes the connection, at whatever stage."""
    try:
        return server.connect(scheme)
    except (OSError, AssertionError, Closed):
        return None


def test_clients_leave_descriptors_for_the_log(tmp_path: Path) -> None:
    """A broker that may open few files turns clients away, and still keeps what it is sent."""
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
def test_a_connection_too_many_is_closed_and_the_others_stay(serve: Serve, scheme: str, key: str) -> None:
    server = serve(f"[limits]\n{key} = 3\n", scheme)
    clients = [server.connect(scheme) for _ in range(3)]
    assert refused(server, scheme)
    for client in clients:
        client.ping()


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_an_encrypted_connection_too_many_is_closed_and_the_others_stay(serve: Serve, scheme: str) -> None:
    server = serve("[limits]\nmax_connections = 2\n", scheme)
    clients = [server.connect(scheme) for _ in range(2)]
    assert try_to_connect(server, scheme) is None
    for client in clients:
        client.ping()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_that_ends_makes_room_for_another(serve: Serve, scheme: str) -> None:
    server = serve("[limits]\nmax_connections = 1\nmax_connections_per_address = 1\n", scheme)
    for leave in (Client.disconnect, Client.close, Client.disconnect):
        client = wait_until(lambda: try_to_connect(server, scheme), "the place is free")
        assert client is not None
        leave(client)


def test_the_limit_per_address_counts_each_address_for_itself(serve: Serve) -> None:
    server = serve("[limits]\nmax_connections_per_address = 2\n", "mqtt", "unix")
    for scheme in ("mqtt", "unix"):
        for _ in range(2):
            server.connect(scheme)
        assert refused(server, scheme)


def test_a_session_too_many_is_refused(serve: Serve) -> None:
    server = serve("[limits]\nmax_sessions = 2\n")
    server.connect(client_id="one")
    server.connect(client_id="two", session_expiry_interval=100).disconnect()
    newcomer = server.open()
    newcomer.send(connect_packet("three"))
    newcomer.expect_refused(0x97)
    older = server.open(version=4)
    older.send(connect_packet("three", version=4))
    older.expect_refused(3)
    server.connect(client_id="two").ping()


# Time to CONNECT


SOON = 0.5
IMPATIENT = f"[limits]\nconnect_timeout = {SOON}\n"
SLACK = 1.5
"""Seconds that a loaded machine may be late."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_that_says_nothing_is_closed_in_time(serve: Serve, scheme: str) -> None:
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
def test_a_connect_that_drips_in_is_closed_in_time(serve: Serve, scheme: str) -> None:
    client = serve(IMPATIENT, scheme).open(scheme)
    drip(client, connect_packet("slow" * 100))


@pytest.mark.parametrize("scheme", ["ws", "mqtts"])
def test_a_handshake_below_mqtt_that_drips_in_is_closed_in_time(serve: Serve, scheme: str) -> None:
    stream = serve(IMPATIENT, scheme).dial(scheme)
    opening = (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" if scheme == "mqtts" else b"GET /mqtt HTTP/1.1\r\n"
    )
    drip(Client(stream), opening + b"X-Slow: loris\r\n" * 50)


def drip(client: Client, data: bytes) -> None:
    """Send a byte at a time, often; the connection has to be closed all the same."""
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


def test_no_more_messages_than_allowed_are_in_flight(serve: Serve) -> None:
    server = serve("[limits]\nmax_inflight = 3\n")
    subscriber, publisher = server.connect(), server.connect()
    subscriber.subscribe("t", qos=1)
    for number in range(7):
        publisher.publish("t", b"%d" % number, qos=1)
    first = [subscriber.expect(PUBLISH) for _ in range(3)]
    subscriber.ping()  # and nothing came before the answer
    subscriber.send(ack_packet(PUBACK, first[0].packet_id))
    assert subscriber.receive().payload == b"3"
    assert [subscriber.receive().payload for _ in range(3)] == [b"4", b"5", b"6"]


def test_a_client_may_ask_for_fewer_messages_in_flight_but_not_for_more(serve: Serve) -> None:
    server = serve("[limits]\nmax_inflight = 3\n")
    publisher = server.connect()
    for asked, granted in ((2, 2), (100, 3)):
        subscriber = server.connect(receive_maximum=asked)
        subscriber.subscribe(f"t{asked}", qos=1)
        for _ in range(7):
            publisher.publish(f"t{asked}", qos=1)
        for _ in range(granted):
            subscriber.expect(PUBLISH)
        subscriber.send(b"\xc0\x00")
        assert subscriber.read().name == "PINGRESP"


def test_messages_from_a_client_beyond_the_receive_maximum_end_its_connection(serve: Serve) -> None:
    server = serve("[limits]\nreceive_maximum = 2\n")
    client = server.connect()
    assert client.connack is not None
    assert client.connack.properties["receive_maximum"] == 2
    for packet_id in (1, 2, 3):
        client.send(publish_packet("t", qos=2, packet_id=packet_id))
    client.expect_disconnect(0x93)


# What waits for a session


def test_messages_beyond_the_queue_of_a_session_that_is_away_are_dropped_and_counted(serve: Serve) -> None:
    server = serve("[limits]\nmax_queued_messages = 5\n[mqtt]\nsys_interval = 1\n")
    server.connect(client_id="away", session_expiry_interval=100).subscribe("t", qos=1)
    server.connect(client_id="away", clean=False, session_expiry_interval=100).disconnect()
    publisher = server.connect()
    for number in range(8):
        publisher.publish("t", b"%d" % number, qos=1)
    back = server.connect(client_id="away", clean=False)
    assert [m.payload for m in back.received_before_fence(publisher)] == [
        b"%d" % number for number in range(5)
    ]
    wait_until(lambda: server.figure("publish/messages/dropped") == 3, "3 dropped messages are counted")


def test_bytes_beyond_the_queue_of_a_session_that_is_away_are_dropped(serve: Serve) -> None:
    server = serve(f"[limits]\nmax_queued_bytes = {MIB}\n")
    server.connect(client_id="away", session_expiry_interval=100).subscribe("t", qos=1)
    server.connect(client_id="away", clean=False, session_expiry_interval=100).disconnect()
    publisher = server.connect()
    for _ in range(20):
        publisher.publish("t", bytes(100_000), qos=1)
    assert len(server.connect(client_id="away", clean=False).received_before_fence(publisher)) == 10


# Subscriptions, topics, retained messages


def test_a_subscription_too_many_is_refused_and_the_others_stay(serve: Serve) -> None:
    server = serve("[limits]\nmax_subscriptions_per_client = 2\n")
    client, older = server.connect(), server.connect(version=4)
    assert client.subscribe("a", "b", "c").reasons == (0, 0, 0x97)
    assert older.subscribe("a", "b", "c").reasons == (0, 0, 0x80)
    assert client.subscribe("a", qos=1).reasons == (1,), "one that is there may be replaced"
    client.unsubscribe("a")
    assert client.subscribe("c").reasons == (0,)
    client.publish("b", b"still there")
    assert client.receive().payload == b"still there"


def test_a_filter_of_too_many_levels_is_refused(serve: Serve) -> None:
    client = serve("[limits]\nmax_topic_levels = 3\n").connect()
    assert client.subscribe("a/b/c", "a/b/c/d", "+/+/+", "+/+/+/+", "a/b/#").reasons == (0, 0x8F, 0, 0x8F, 0)


def test_a_topic_of_too_many_levels_ends_the_connection(serve: Serve) -> None:
    server = serve("[limits]\nmax_topic_levels = 3\n")
    client = server.connect()
    client.publish("a/b/c", qos=1)
    client.send(publish_packet("a/b/c/d"))
    client.expect_disconnect(0x90)


def test_a_will_of_too_many_levels_is_refused(serve: Serve) -> None:
    client = serve("[limits]\nmax_topic_levels = 3\n").open()
    client.send(connect_packet("c", will=Will("a/b/c/d")))
    client.expect_refused(0x90)


NO_SYS = "[mqtt]\nsys_interval = 0\n"


def test_a_retained_message_too_many_is_refused_and_not_kept(serve: Serve) -> None:
    server = serve(f"[limits]\nmax_retained_messages = 2\n{NO_SYS}")
    client = server.connect()
    answers = [client.publish(name, b"kept", qos=1, retain=True) for name in ("a", "b", "c")]
    assert [answer.reason for answer in answers if answer is not None] == [0x10, 0x10, 0x97]
    client.publish("d", b"kept", retain=True)
    client.subscribe("#")
    assert sorted(m.topic for m in client.received_before_fence(server.connect())) == ["a", "b"]


def test_a_retained_message_may_be_replaced_where_there_is_no_room_for_another(serve: Serve) -> None:
    server = serve(f"[limits]\nmax_retained_messages = 1\n{NO_SYS}")
    client = server.connect()
    for payload in (b"first", b"second"):
        client.publish("a", payload, qos=1, retain=True)
    client.subscribe("a")
    assert client.receive().payload == b"second"


def test_a_retained_message_that_is_removed_makes_room_for_the_one_refused_before(serve: Serve) -> None:
    server = serve(f"[limits]\nmax_retained_messages = 1\n{NO_SYS}")
    client, other = server.connect(), server.connect()
    other.publish("a", b"kept", qos=1, retain=True)
    refused = client.publish("b", b"kept", qos=1, retain=True)
    assert refused is not None
    assert refused.reason == 0x97
    other.publish("a", b"", qos=1, retain=True)
    taken = client.publish("b", b"kept", qos=1, retain=True)
    assert taken is not None
    assert taken.reason < 0x80
    client.subscribe("b")
    assert client.receive().payload == b"kept"


def test_the_brokers_own_retained_messages_do_not_count_against_the_limit(serve: Serve) -> None:
    server = serve("[limits]\nmax_retained_messages = 10\n[mqtt]\nsys_interval = 1\n")
    client = server.connect()
    for number in range(10):
        answer = client.publish(f"t/{number}", b"kept", qos=1, retain=True)
        assert answer is not None
        assert answer.reason < 0x80
    client.subscribe("t/#")
    assert [client.expect(PUBLISH).payload for _ in range(10)] == [b"kept"] * 10


def test_the_connack_tells_the_limits_that_a_client_has_to_know(serve: Serve) -> None:
    client = serve("[limits]\nmax_packet_size = 1000\nreceive_maximum = 7\n").open()
    client.send(connect_packet("c"))
    offered = client.expect(CONNACK).properties
    assert (offered["maximum_packet_size"], offered["receive_maximum"]) == (1000, 7)
