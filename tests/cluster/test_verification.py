"""The engine is trusted to order and replicate, and checked: a node that sees a fault stops, and says why."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest
import xxhash

from pyrite.cluster import group
from pyrite.cluster.group import GroupError, cluster_number, seal, unseal
from pyrite.protocols.mqtt.packets import Ack
from pyrite.storage.folder import FolderError
from pyrite.storage.options import StreamOptions
from tests.cluster.harness import Cluster, Node, cluster_of
from tests.support.durable import quick_folder


@pytest.fixture(autouse=True)
def _errors_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log the reasons for which nodes stop as warnings: the harness fails on errors."""
    for name in ("applying", "journal"):
        logger = logging.getLogger(f"pyrite.cluster.{name}")
        monkeypatch.setattr(logger, "error", logger.warning)


def publish(cluster: Cluster, name: str = "a") -> Ack | None:
    """Publish on a node, and return the acknowledgement if there is one."""
    client = cluster[name].core.connect(f"publisher-{name}")
    client.publish("t", b"x", qos=1)
    acks = [packet for packet in client.received() if isinstance(packet, Ack)]
    return acks[0] if acks else None


def stops(node: Node, reason: str) -> None:
    assert reason in node.journal.halted
    assert not node.journal.has_quorum
    assert node.journal.fault is not None


def test_a_gap_in_the_order_stops_the_node() -> None:
    with cluster_of() as cluster:
        told: list[str] = []
        cluster["b"].journal.when_halted(told.append)
        cluster["b"].order.delivered += 1
        cluster.engine.groups += [b"", b""]
        cluster["b"].order.step()
        stops(cluster["b"], "a gap")
        assert told == [cluster["b"].journal.halted]


def test_a_sequence_that_goes_backwards_stops_the_node() -> None:
    with cluster_of() as cluster:
        publish(cluster)
        cluster.is_automatic = False
        cluster["b"].order.delivered -= 1
        cluster["b"].order.step()
        stops(cluster["b"], "backwards")


def test_an_altered_group_stops_the_nodes_and_is_not_acknowledged() -> None:
    with cluster_of() as cluster:
        publisher = cluster["a"].core.connect("publisher")
        cluster.is_automatic = False
        publisher.publish("t", b"x", qos=1)
        data = bytearray(cluster["a"].order.appends[0].data)
        data[-1] ^= 1
        cluster["a"].order.take()
        cluster.engine.groups[-1] = bytes(data)
        for node in cluster.running:
            node.order.step()
            stops(node, "checksum")
        assert publisher.received() == []


def test_a_node_whose_data_differs_stops_and_the_others_go_on() -> None:
    with cluster_of() as cluster:
        cluster["c"].journal.ledger.hash ^= 1
        for name in "abab":
            assert publish(cluster, name) is not None
        stops(cluster["c"], "copy the data of another node")
        assert not cluster["a"].journal.halted
        assert not cluster["b"].journal.halted


def test_offsets_are_part_of_the_hash() -> None:
    with cluster_of() as cluster:
        cluster["c"].journal.streams[1].next_offset += 1
        for name in "abab":
            publish(cluster, name)
        stops(cluster["c"], "hash")


def test_a_second_process_of_the_same_name_stops_the_first() -> None:
    with cluster_of("ab") as cluster:
        first = cluster["a"]
        cluster.nodes["other"] = first
        second = Node(cluster, "a", folder="a again")
        cluster.nodes["a"] = second
        cluster.run()
        stops(first, "another process")
        assert second.journal.is_ready


def test_a_node_that_the_engine_has_nothing_for_stops() -> None:
    with cluster_of("a") as cluster:
        node = cluster["a"]
        lost: Callable[[int], object] = node.journal.applying._lost
        lost(100)
        stops(node, "holds groups from 100 on")


def test_a_node_with_other_streams_stops_those_that_see_it() -> None:
    with cluster_of("a") as cluster:
        cluster.streams = [StreamOptions("other", ["other/#"], fsync="always"), *cluster.streams]
        cluster.add("b")
        stops(cluster["b"], "same streams in the same order")


def test_a_node_whose_disk_fails_stops_and_has_everything_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("journal.faults", "journal.disk"):
        logger = logging.getLogger(f"pyrite.{name}")
        monkeypatch.setattr(logger, "error", logger.warning)
    with cluster_of() as cluster:
        node = cluster["a"]
        publisher = node.core.connect("publisher")
        publisher.publish("t", b"1", qos=1)
        assert publisher.only(Ack).packet_id == 1

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(node.files, "write", fail)
        publisher.publish("t", b"2", qos=1)
        stops(node, "see to the disk")
        assert publisher.received() == []
        assert publish(cluster, "b") is not None
        monkeypatch.undo()
        node.crash()
        node.start()
        cluster.run()
        cluster.check()
        assert [row["payload"] for row in node.log("default")] == [b"1", b"2", b"x"]


def test_every_stream_of_a_node_is_synced() -> None:
    from pyrite.cluster.journal import open_cluster_journal

    with quick_folder() as folder, pytest.raises(FolderError, match="fsync"):
        open_cluster_journal(folder / "data", [StreamOptions(fsync="never")], "a", "test")


def test_an_envelope_says_what_is_wrong_with_it() -> None:
    cluster = cluster_number("one")
    data = seal(cluster, "a", 1, 2, True, b"contents")
    assert unseal(cluster, data).contents == b"contents"
    with pytest.raises(GroupError, match="another name"):
        unseal(cluster_number("two"), data)
    with pytest.raises(GroupError, match="not of Pyrite"):
        unseal(cluster, b"hello" * 20)
    later = bytearray(data)
    later[4] = group.FORMAT + 1
    with pytest.raises(GroupError, match="upgrade this node"):
        unseal(cluster, bytes(later))
    for at in range(14, len(data)):
        altered = bytearray(data)
        altered[at] ^= 4
        with pytest.raises(GroupError):
            unseal(cluster, bytes(altered))
    assert xxhash.xxh3_64_intdigest(data[14:]) == unseal(cluster, data).checksum


def test_a_node_does_not_go_on_with_a_damaged_state() -> None:
    with cluster_of() as cluster:
        publisher = cluster["a"].core.connect("publisher")
        for number in range(200):
            publisher.publish(f"t/{number}", bytes(300), qos=1, retain=True)
        cluster.tick()
        node = cluster["b"]
        node.stop()
        path = node.data / "state.sqlite"
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 4096] = bytes(4096)
        path.write_bytes(data)
        for _ in range(2):
            with pytest.raises(FolderError, match="copy of another node"):
                node.open_journal()
