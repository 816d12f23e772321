"""QoS, redelivery and flow control (4.3, 4.4, 4.9)."""

from __future__ import annotations

import pytest

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import Ack, Disconnect, Publish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V5, V311, Client, Core

PUBACK, PUBREC, PUBREL, PUBCOMP = fields.PUBACK, fields.PUBREC, fields.PUBREL, fields.PUBCOMP
BOTH_VERSIONS = pytest.mark.parametrize("version", [V5, V311])


def persistent(core: Core, client_id: str, version: int = V5, **wishes: int) -> Client:
    """Connect with a session that lasts."""
    if version == V5:
        wishes = {"session_expiry": 1000, **wishes}
    return core.connect(client_id, version, clean_start=False, **wishes)


@BOTH_VERSIONS
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_delivery_uses_the_lower_of_published_and_granted_qos(
    core: Core, version: int, published: int, granted: int
) -> None:
    """[MQTT-3.8.4-8]"""
    reader = core.connect("reader", version)
    assert reader.subscribe("a", qos=granted) == [granted]
    core.connect("writer", version).publish("a", b"x", qos=published)
    message = reader.only(Publish)
    assert (message.topic, message.payload, message.qos) == (b"a", b"x", min(published, granted))
    assert bool(message.packet_id) is bool(message.qos)


@BOTH_VERSIONS
def test_a_qos_1_message_is_acknowledged(core: Core, version: int) -> None:
    """[MQTT-4.3.2-4]"""
    core.connect("reader").subscribe("a")
    writer = core.connect("writer", version)
    writer.publish("a", b"x", qos=1, packet_id=7)
    assert writer.only(Ack) == Ack(PUBACK, 7)


def test_a_message_without_subscribers_is_acknowledged_with_that_reason(core: Core) -> None:
    writer = core.connect("writer")
    writer.publish("a", b"x", qos=1, packet_id=7)
    assert writer.only(Ack) == Ack(PUBACK, 7, Reason.NO_MATCHING_SUBSCRIBERS)
    writer.publish("a", b"x", qos=2, packet_id=8)
    assert writer.only(Ack) == Ack(PUBREC, 8, Reason.NO_MATCHING_SUBSCRIBERS)


@BOTH_VERSIONS
def test_a_qos_2_message_is_accepted_once_until_pubrel(core: Core, version: int) -> None:
    """[MQTT-4.3.3-10], [MQTT-4.3.3-11], [MQTT-4.3.3-12]"""
    reader = core.connect("reader")
    reader.subscribe("a")
    writer = core.connect("writer", version)
    writer.publish("a", b"x", qos=2, packet_id=7)
    assert writer.only(Ack) == Ack(PUBREC, 7)
    writer.publish("a", b"x", qos=2, packet_id=7, dup=True)
    assert writer.only(Ack) == Ack(PUBREC, 7)
    assert reader.payloads() == [b"x"]
    writer.ack(PUBREL, 7)
    assert writer.only(Ack) == Ack(PUBCOMP, 7)
    writer.publish("a", b"y", qos=2, packet_id=7)
    assert reader.payloads() == [b"y"]


@BOTH_VERSIONS
def test_a_qos_2_message_is_accepted_once_across_connections(core: Core, version: int) -> None:
    reader = core.connect("reader")
    reader.subscribe("a")
    writer = persistent(core, "writer", version)
    writer.publish("a", b"x", qos=2, packet_id=7)
    writer.drop()
    writer = persistent(core, "writer", version)
    writer.publish("a", b"x", qos=2, packet_id=7, dup=True)
    assert writer.only(Ack) == Ack(PUBREC, 7)
    assert reader.payloads() == [b"x"]


def test_pubrel_with_an_unknown_packet_id_is_answered_with_that_reason(core: Core) -> None:
    client = core.connect("c")
    client.ack(PUBREL, 9)
    assert client.only(Ack) == Ack(PUBCOMP, 9, Reason.PACKET_IDENTIFIER_NOT_FOUND)
    old = core.connect("old", V311)
    old.ack(PUBREL, 9)
    assert old.only(Ack) == Ack(PUBCOMP, 9)


@BOTH_VERSIONS
def test_a_qos_2_delivery_takes_four_packets(core: Core, version: int) -> None:
    """[MQTT-4.3.3-2] to [MQTT-4.3.3-5]"""
    reader = core.connect("reader", version)
    reader.subscribe("a", qos=2)
    core.connect("writer").publish("a", b"x", qos=2)
    message = reader.only(Publish)
    reader.ack(PUBREC, message.packet_id)
    assert reader.only(Ack) == Ack(PUBREL, message.packet_id)
    reader.ack(PUBREC, message.packet_id)
    assert reader.only(Ack) == Ack(PUBREL, message.packet_id)
    reader.ack(PUBCOMP, message.packet_id)
    assert reader.received() == []
    assert core.broker.sessions.by_id["reader"].inflight_messages == 0


