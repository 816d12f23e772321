"""A node that was away too long, or is new, starts from another node's snapshot."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyrite.protocols.mqtt.packets import Ack
from tests.cluster.harness import Node, cluster_of


def snapshot_of(node: Node) -> Path:
    target = node.data / "snapshot"
    answers: list[str] = []
    node.journal.snapshot(target, answers.append)
    assert answers == [""]
    return target


def test_a_new_node_starts_from_a_snapshot_and_has_everything() -> None:
    with cluster_of("ab") as cluster:
        publisher = cluster["a"].core.connect("publisher")
        lasting = cluster["a"].core.connect("lasting", session_expiry=1_000)
        lasting.subscribe("t/#", qos=1)
        lasting.drop()
        for number in range(20):
            publisher.publish(f"t/{number}", bytes(300), qos=1, retain=True)
        cluster.tick()
        snapshot = snapshot_of(cluster["a"])
        publisher.publish("t/after", b"x", qos=1)  # the node goes on, and the snapshot stays as it is
        shutil.copytree(snapshot, cluster.root / "c" / "data-0")
        node = cluster.add("c")
        assert node.journal.is_ready
        cluster.tick()
        cluster.check()
        client = node.core.wire()
        assert client.connect("lasting", clean_start=False, session_expiry=1_000).session_present
        assert len(client.finish()) == 21
        publisher.publish("t/end", b"x", qos=1)
        assert [packet.reason for packet in publisher.received() if isinstance(packet, Ack)][-1] < 0x80
        cluster.check()


def test_a_node_tells_its_status() -> None:
    with cluster_of() as cluster:
        cluster["a"].core.connect("publisher").publish("t", b"1", qos=1)
        status = cluster["b"].journal.status()
        assert status.node == "b"
        assert status.is_ready
        assert status.has_quorum
        assert status.sequence == cluster["a"].journal.status().sequence > 3
        assert status.hash == cluster["a"].journal.status().hash
        assert {name: (one.is_here, one.agrees) for name, one in status.nodes.items()} == dict.fromkeys(
            "abc", (True, True)
        )
        cluster["b"].order.reachable = False
        assert not cluster["b"].journal.status().has_quorum
