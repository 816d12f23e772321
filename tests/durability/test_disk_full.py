"""A full disk: messages are refused, everything else continues, and all recovers once there is room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyrite.journal.verify import verify
from pyrite.storage.tail import TAIL_BYTES
from tests.conformance.client import Client
from tests.conformance.reader import Packet
from tests.conformance.wire import (
    CONNACK,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    ack_packet,
    connect_packet,
    publish_packet,
)
from tests.support.waiting import let_pass

from .broker import LONG, Broker
from .disk import BLOCK, SmallDisk

REFUSED = (0x97, 0x80)
PATIENCE = 15.0
MUCH = TAIL_BYTES + 2 * BLOCK
"""Bytes for which there is no room on a disk that is full, also not where a segment has kept some."""
ERROR = "$SYS/broker/log/error"
LOST = "$SYS/broker/log/lost"


@pytest.fixture
def broker(disk: SmallDisk, tmp_path: Path) -> Iterator[Broker]:
    """A broker on the small disk."""
    made = Broker(tmp_path, "[mqtt]\nsys_interval = 1\n", disk.before, disk.path / "data", disk.here / "data")
    try:
        made.start()
        yield made
        if made.running:
            assert made.process.process.poll() is None, "the broker has ended by itself"
        assert not [line for line in made.complaints if "internal" in line or "Traceback" in line]
    finally:
        made.close()


def refused(client: Client, payload: bytes, qos: int = 1, topic: str = "a") -> Packet:
    """Publish more than any file has room for, and require that it is refused."""
    answer = client.publish(topic, payload + os.urandom(MUCH), qos=qos)
    assert answer is not None
    assert answer.reason in REFUSED
    assert "No space left" in answer.properties["reason_string"]
    return answer


def accepted(client: Client, payload: bytes, qos: int = 1, topic: str = "a") -> None:
    """Publish until it is accepted."""
    end = time.monotonic() + PATIENCE
    while True:
        answer = client.publish(topic, payload, qos=qos)
        assert answer is not None
        if answer.reason < 0x80:
            return
        assert time.monotonic() < end, f"still refused: {answer}"


def wait_for(client: Client, wanted: Callable[[Packet], bool]) -> Packet:
    """Return the first wanted message; acknowledge and drop all others."""
    end = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < end, "it did not come"
        message = client.receive(PATIENCE)
        if wanted(message):
            return message


def test_messages_are_refused_until_there_is_room(disk: SmallDisk, broker: Broker) -> None:
    watcher, subscriber, publisher = broker.client(), broker.client(), broker.client("bob")
    watcher.subscribe(ERROR)
    assert watcher.receive().payload == b"none"
    subscriber.subscribe("a", qos=2)
    accepted(publisher, b"before")
    assert subscriber.receive().payload == b"before"
    disk.fill()

    refused(publisher, b"refused 1", 1)
    refused(publisher, b"refused 2", 2)
    assert b"No space left" in wait_for(watcher, lambda one: one.payload != b"none").payload
    late = broker.client()
    late.subscribe(ERROR)
    message = late.receive()
    assert message.retain
    assert b"No space left" in message.payload

    publisher.publish("a", b"at once", qos=0)
    assert subscriber.receive().payload == b"at once"  # and nothing that was refused
    for number in range(50):
        refused(publisher, b"refused %d" % number, 1 + number % 2)
    publisher.publish("a", b"still", qos=0)
    assert subscriber.receive().payload == b"still"
    assert len(broker.complaints) == 1
    assert "No space left" in broker.complaints[0]

    disk.make_room()
    accepted(publisher, b"after 1", 1)
    accepted(publisher, b"after 2", 2)
    assert subscriber.receive().payload == b"after 1"
    assert subscriber.receive().payload == b"after 2"
    wait_for(watcher, lambda one: one.payload == b"none")
    assert len(broker.complaints) == 1
    kept = [payload for payload in broker.logged("a") if payload not in (b"at once", b"still")]
    assert kept == [b"before", b"after 1", b"after 2"]
    broker.restart("kill")
    kept = [payload for payload in broker.logged("a") if payload not in (b"at once", b"still")]
    assert kept == [b"before", b"after 1", b"after 2"]


def test_the_error_is_published_until_there_is_room(disk: SmallDisk, broker: Broker) -> None:
    """It appears and disappears without any publisher."""
    watcher, publisher = broker.client(), broker.client()
    watcher.subscribe(ERROR)
    assert watcher.receive().payload == b"none"
    accepted(publisher, b"before")
    disk.fill()
    refused(publisher, b"refused")
    assert b"No space left" in watcher.receive(PATIENCE).payload
    with pytest.raises(TimeoutError):
        watcher.receive(3.5)  # the broker looks every second
    disk.make_room()
    assert watcher.receive(PATIENCE).payload == b"none"
    assert len(broker.complaints) == 1
    assert broker.logged("a") == [b"before"]


def test_retained_messages_take_no_memory_without_room(disk: SmallDisk, broker: Broker) -> None:
    """They are delivered as usual, and the last one of each topic is kept once there is room."""
    watcher, publisher = broker.client(), broker.client()
    disk.fill()
    refused(publisher, b"x")
    topics, rounds, size = 20, 800, 10_000
    watcher.subscribe("end")

    def publish(numbers: range) -> int:
        """Return the memory that the broker takes after it."""
        for number in numbers:
            payload = b"%d:" % number + bytes(size)
            publisher.send(
                b"".join(publish_packet(f"r/{one}", payload, retain=True) for one in range(topics))
            )
        publisher.publish("end", b"end", qos=0)
        assert watcher.receive(PATIENCE).payload == b"end"
        return broker.memory()

    before = publish(range(rounds // 4))
    grown = publish(range(rounds // 4, rounds)) - before
    assert grown < topics * rounds * size // 4, f"{grown} bytes more"
    disk.make_room()
    broker.settle()
    broker.restart("kill")
    reader = broker.client()
    reader.subscribe("r/+")
    kept = {message.topic: message.payload for message in (reader.receive() for _ in range(topics))}
    assert kept == {f"r/{one}": b"%d:" % (rounds - 1) + bytes(size) for one in range(topics)}


def test_lost_messages_with_qos_0_are_counted(disk: SmallDisk, broker: Broker) -> None:
    watcher, publisher = broker.client(), broker.client()
    watcher.subscribe(LOST)
    assert watcher.receive().payload == b"0"
    disk.fill()
    refused(publisher, b"x")
    for _ in range(10):
        publisher.publish("a", os.urandom(MUCH), qos=0)
    assert wait_for(watcher, lambda one: one.payload == b"10").payload == b"10"


def test_mqtt_3_clients_get_no_acknowledgement_and_send_again(disk: SmallDisk, broker: Broker) -> None:
    old = broker.lasting("old", 4)
    other = broker.client()
    disk.fill()
    refused(other, b"other")
    one, two = b"one" + os.urandom(2 * BLOCK), b"two" + os.urandom(2 * BLOCK)
    old.send(publish_packet("a", one, qos=1, packet_id=1, version=4))
    old.send(publish_packet("a", two, qos=2, packet_id=2, version=4))
    old.ping()
    for _ in range(3):
        refused(other, b"other")  # what came before it has been dealt with
    old.ping()
    assert not old._inbox, list(old._inbox)
    disk.make_room()
    accepted(other, b"other")
    old.close()
    old = broker.returning("old", 4)
    old.send(publish_packet("a", one, qos=1, packet_id=1, dup=True, version=4))
    assert old.expect(PUBACK).packet_id == 1
    old.send(publish_packet("a", two, qos=2, packet_id=2, dup=True, version=4))
    assert old.expect(PUBREC).packet_id == 2
    broker.restart("kill")
    assert broker.logged("a") == [b"other", one, two]
    old = broker.returning("old", 4)
    old.send(ack_packet(PUBREL, 2))
    assert old.expect(PUBCOMP).packet_id == 2


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_refused_qos_2_message_does_not_count_as_a_duplicate(
    disk: SmallDisk, broker: Broker, how: str
) -> None:
    """Its packet id may have been written before the write of the message failed."""
    old, other = broker.lasting("old", 4), broker.client()
    old.send(publish_packet("a", b"seven", qos=2, packet_id=7, version=4))
    old.expect(PUBREC)
    disk.fill()
    one = b"one" + os.urandom(2 * BLOCK)
    old.send(publish_packet("a", one, qos=2, packet_id=1, version=4) + ack_packet(PUBREL, 7))
    refused(other, b"x")
    disk.make_room()
    accepted(other, b"other", topic="b")
    broker.settle()
    broker.restart(how)
    old = broker.returning("old", 4)
    old.send(publish_packet("a", one, qos=2, packet_id=1, dup=True, version=4))
    assert old.expect(PUBREC).packet_id == 1
    assert broker.logged("a") == [b"seven", one]


def test_a_disk_filled_by_messages_keeps_all_acknowledged_ones(disk: SmallDisk, broker: Broker) -> None:
    """Messages are accepted until the disk is full."""
    publisher = broker.client()
    kept: list[bytes] = []
    disk.fill(leave=3_000_000)
    for size in (100_000, 9_000, 700, 10):
        for number in range(1_000):
            payload = b"%d:%d" % (size, number) + os.urandom(size)
            answer = publisher.publish("a", payload, qos=1 + number % 2)
            assert answer is not None
            if answer.reason >= 0x80:
                break
            kept.append(payload)
    assert len(kept) > 20
    assert broker.logged("a") == kept
    disk.make_room()
    for number in range(20):
        kept.append(b"%d" % number + os.urandom(50_000))
        accepted(publisher, kept[-1])
    assert broker.logged("a") == kept
    broker.restart("kill")
    assert broker.logged("a") == kept
    accepted(broker.client(), b"end")
    assert broker.logged("a") == [*kept, b"end"]


def test_a_long_time_without_room_leaks_nothing(disk: SmallDisk, broker: Broker) -> None:
    publisher = broker.client()
    accepted(publisher, b"before")
    disk.fill()
    refused(publisher, b"x")
    files, names = broker.open_files(), len(list((broker.data / "streams" / "default").iterdir()))
    for _ in range(300):
        refused(publisher, b"x")
    assert broker.open_files() <= files + 5
    assert len(list((broker.data / "streams" / "default").iterdir())) <= names + 5
    disk.make_room()
    accepted(publisher, b"after")
    broker.restart("kill")
    assert broker.logged("a") == [b"before", b"after"]


def test_persistent_sessions_are_not_acknowledged_without_room(disk: SmallDisk, broker: Broker) -> None:
    """CONNACK of a persistent session is sent when the session is on disk."""
    publisher = broker.client()
    accepted(publisher, b"before")
    disk.fill()
    refused(publisher, b"x")
    names = [f"client-{number}-" + "x" * 3_000 for number in range(20)]
    clients = [broker.wire() for _ in names]
    for client, name in zip(clients, names, strict=True):
        client.send(connect_packet(name, clean=False, session_expiry_interval=LONG))
        refused(publisher, b"x")
    refused(publisher, b"x")
    let_pass(1.5, "the broker tries again, as it does every second")
    promised = []
    for client, name in zip(clients, names, strict=True):
        try:
            client.expect(CONNACK, 0.01)
            promised.append(name)
        except TimeoutError:
            pass
    broker.kill()
    disk.make_room()
    broker.start()
    for name in promised:
        broker.returning(name)
    assert len(promised) < len(names), "the disk was not full"


def test_waiting_sessions_are_acknowledged_once_there_is_room(disk: SmallDisk, broker: Broker) -> None:
    publisher = broker.client()
    disk.fill()
    refused(publisher, b"x")
    clients = [broker.wire() for _ in range(20)]
    for number, client in enumerate(clients):
        client.send(connect_packet(f"{number}" * 1_000, clean=False, session_expiry_interval=LONG))
    refused(publisher, b"x")
    disk.make_room()
    for client in clients:
        client.expect(CONNACK, PATIENCE)
    for client in clients:
        client.subscribe("a", qos=2)
    accepted(publisher, b"hello", 2)
    for client in clients:
        assert client.receive().payload == b"hello"
    broker.restart("kill")
    for number in range(20):
        broker.returning(f"{number}" * 1_000)


def test_subscribers_with_sessions_continue(disk: SmallDisk, broker: Broker) -> None:
    """Earlier messages are delivered and acknowledged while the disk is full."""
    names = ("level-1", "level-2")
    for level, name in enumerate(names, 1):
        broker.lasting(name).subscribe("a", qos=level)
    broker.close_clients()
    publisher = broker.client()
    payloads = [b"%d" % number for number in range(200)]
    for payload in payloads:
        accepted(publisher, payload, 2)
    client = broker.returning(names[0])
    disk.fill()
    refused(publisher, b"x")
    assert [client.receive().payload for _ in payloads] == payloads
    disk.make_room()
    accepted(publisher, b"end", 2)
    client = broker.returning(names[1])
    for payload in (*payloads, b"end"):
        message = client.wait_for(PUBLISH)
        client.acknowledge(message)
        assert message.payload == payload


def test_a_broker_starts_on_a_full_disk_or_reports_why_not(disk: SmallDisk, broker: Broker) -> None:
    publisher = broker.client()
    accepted(publisher, b"before")
    publisher.publish("kept", b"x", qos=1, retain=True)
    broker.lasting("ann").subscribe("a", qos=1)
    disk.fill()
    refused(publisher, b"x")
    broker.kill()
    disk.fill()
    try:
        broker.start()
    except RuntimeError as error:
        assert "No space left" in str(error) or "full" in str(error), error  # noqa: PT017
        assert "free some space" in str(error)  # noqa: PT017
        assert "Traceback" not in str(error)  # noqa: PT017
    else:
        refused(broker.client(), b"x")
        broker.kill()
    disk.make_room()
    broker.start()
    client = broker.returning("ann")
    accepted(broker.client(), b"after")
    assert client.receive().payload == b"after"
    assert broker.logged("a") == [b"before", b"after"]
    late = broker.client()
    late.subscribe("kept")
    assert late.receive().payload == b"x"


def test_messages_acknowledged_before_the_disk_was_full_reach_everyone(
    disk: SmallDisk, broker: Broker
) -> None:
    """They reach a disconnected session, a consumer and a replay, also if a tail cannot be folded.

    The tail was allocated when there was room; the segment cannot take its rows.
    """
    away = broker.lasting("away")
    away.subscribe("a", qos=1)
    away.close()
    publisher = broker.client("publisher")
    accepted(publisher, b"first")
    broker.settle()
    disk.fill()
    kept = [b"first"]
    for number in range(180):
        payload = b"%d" % number + bytes(1_500)
        answer = publisher.publish("a", payload, qos=1)
        assert answer is not None
        if answer.reason < 0x80:
            kept.append(payload)
    assert 60 < len(kept) < 180
    disk.make_room()
    away = broker.returning("away")
    assert [away.receive(PATIENCE).payload for _ in kept] == kept
    past = broker.client("past")
    past.subscribe("a", qos=1, user_property=[("pyrite-from", "earliest")])
    assert [past.receive(PATIENCE).payload for _ in kept] == kept
    past.publish("$pyrite/consumers/c/create", qos=0, response_topic="answers")
    assert past.receive(PATIENCE).topic == "answers"  # messages may be sent before the consumer is durable
    past.publish("$pyrite/consumers/c/fetch", b'{"count": 9999}', qos=0, response_topic="answers")
    fetched = [past.receive(PATIENCE) for _ in kept]
    assert [message.payload for message in fetched] == kept
    assert past.receive(PATIENCE).properties["user_property"] == [("pyrite-count", str(len(kept)))]
    assert broker.logged("a") == kept
    assert verify(broker.data) == []
