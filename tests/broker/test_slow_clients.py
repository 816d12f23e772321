"""Clients that do not read: memory is bounded, and no QoS 1 or 2 message is lost."""

from __future__ import annotations

import tracemalloc

import pytest

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import Ping, Publish
from tests.support.core import V5, V311, Client, Core

BOUND = 10_000


@pytest.fixture
def core() -> Core:
    return Core(Limits(max_waiting_bytes=BOUND, max_packet_size=5_000))


def slow_reader(core: Core, qos: int, version: int = V5) -> Client:
    reader = core.connect("reader", version)
    reader.subscribe("a/#", qos=qos)
    reader.transport.slow = True
    return reader


@pytest.mark.parametrize("version", [V5, V311])
def test_qos_0_beyond_the_bound_is_dropped_and_counted(core: Core, version: int) -> None:
    reader = slow_reader(core, 0, version)
    other = core.connect("other")
    other.subscribe("a/#")
    writer = core.connect("writer")
    for _ in range(100):
        writer.publish("a/b", b"x" * 1_000)
    arrived = len(reader.messages())
    assert 5 <= arrived <= 10
    assert core.broker.figures.messages_dropped == 100 - arrived
    assert reader.transport.waiting <= BOUND
    assert len(other.messages()) == 100
    reader.take_all()
    writer.publish("a/b", b"again")
    assert reader.payloads() == [b"again"]


@pytest.mark.parametrize("version", [V5, V311])
def test_qos_0_in_runs_of_alternating_topics_is_bounded(core: Core, version: int) -> None:
    reader = slow_reader(core, 0, version)
    writer = core.connect("writer", version)
    for _ in range(30):
        writer.send(*(Publish(b"a/%d" % (n % 3), b"x" * (400 + n % 7)) for n in range(10)))
    assert reader.transport.waiting <= BOUND + 5_000
    arrived = len(reader.messages())
    assert arrived + core.broker.figures.messages_dropped == 300


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("together", [True, False])
def test_qos_1_and_2_wait_and_arrive_in_order_when_the_client_reads_again(
    core: Core, qos: int, together: bool
) -> None:
    reader = slow_reader(core, qos)
    writer = core.connect("writer")
    packets = [
        Publish(b"a/%d" % (n % 2), b"%03d" % n + b"x" * 1_000, qos, packet_id=n + 1) for n in range(100)
    ]
    if together:
        for start in range(0, 100, 10):
            writer.send(*packets[start : start + 10])
    else:
        for packet in packets:
            writer.send(packet)
    assert reader.transport.waiting < 2 * BOUND + 5_000
    assert core.broker.figures.messages_dropped == 0
    taken: list[bytes] = []
    for _ in range(100):
        reader.take_all()
        messages = reader.finish()
        taken += [message.payload[:3] for message in messages]
    assert taken == [b"%03d" % n for n in range(100)]
    assert core.broker.figures.messages_stored == 0


def test_messages_for_a_slow_client_take_bounded_memory() -> None:
    core = Core(Limits(max_waiting_bytes=BOUND, max_queued_messages=100, max_queued_bytes=200_000))
    readers = []
    for number in range(5):
        reader = core.connect(f"reader{number}")
        reader.subscribe("a", qos=number % 2)
        reader.transport.slow = True
        readers.append(reader)
    writer = core.connect("writer")
    tracemalloc.start()
    try:
        for number in range(1_000):
            writer.publish("a", b"x" * 10_000, qos=1, packet_id=number + 1)
            writer.received()
            for reader in readers:
                reader.transport.written.clear()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_500_000  # of ten million bytes published
    assert core.broker.figures.messages_dropped > 900 * 5


def test_a_message_that_waited_for_the_output_buffer_is_sent_with_it(core: Core) -> None:
    """The transport accepts everything at once, so it never reports that it has drained."""
    reader = core.connect("reader")
    reader.subscribe("a", qos=1)
    reader.feed(reader.encoded(*([Ping(fields.PINGREQ)] * BOUND)))  # the answers fill the outbox
    writer = core.connect("writer")
    writer.feed(writer.encoded(Publish(b"a", b"x", 1, packet_id=1)))
    core.broker.output.flush()
    reader.received()
    writer.publish("a", b"y", qos=1)
    core.broker.output.flush()
    assert core.broker.figures.messages_stored == 0


def test_a_client_that_does_not_read_its_acknowledgements_is_closed(core: Core) -> None:
    client = core.connect("c")
    client.transport.slow = True
    for _ in range(30):
        client.send(*([Ping(fields.PINGREQ)] * 1_000))
    assert client.transport.aborted
    assert "c" not in core.broker.sessions.by_id
    assert core.broker.figures.connections == 0


def test_a_closed_client_gets_a_moment_to_read_what_was_sent(core: Core) -> None:
    client = core.connect("c")
    client.transport.slow = True
    client.send(b"\x00\x00")
    assert client.closed
    assert not client.transport.aborted
    core.tick(5)
    assert client.transport.aborted
