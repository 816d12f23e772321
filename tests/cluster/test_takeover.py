"""A client's session moves from node to node, and every QoS 2 message is stored once."""

from __future__ import annotations

import socket

from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import V5, Ack, Connack, Connect, Publish
from pyrite.server.kernel import is_half_closed
from tests.cluster.harness import Cluster, cluster_of
from tests.support.core import Client
from tests.support.waiting import wait_until

HELLO = Connect("p", V5, False, properties={"session_expiry": 3_600})
MESSAGE = Publish(b"t", b"x", 2, packet_id=1)
AGAIN = Publish(b"t", b"x", 2, dup=True, packet_id=1)


def connect(cluster: Cluster, node: str) -> Client:
    """Connect to a node with the session that all connections share."""
    client = Client(cluster[node].core)
    client.send(HELLO)
    assert client.received()
    return client


def payloads(cluster: Cluster) -> list[bytes]:
    """Return the messages in the log, which is the same on all nodes."""
    cluster.check()
    return [row["payload"] for row in cluster["a"].log("default")]


def test_a_message_behind_a_connect_is_void_if_the_client_has_left_before_the_node_could_claim() -> None:
    """The client publishes before CONNACK, gives up, and completes the message through another node."""
    with cluster_of() as cluster:
        connect(cluster, "a")
        cluster.is_automatic = False
        given_up = Client(cluster["b"].core)
        given_up.send(HELLO, MESSAGE)
        assert not given_up.received()
        cluster["b"].order.reachable = False
        cluster.is_automatic = True
        given_up.transport.input_ended = True
        second = connect(cluster, "c")
        second.send(AGAIN)
        assert second.only(Ack).type == fields.PUBREC
        second.send(Ack(fields.PUBREL, 1))
        assert second.only(Ack) == Ack(fields.PUBCOMP, 1)
        cluster["b"].order.reachable = True
        cluster.run()
        assert given_up.transport.aborted
        assert payloads(cluster) == [b"x"]


def test_a_message_behind_a_connect_is_stored_when_the_node_has_claimed_the_session() -> None:
    with cluster_of() as cluster:
        connect(cluster, "a")
        cluster.is_automatic = False
        client = Client(cluster["b"].core)
        client.send(HELLO, MESSAGE)
        assert not client.received()
        cluster.is_automatic = True
        cluster.run()
        connack, pubrec = client.received()
        assert isinstance(connack, Connack)
        assert isinstance(pubrec, Ack)
        assert pubrec.type == fields.PUBREC
        assert payloads(cluster) == [b"x"]


def test_a_session_that_comes_back_at_once_keeps_its_subscriptions_and_unfinished_messages() -> None:
    with cluster_of() as cluster:
        first = connect(cluster, "a")
        first.subscribe("none")
        first.send(MESSAGE)
        connect(cluster, "b")
        connect(cluster, "a")
        third = connect(cluster, "c")
        assert list(cluster["c"].core.broker.sessions.by_id["p"].subscriptions) == [b"none"]
        third.send(AGAIN)
        assert third.only(Ack).type == fields.PUBREC
        assert payloads(cluster) == [b"x"]


def test_the_end_of_a_connection_is_seen_behind_input_that_was_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()) as client:
            accepted, _ = listening.accept()
            client.sendall(b"not read")
            assert not is_half_closed(accepted.fileno())
        with accepted:
            wait_until(lambda: is_half_closed(accepted.fileno()), "the end of the connection is seen")
            assert accepted.recv(100) == b"not read"