def test_pubrec_with_an_unknown_packet_id_is_answered_with_that_reason(core: Core) -> None:
    client = core.connect("c")
    client.ack(PUBREC, 9)
    assert client.only(Ack) == Ack(PUBREL, 9, Reason.PACKET_IDENTIFIER_NOT_FOUND)


def test_pubrec_with_a_failure_ends_the_delivery(core: Core) -> None:
    """4.3.3: after a PUBREC with a code of 0x80 or more, the packet identifier is free."""
    reader = persistent(core, "reader")
    reader.subscribe("a", qos=2)
    core.connect("writer").publish("a", b"x", qos=2)
    reader.ack(PUBREC, reader.only(Publish).packet_id, reason=0x97)
    assert reader.received() == []
    assert core.broker.sessions.by_id["reader"].inflight_messages == 0


@pytest.mark.parametrize(("granted", "kind"), [(1, PUBREC), (2, PUBACK), (2, PUBCOMP)])
def test_an_acknowledgement_of_the_wrong_kind_is_a_protocol_error(
    core: Core, granted: int, kind: int
) -> None:
    reader = core.connect("reader")
    reader.subscribe("a", qos=granted)
    core.connect("writer").publish("a", b"x", qos=2)
    reader.ack(kind, reader.only(Publish).packet_id)
    assert reader.only(Disconnect).reason == Reason.PROTOCOL_ERROR
    assert reader.closed


@BOTH_VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_messages_are_redelivered_in_order_with_dup(
    core: Core, version: int, qos: int
) -> None:
    """[MQTT-4.4.0-1], [MQTT-3.3.1-1]"""
    reader = persistent(core, "reader", version)
    reader.subscribe("a/#", qos=qos)
    writer = core.connect("writer")
    for number in range(5):
        writer.publish(f"a/{number % 2}", b"%d" % number, qos=qos)
    first = reader.messages()
    assert not any(message.dup for message in first)
    reader.finish([first[1]])
    reader.drop()
    writer.publish("a/0", b"5", qos=qos)

    reader = persistent(core, "reader", version)
    again = reader.messages()
    assert [message.payload for message in again] == [b"0", b"2", b"3", b"4", b"5"]
    assert [message.dup for message in again] == [True] * 4 + [False]
    old_ids = [message.packet_id for message in first if message.payload != b"1"]
    assert [message.packet_id for message in again[:4]] == old_ids
    assert len({message.packet_id for message in again}) == 5


@BOTH_VERSIONS
def test_an_uncompleted_pubrel_is_sent_again(core: Core, version: int) -> None:
    """[MQTT-4.4.0-1]: PUBREL is repeated, the message is not."""
    reader = persistent(core, "reader", version)
    reader.subscribe("a", qos=2)
    core.connect("writer").publish("a", b"x", qos=2)
    packet_id = reader.only(Publish).packet_id
    reader.ack(PUBREC, packet_id)
    reader.drop()
    reader = persistent(core, "reader", version)
    assert reader.only(Ack) == Ack(PUBREL, packet_id)
    reader.ack(PUBCOMP, packet_id)
    assert core.broker.sessions.by_id["reader"].inflight_messages == 0


def test_messages_are_not_redelivered_on_the_same_connection(core: Core) -> None:
    """[MQTT-4.4.0-1]: only on reconnect."""
    reader = persistent(core, "reader")
    reader.subscribe("a", qos=1)
    core.connect("writer").publish("a", b"x", qos=1)
    assert len(reader.messages()) == 1
    core.tick(10_000)
    assert reader.messages() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_the_receive_maximum_limits_messages_in_flight(core: Core, qos: int) -> None:
    """[MQTT-3.3.4-9]"""
    reader = core.connect("reader", receive_maximum=3)
    reader.subscribe("a", qos=qos)
    writer = core.connect("writer")
    writer.send(*(Publish(b"a", b"%d" % n, qos, packet_id=n + 1) for n in range(10)))
    taken: list[bytes] = []
    while messages := reader.messages():
        assert len(messages) <= 3
        taken += [message.payload for message in messages]
        reader.finish(messages)
    assert taken == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize(("wanted", "granted"), [(None, 3), (2, 2), (100, 3)])
def test_the_broker_limits_messages_in_flight(wanted: int | None, granted: int) -> None:
    core = Core(Limits(max_inflight=3))
    reader = core.connect("reader", **({} if wanted is None else {"receive_maximum": wanted}))
    reader.subscribe("a", qos=1)
    writer = core.connect("writer")
    for number in range(7):
        writer.publish("a", b"%d" % number, qos=1)
    first = reader.messages()
    assert [one.payload for one in first] == [b"%d" % number for number in range(granted)]
    reader.ack(fields.PUBACK, first[0].packet_id)
    assert reader.payloads() == [b"%d" % granted]


