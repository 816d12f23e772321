"""Consumers are pulled on any node: each message is handed out once, and acknowledged anywhere."""

from __future__ import annotations

import pytest

from pyrite.broker import consumers
from pyrite.broker.access import Credentials
from pyrite.broker.message import Batch
from pyrite.broker.pending import Place
from pyrite.storage.positions import Earliest
from tests.cluster.harness import Cluster, Node, cluster_of

WHO = Credentials("puller", None, None, "127.0.0.1")


def create(node: Node, name: str = "c") -> None:
    done: list[bool] = []
    consumers.create(node.core.broker, WHO, name, b"t/#", Earliest(), 30.0, lambda: done.append(True))
    node.core.flush()
    assert done


class Fetching:
    """One fetch, and what it has handed out."""

    def __init__(self, node: Node, most: int = 100) -> None:
        self.found: list[tuple[Place, bytes]] = []
        self.counts: list[int] = []
        consumer = consumers.find(node.core.broker, WHO, "c")
        consumer.fetch(most, self._deliver, self.counts.append)
        node.core.flush()

    def _deliver(self, place: Place, batch: Batch) -> None:
        self.found.append((place, batch.payload()))

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.found]


def acknowledge(node: Node, fetching: Fetching) -> int:
    streams = {stream.name: stream for stream in node.journal.streams}
    places = [Place(streams[place.stream.name], place.offset) for place, _ in fetching.found]
    counts: list[int] = []
    consumers.find(node.core.broker, WHO, "c").acknowledge(places, counts.append)
    node.core.flush()
    return counts[0]


def fill(cluster: Cluster) -> None:
    publisher = cluster["a"].core.connect("publisher")
    for number in range(6):
        publisher.publish("t/1", b"%d" % number, qos=1)


def test_each_message_is_handed_out_once_wherever_it_is_pulled() -> None:
    with cluster_of() as cluster:
        fill(cluster)
        create(cluster["a"])
        first, second = Fetching(cluster["a"], 2), Fetching(cluster["b"], 2)
        third = Fetching(cluster["c"])
        assert (first.payloads, second.payloads) == ([b"0", b"1"], [b"2", b"3"])
        assert third.payloads == [b"4", b"5"]
        assert acknowledge(cluster["b"], first) == 2
        cluster.tick()
        cluster.check()
        cluster.tick(40)
        again = Fetching(cluster["a"])
        assert again.payloads == [b"2", b"3", b"4", b"5"]
        assert acknowledge(cluster["c"], again) == 4
        cluster.tick()
        cluster.check()
        assert cluster["c"].state()["pending"] == []


def test_a_consumer_that_moves_during_a_fetch_hands_nothing_out_twice() -> None:
    with cluster_of() as cluster:
        fill(cluster)
        create(cluster["a"])
        cluster.is_automatic = False
        first = Fetching(cluster["a"])
        second = Fetching(cluster["b"])
        assert first.payloads == second.payloads == []
        cluster["b"].order.take()  # the claim comes before what node a has handed out
        cluster.is_automatic = True
        cluster.run()
        assert sorted(first.payloads + second.payloads) == [b"%d" % number for number in range(6)]
        assert first.counts == [0]


def test_consumers_outlive_their_node_and_are_deleted_on_all_nodes() -> None:
    with cluster_of() as cluster:
        fill(cluster)
        create(cluster["a"])
        Fetching(cluster["a"], 2)
        cluster["a"].crash()
        assert Fetching(cluster["b"], 2).payloads == [b"2", b"3"]
        cluster["a"].start()
        cluster.run()
        assert Fetching(cluster["a"], 2).payloads == [b"4", b"5"]
        consumers.delete(consumers.find(cluster["c"].core.broker, WHO, "c"), lambda: None)
        cluster["c"].core.flush()
        cluster.tick()
        for node in cluster.running:
            with pytest.raises(consumers.ConsumerError):
                consumers.find(node.core.broker, WHO, "c")
        cluster.check()
        assert cluster["a"].state()["pending"] == cluster["a"].state()["consumers"] == []


def test_without_a_quorum_pulls_are_refused() -> None:
    with cluster_of() as cluster:
        fill(cluster)
        create(cluster["a"])
        cluster["a"].order.reachable = False
        with pytest.raises(consumers.Unavailable, match="quorum"):
            Fetching(cluster["a"])
        cluster["a"].order.reachable = True
        assert len(Fetching(cluster["a"]).payloads) == 6
