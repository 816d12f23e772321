"""Merged messages in the journal: each has its own publisher, and is acknowledged when it is written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pyrite.broker.journal import Piece, Wanted
from pyrite.protocols.mqtt.packets import Ack, Publish, Subscribe, Wish
from pyrite.protocols.mqtt.reasons import Reason
from pyrite.storage.options import StreamOptions
from tests.mqtt.test_merging import merged
from tests.support.durable import Deferred, FailingFiles, Machine


def test_no_local_applies_to_a_subscription_made_while_the_messages_were_written(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()], writing=Deferred)
    core = machine.core
    clients = merged(core, 3)
    core.flush()
    clients[1].send(Subscribe(9, [Wish(b"t/+", 1, no_local=True)]))
    clients[1].received()
    machine.settle()
    assert clients[1].payloads() == [b"0", b"2"]
    machine.stop()


def test_each_message_is_logged_under_its_own_publisher(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()])
    merged(machine.core, 3)
    machine.core.flush()
    stream = machine.journal.streams[0]
    pieces: list[Piece] = []
    machine.journal.read(stream, 0, 3, Wanted([b"#"]), pieces.append)
    found = [(part.origin, part.payload()) for batch in pieces[0].batches for part in batch.parts()]
    assert found == [(f"publisher{number}", b"%d" % number) for number in range(3)]
    machine.stop()


def test_merged_messages_are_not_acknowledged_before_they_are_written(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()], writing=Deferred)
    clients = merged(machine.core, 3)
    machine.core.flush()
    assert all(client.received() == [] for client in clients)
    machine.settle()
    assert all([type(one) for one in client.received()] == [Ack] for client in clients)
    machine.stop()


def test_a_message_that_could_not_be_written_is_refused(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()], files=lambda _: FailingFiles())
    clients = merged(machine.core, 3)
    disk = machine.files
    assert isinstance(disk, FailingFiles)
    disk.failing["sync"] = errno.ENOSPC
    machine.core.flush()
    for client in clients:
        [answer] = client.received()
        assert isinstance(answer, Ack)
        assert answer.reason == Reason.QUOTA_EXCEEDED
    disk.failing.clear()
    machine.stop()


@pytest.mark.parametrize("count", [3, 300])  # rows of the tail, and record batches
@pytest.mark.parametrize("qos", [0, 1])
def test_each_message_is_in_the_log_with_its_own_properties(folder: Path, count: int, qos: int) -> None:
    machine = Machine(folder, [StreamOptions()])
    client = machine.core.connect("publisher")
    packets = [
        Publish(b"t/%d" % n, b"%d" % n, qos, packet_id=n + 1, properties={"content_type": f"type {n}"})
        for n in range(count)
    ]
    client.send(*packets, Publish(b"t/plain", b"plain", qos, packet_id=count + 1))
    machine.stop()
    machine = Machine(folder, [StreamOptions()])
    pieces: list[Piece] = []
    machine.journal.read(machine.journal.streams[0], 0, count + 1, Wanted([b"#"]), pieces.append)
    parts = [part for piece in pieces for batch in piece.batches for part in batch.parts()]
    found = [(part.topic, part.payload(), part.properties and part.properties.content_type) for part in parts]
    expected = [(b"t/%d" % n, b"%d" % n, f"type {n}") for n in range(count)]
    assert found == [*expected, (b"t/plain", b"plain", None)]
    machine.stop()


def test_a_client_that_left_while_its_message_was_written_gets_no_acknowledgement(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions()], writing=Deferred)
    clients = merged(machine.core, 3)
    machine.core.flush()
    clients[1].drop()
    machine.settle()
    assert [len(client.received()) for client in clients] == [1, 0, 1]
    machine.stop()