def test_qos_0_is_delivered_while_the_window_is_full(core: Core) -> None:
    """4.9: packets other than PUBLISH with QoS 1 and 2 are not held back."""
    reader = core.connect("reader", receive_maximum=1)
    reader.subscribe("a", qos=1)
    writer = core.connect("writer")
    for payload, qos in ((b"1", 1), (b"2", 1), (b"3", 0)):
        writer.publish("a", payload, qos=qos)
    assert reader.payloads() == [b"1", b"3"]
    assert reader.ping()


def test_the_window_opens_when_a_qos_2_delivery_is_complete(core: Core) -> None:
    """4.9: the send quota grows with PUBCOMP, not with PUBREC."""
    reader = core.connect("reader", receive_maximum=1)
    reader.subscribe("a", qos=2)
    writer = core.connect("writer")
    writer.publish("a", b"1", qos=2)
    writer.publish("a", b"2", qos=2)
    packet_id = reader.only(Publish).packet_id
    reader.ack(PUBREC, packet_id)
    assert reader.only(Ack) == Ack(PUBREL, packet_id)
    reader.ack(PUBCOMP, packet_id)
    assert reader.payloads() == [b"2"]


def test_redelivery_respects_the_window_of_the_new_connection(core: Core) -> None:
    reader = persistent(core, "reader")
    reader.subscribe("a", qos=1)
    writer = core.connect("writer")
    for number in range(5):
        writer.publish("a", b"%d" % number, qos=1)
    reader.drop()
    reader = persistent(core, "reader", receive_maximum=2)
    taken: list[bytes] = []
    while messages := reader.messages():
        assert len(messages) <= 2
        taken += [message.payload for message in messages]
        reader.finish(messages)
    assert taken == [b"%d" % n for n in range(5)]


def test_acknowledgements_may_be_out_of_order(core: Core) -> None:
    reader = core.connect("reader", receive_maximum=5)
    reader.subscribe("a", qos=1)
    writer = core.connect("writer")
    in_flight: set[int] = set()
    taken: list[bytes] = []
    for number in range(50):
        writer.publish("a", b"%02d" % number, qos=1)
        for message in reader.messages():
            assert message.packet_id not in in_flight
            in_flight.add(message.packet_id)
            taken.append(message.payload)
        if len(in_flight) == 5:
            for packet_id in sorted(in_flight)[-4:]:
                in_flight.discard(packet_id)
                reader.ack(PUBACK, packet_id)
    assert taken == [b"%02d" % n for n in range(len(taken))]
    assert len(taken) > 40


def test_packet_ids_wrap_around_and_skip_those_in_use() -> None:
    core = Core(Limits(max_inflight=1000))
    reader = core.connect("reader")
    reader.subscribe("a", qos=1)
    writer = core.connect("writer")
    writer.publish("a", b"first", qos=1)
    kept = reader.only(Publish).packet_id
    for _ in range(70):
        writer.send(*(Publish(b"a", b"x", 1, packet_id=n + 1) for n in range(999)))
        messages = reader.messages()
        assert len(messages) == 999
        ids = [message.packet_id for message in messages]
        assert kept not in ids
        assert 0 not in ids
        assert len(set(ids)) == 999
        reader.ack(PUBACK, *ids)
        writer.received()


def test_too_many_unreleased_qos_2_messages_end_the_connection() -> None:
    """[MQTT-3.3.4-9]: the receive maximum that the broker announced."""
    core = Core(Limits(receive_maximum=3))
    writer = core.connect("writer")
    assert writer.connack is not None
    assert writer.connack.properties["receive_maximum"] == 3
    for number in range(1, 4):
        writer.publish("a", b"x", qos=2, packet_id=number)
    assert not writer.closed
    writer.received()
    writer.publish("a", b"x", qos=2, packet_id=4)
    assert writer.only(Disconnect).reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_a_message_beyond_the_receive_maximum_does_not_count_as_received() -> None:
    """[MQTT-4.3.3-10]: a packet id counts as received only if its message was published."""
    core = Core(Limits(receive_maximum=3))
    reader = core.connect("reader")
    reader.subscribe("a")
    writer = persistent(core, "writer")
    writer.send(*(Publish(b"a", b"%d" % n, 2, packet_id=n) for n in range(1, 5)))
    assert writer.closed
    writer.drop()
    writer = persistent(core, "writer")
    for number in range(1, 5):
        writer.publish("a", b"%d" % number, qos=2, packet_id=number, dup=True)
        writer.ack(PUBREL, number)
    assert sorted(reader.payloads()) == [b"1", b"2", b"3", b"4"]


