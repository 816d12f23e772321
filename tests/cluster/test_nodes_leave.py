"""What happens when a node is gone: sessions, wills and expiry."""

from __future__ import annotations

from pyrite.protocols.mqtt.packets import WillMessage
from tests.cluster.harness import Cluster, cluster_of

LOST = WillMessage(b"t/will", b"lost", 1)


def expire(cluster: Cluster, name: str) -> None:
    """Have the lease of a node expire, and the others notice."""
    cluster.engine.leases.pop(name, None)
    for _ in range(5):
        cluster.tick()


def payloads(cluster: Cluster) -> list[bytes]:
    cluster.check()
    return [row["payload"] for row in cluster.running[0].log("default")]


def test_the_wills_of_a_node_that_is_gone_are_published_once() -> None:
    with cluster_of() as cluster:
        cluster["a"].core.connect("with will", will=LOST)
        late = WillMessage(b"t/late", b"late", 1, properties={"will_delay": 60})
        cluster["a"].core.connect("delayed", will=late, session_expiry=100)
        subscriber = cluster["b"].core.connect("subscriber")
        subscriber.subscribe("t/#", qos=1)
        cluster["a"].crash()
        expire(cluster, "a")
        assert [one.payload for one in subscriber.finish()] == [b"lost"]
        cluster.tick(70)
        cluster.tick()
        assert [one.payload for one in subscriber.finish()] == [b"late"]
        cluster["a"].start()
        expire(cluster, "none")
        assert payloads(cluster) == [b"lost", b"late"]


def test_the_wills_of_a_node_that_restarts_at_once_are_published_once() -> None:
    with cluster_of() as cluster:
        cluster["c"].core.connect("with will", will=LOST)
        cluster["c"].crash()
        cluster["c"].start()
        cluster.run()
        cluster.tick()
        cluster.tick()
        assert payloads(cluster) == [b"lost"]


def test_a_will_is_dropped_by_disconnect_and_published_when_the_connection_is_lost() -> None:
    with cluster_of() as cluster:
        cluster["a"].core.connect("one", will=LOST).disconnect()
        cluster["b"].core.connect("two", will=WillMessage(b"t/will", b"two", 1)).drop()
        cluster["b"].crash()
        expire(cluster, "b")
        assert payloads(cluster) == [b"two"]


def test_a_client_that_comes_back_on_another_node_at_once() -> None:
    with cluster_of() as cluster:
        delayed = WillMessage(b"t/will", b"not published", 1, properties={"will_delay": 60})
        first = cluster["a"].core.connect("client", will=delayed, session_expiry=100)
        first.subscribe("t/1", qos=1)
        cluster["a"].crash()
        cluster["c"].core.connect("publisher").publish("t/1", b"1", qos=1)
        second = cluster["b"].core.wire()
        assert second.connect("client", clean_start=False, session_expiry=100).session_present
        assert [one.payload for one in second.finish()] == [b"1"]
        expire(cluster, "a")
        cluster.tick(70)
        assert payloads(cluster) == [b"1"]


def test_sessions_of_a_node_that_is_gone_expire() -> None:
    with cluster_of() as cluster:
        for name, expiry in (("short", 30), ("long", 300), ("none", 0)):
            cluster["a"].core.connect(name, session_expiry=expiry).subscribe("t", qos=1)
        cluster.tick()
        cluster["a"].crash()
        expire(cluster, "a")
        cluster.tick(40)
        expire(cluster, "")
        assert [row[0] for row in cluster["b"].state()["sessions"]] == ["long"]
        assert {name for _, name in cluster["c"].journal.ledger.owners} == {"long"}
        cluster.check()


def test_a_node_that_was_declared_gone_and_is_not_joins_again() -> None:
    with cluster_of() as cluster:
        client = cluster["a"].core.connect("client", will=LOST, session_expiry=100)
        expire(cluster, "a")
        assert client.closed
        assert cluster["a"].journal.is_ready
        again = cluster["a"].core.wire()
        assert again.connect("client", clean_start=False, session_expiry=100).session_present
        again.publish("t", b"1", qos=1)
        assert payloads(cluster) == [b"lost", b"1"]