def test_a_message_too_large_for_the_client_is_skipped(core: Core) -> None:
    """[MQTT-3.1.2-24], [MQTT-3.1.2-25]: it counts as sent, and the next one is delivered."""
    reader = core.connect("reader", maximum_packet_size=50)
    reader.subscribe("a", qos=1)
    writer = core.connect("writer")
    writer.publish("a", b"x" * 100, qos=1)
    writer.publish("a", b"y", qos=1)
    writer.publish("a", b"x" * 100, qos=0)
    assert reader.payloads() == [b"y"]
    assert core.broker.figures.messages_dropped == 2
    assert core.broker.sessions.by_id["reader"].inflight_messages == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_a_topic_alias_does_not_make_a_message_too_large(core: Core, qos: int) -> None:
    """[MQTT-3.1.2-25]: a message that fits without an alias is delivered."""
    size = len(Client(core).encoded(Publish(b"a/b", b"x" * 20, qos, packet_id=qos)))
    reader = core.connect("reader", maximum_packet_size=size, topic_alias_maximum=10)
    reader.subscribe("a/b", qos=qos)
    core.connect("writer").publish("a/b", b"x" * 20, qos=qos)
    assert reader.payloads() == [b"x" * 20]


def test_dup_is_not_forwarded(core: Core) -> None:
    """[MQTT-3.3.1-3]"""
    for version in (V5, V311):
        reader = core.connect("reader", version)
        reader.subscribe("a", qos=1)
        core.connect("writer", version).publish("a", b"x", qos=1, dup=True)
        assert reader.only(Publish).dup is False


def test_messages_wait_for_a_disconnected_session(core: Core) -> None:
    reader = persistent(core, "reader")
    reader.subscribe("a", qos=2)
    reader.drop()
    writer = core.connect("writer")
    for qos in (0, 1, 2):
        writer.publish("a", b"%d" % qos, qos=qos)
    reader = persistent(core, "reader")
    assert reader.connack is not None
    assert reader.connack.session_present
    messages = reader.messages()
    assert [(message.payload, message.qos) for message in messages] == [(b"1", 1), (b"2", 2)]
    assert core.broker.figures.messages_stored == 0


def test_a_5_0_session_resumes_with_3_1_1(core: Core) -> None:
    reader = persistent(core, "reader", V5)
    reader.subscribe("a", qos=1, subscription_identifier=5)
    writer = core.connect("writer")
    writer.publish("a", b"1", qos=1, content_type="x")
    reader.drop()
    writer.publish("a", b"2", qos=1, content_type="x")
    reader = persistent(core, "reader", V311)
    assert reader.payloads() == [b"1", b"2"]
    reader.drop()
    reader = persistent(core, "reader", V5)
    again = reader.messages()
    assert [message.payload for message in again] == [b"1", b"2"]
    assert [message.properties for message in again] == [
        {"content_type": "x", "subscription_identifier": [5]}
    ] * 2


def test_a_session_queues_a_bounded_number_of_messages_and_keeps_the_oldest() -> None:
    core = Core(Limits(max_queued_messages=3))
    reader = persistent(core, "reader")
    reader.subscribe("a", qos=1)
    reader.drop()
    writer = core.connect("writer")
    for number in range(5):
        writer.publish("a", b"%d" % number, qos=1)
    assert core.broker.figures.messages_dropped == 2
    assert core.broker.figures.messages_stored == 3
    assert persistent(core, "reader").payloads() == [b"0", b"1", b"2"]


def test_a_session_queues_a_bounded_number_of_bytes() -> None:
    core = Core(Limits(max_queued_bytes=10_000))
    reader = persistent(core, "reader")
    reader.subscribe("a/#", qos=1)
    reader.drop()
    writer = core.connect("writer")
    writer.send(*(Publish(b"a/%d" % (n % 3), b"x" * 1_000, 1, packet_id=n + 1) for n in range(30)))
    count = len(persistent(core, "reader").payloads())
    assert 8 <= count <= 10
    assert core.broker.figures.messages_dropped == 30 - count


def test_a_run_is_cut_where_the_session_queue_is_full() -> None:
    core = Core(Limits(max_queued_messages=3))
    reader = persistent(core, "reader")
    reader.subscribe("#", qos=1)
    reader.drop()
    core.connect("writer").send(*(Publish(b"a", b"%d" % n, 1, packet_id=n + 1) for n in range(5)))
    assert persistent(core, "reader").payloads() == [b"0", b"1", b"2"]
    assert core.broker.figures.messages_dropped == 2
