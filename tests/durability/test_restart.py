"""The state of clients survives a shutdown and a crash."""

from __future__ import annotations

import time

import pytest

from tests.conformance.client import Client
from tests.conformance.reader import Packet
from tests.conformance.wire import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    ack_packet,
    connect_packet,
    options,
    publish_packet,
    subscribe_packet,
)
from tests.support.waiting import let_pass

from .broker import Broker, receive_until

pytestmark = pytest.mark.parametrize("how", ["stop", "kill"])


def nothing_came(client: Client) -> None:
    """Require that nothing precedes the answer to a ping; waiting messages would."""
    client.ping()
    assert not client._inbox, list(client._inbox)


# Sessions


@pytest.mark.parametrize("version", [5, 4])
def test_a_persistent_session_survives(broker: Broker, how: str, version: int) -> None:
    broker.lasting("ann", version).subscribe("a/#", qos=1)
    broker.restart(how)
    client = broker.returning("ann", version)
    broker.client("bob").publish("a/b", b"hello", qos=1)
    assert client.receive().payload == b"hello"


def test_a_session_without_expiry_interval_is_gone(broker: Broker, how: str) -> None:
    broker.client("ann").subscribe("a/#", qos=1)
    broker.client("old", 4, clean=True).subscribe("a/#", qos=1)
    broker.restart(how)
    for version, name in ((5, "ann"), (4, "old")):
        connack = broker.lasting(name, version).connack
        assert connack is not None
        assert not connack.session_present


def test_a_session_whose_expiry_was_set_to_0_is_gone(broker: Broker, how: str) -> None:
    """A client that reconnects with an expiry of 0 ends its session with the connection."""
    broker.lasting("ann").subscribe("a", qos=1)
    broker.returning("ann", session_expiry_interval=0)
    broker.settle()
    broker.restart(how)
    connack = broker.lasting("ann").connack
    assert connack is not None
    assert not connack.session_present


def test_clean_start_removes_everything(broker: Broker, how: str) -> None:
    publisher = broker.lasting("bob")
    client = broker.lasting("ann")
    client.subscribe("a", qos=2)
    client.send(publish_packet("b", b"half", qos=2, packet_id=7))
    client.expect(PUBREC)
    publisher.publish("a", b"in flight", qos=2)
    client.expect(PUBLISH)
    client.disconnect()
    publisher.publish("a", b"waits", qos=1)
    broker.restart(how)

    client = broker.client("ann", clean=True, session_expiry_interval=3600)
    assert client.connack is not None
    assert not client.connack.session_present
    nothing_came(client)
    broker.restart(how)

    client = broker.returning("ann")  # the session that began anew
    nothing_came(client)
    broker.lasting("bob").publish("a", b"to no one", qos=1)
    nothing_came(client)
    client.send(ack_packet(PUBREL, 7))
    assert client.expect(PUBCOMP).reason == 0x92
    assert broker.logged("b") == [b"half"]


def test_clean_start_is_not_undone_by_an_immediate_crash(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    client.subscribe("a", qos=1)
    broker.client("ann", clean=True)
    broker.restart(how)
    connack = broker.lasting("ann").connack
    assert connack is not None
    assert not connack.session_present


def test_session_expiry_continues_while_the_broker_is_down(broker: Broker, how: str) -> None:
    broker.lasting("short", session_expiry_interval=1).disconnect()
    broker.lasting("long", session_expiry_interval=3600).disconnect()
    broker.lasting("longer than it said", session_expiry_interval=1).disconnect(0, session_expiry_interval=60)
    broker.lasting("ended").disconnect(0, session_expiry_interval=0)
    broker.settle()
    broker.end(how)
    let_pass(1.2, "what was given a second expires")
    broker.start()
    for name in ("short", "ended"):
        connack = broker.lasting(name).connack
        assert connack is not None
        assert not connack.session_present, name
    broker.returning("long")
    broker.returning("longer than it said")


def test_the_rest_of_the_session_expiry_is_counted_after_a_restart(broker: Broker, how: str) -> None:
    broker.lasting("ann", session_expiry_interval=1).disconnect()
    broker.settle()
    broker.restart(how)
    let_pass(1.1, "the session expires")
    connack = broker.lasting("ann").connack
    assert connack is not None
    assert not connack.session_present


def test_session_expiry_restarts_with_each_connection(broker: Broker, how: str) -> None:
    """A session connected when the broker ends was not disconnected before."""
    broker.lasting("ann", session_expiry_interval=2).disconnect()
    broker.returning("ann", session_expiry_interval=2)
    let_pass(2.2, "the session is connected for longer than its expiry")
    broker.restart(how)
    broker.returning("ann", session_expiry_interval=2)


def test_a_taken_over_session_survives(broker: Broker, how: str) -> None:
    first = broker.lasting("ann")
    first.subscribe("a", qos=1)
    broker.returning("ann")
    assert first.expect_disconnect(0x8E)
    broker.restart(how)
    client = broker.returning("ann")
    broker.client().publish("a", b"once", qos=1)
    assert client.receive().payload == b"once"
    nothing_came(client)


# Subscriptions


def test_subscriptions_keep_their_options(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    client.subscribe("none/#", qos=0, subscription_identifier=1)
    client.subscribe("own/#", qos=1, no_local=True, subscription_identifier=2)
    client.subscribe("kept/#", qos=2, retain_as_published=True, subscription_identifier=268_435_455)
    client.subscribe("plain/+/x", qos=2)
    client.subscribe("gone", qos=1)
    client.unsubscribe("gone")
    broker.restart(how)
    client, other = broker.returning("ann"), broker.client("bob")

    def publish(sender: Client, topic: str, **values: object) -> None:
        sender.publish(topic, topic.encode(), **values)  # type: ignore[arg-type]

    for sender in (client, other):
        publish(sender, "own/a", qos=1)
        publish(sender, "none/a", qos=2)
        publish(sender, "kept/a", qos=2, retain=True)
        publish(sender, "plain/a/x", qos=2, retain=True)
        publish(sender, "gone", qos=1)
    fence(other, client)
    found = [
        (one.topic, one.qos, one.retain, one.properties.get("subscription_identifier"))
        for one in received(client)
    ]
    theirs = [
        ("none/a", 0, False, [1]),
        ("kept/a", 2, True, [268_435_455]),
        ("plain/a/x", 2, False, None),
    ]
    assert found == [*theirs, ("own/a", 1, False, [2]), *theirs]


def fence(publisher: Client, client: Client) -> None:
    """Publish a last message with QoS 1 on a topic of its own."""
    client.subscribe("fence", qos=2, retain_handling=2)
    publisher.publish("fence", b"", qos=2)


def received(client: Client) -> list[Packet]:
    """Return the messages before the fence, with their exchanges completed."""
    messages: list[Packet] = []
    for _ in range(10_000):
        message = client.wait_for(PUBLISH)
        client.acknowledge(message)
        if message.topic == "fence":
            return messages
        messages.append(message)
    raise AssertionError("there is no end")


def test_overlapping_subscriptions_still_deliver_one_copy(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    client.subscribe("a/#", qos=0, subscription_identifier=1)
    client.subscribe("a/+", qos=1, subscription_identifier=2)
    client.subscribe("a/b", qos=2, subscription_identifier=3)
    client.disconnect()
    broker.restart(how)
    broker.client().publish("a/b", b"one", qos=2)
    broker.restart(how)
    client = broker.returning("ann")
    message = client.receive()
    assert (message.qos, sorted(message.properties["subscription_identifier"])) == (2, [1, 2, 3])
    nothing_came(client)


def test_a_subscription_keeps_its_start(broker: Broker, how: str) -> None:
    """Messages before a subscription are not delivered to it, though the session is older."""
    publisher = broker.client("bob")
    client = broker.lasting("ann")
    publisher.publish("a", b"before", qos=1)
    client.subscribe("a", qos=1)
    publisher.publish("a", b"after", qos=1)
    broker.restart(how)
    client = broker.returning("ann")
    assert client.receive().payload == b"after"
    nothing_came(client)


def test_unsubscribing_survives(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    client.subscribe("a", "b", qos=1)
    client.unsubscribe("a")
    client.close()
    broker.restart(how)
    publisher = broker.client()
    publisher.publish("a", b"a", qos=1)
    publisher.publish("b", b"b", qos=1)
    client = broker.returning("ann")
    assert client.receive().payload == b"b"
    nothing_came(client)


def test_subscribing_again_loses_no_waiting_message(broker: Broker, how: str) -> None:
    """Many clients subscribe at every connect, whether their session is present or not."""
    broker.lasting("ann").subscribe("a", qos=1)
    broker.restart(how)
    publisher = broker.client()
    numbers = [b"%d" % number for number in range(1_000)]
    for payload in numbers:
        publisher.send(publish_packet("a", payload, qos=1, packet_id=int(payload) + 1))
    for _ in numbers:
        publisher.expect(PUBACK)
    broker.restart(how)
    client = broker.wire()
    again = subscribe_packet(1, [("a", options(1))])
    client.send(connect_packet("ann", clean=False, session_expiry_interval=3600, receive_maximum=10) + again)
    found = [message.payload for message in _messages(client, len(numbers))]
    assert found == numbers


def _messages(client: Client, count: int) -> list[Packet]:
    """Receive and acknowledge this many messages, ignoring other packets."""
    found = []
    for _ in range(count):
        message = client.wait_for(PUBLISH)
        client.acknowledge(message)
        found.append(message)
    return found


# Retained messages


def test_retained_messages_keep_their_properties(broker: Broker, how: str) -> None:
    values = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answers/here",
        "correlation_data": b"\0\xff\1",
        "user_property": [("key", "1"), ("key", "2"), ("grün", "ß")],
    }
    publisher = broker.client("bob")
    for qos in (0, 1, 2):
        publisher.publish(f"kept/{qos}", b"%d" % qos, qos=qos, retain=True, **values)
    publisher.publish("kept/binary", bytes(range(256)), qos=1, retain=True)
    publisher.publish("kept/empty", b"x", qos=1, retain=True)
    publisher.publish("kept/empty", b"", qos=1, retain=True)
    broker.settle()
    for _ in range(2):
        broker.restart(how)
        client = broker.client()
        client.subscribe("kept/#", qos=2)
        found = {message.topic: message for message in (client.receive() for _ in range(4))}
        nothing_came(client)
        for qos in (0, 1, 2):
            message = found[f"kept/{qos}"]
            assert (message.payload, message.qos, message.retain) == (b"%d" % qos, qos, True)
            assert message.properties == values
        assert found["kept/binary"].payload == bytes(range(256))
        assert not found["kept/binary"].properties


def test_an_acknowledged_retained_message_survives_an_immediate_crash(broker: Broker, how: str) -> None:
    publisher = broker.client("bob")
    for number in range(20):
        publisher.publish("kept", b"%d" % number, qos=1, retain=True)
    publisher.publish("dropped", b"x", qos=1, retain=True)
    publisher.publish("dropped", b"", qos=2, retain=True)
    broker.restart(how)
    client = broker.client()
    client.subscribe("kept", "dropped", qos=0)
    assert client.receive().payload == b"19"
    nothing_came(client)


def test_retained_messages_expire_while_the_broker_is_down(broker: Broker, how: str) -> None:
    publisher = broker.client()
    publisher.publish("kept/short", b"x", qos=1, retain=True, message_expiry_interval=1)
    publisher.publish("kept/long", b"x", qos=1, retain=True, message_expiry_interval=1000)
    publisher.publish("kept/for ever", b"x", qos=1, retain=True)
    start = time.time()
    broker.settle()
    broker.end(how)
    let_pass(1.2, "what was given a second expires")
    broker.start()
    client = broker.client()
    client.subscribe("kept/#", qos=1)
    found = {message.topic: message for message in (client.receive() for _ in range(2))}
    nothing_came(client)
    assert set(found) == {"kept/long", "kept/for ever"}
    left = found["kept/long"].properties["message_expiry_interval"]
    assert 1000 - (time.time() - start) - 1.5 <= left <= 999


def test_retained_messages_known_only_from_the_log_expire(broker: Broker, how: str) -> None:
    """As above, but the broker ends before it writes them to the state."""
    publisher = broker.client()
    publisher.publish("kept/short", b"x", qos=1, retain=True, message_expiry_interval=1)
    publisher.publish("kept/long", b"x", qos=1, retain=True, message_expiry_interval=1000)
    broker.end(how)
    let_pass(1.2, "what was given a second expires")
    broker.start()
    client = broker.client()
    client.subscribe("kept/#", qos=1)
    message = client.receive()
    assert message.topic == "kept/long"
    assert 900 < message.properties["message_expiry_interval"] <= 999
    nothing_came(client)


# QoS 1 to the client


def test_unacknowledged_messages_are_redelivered_under_their_packet_ids(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    client.subscribe("a", qos=1, subscription_identifier=5)
    publisher = broker.client()
    for number in range(10):
        publisher.publish("a", b"%d" % number, qos=1, content_type="n")
    first = [client.expect(PUBLISH) for _ in range(10)]
    for message in first[:3]:
        client.send(ack_packet(PUBACK, message.packet_id))
    client.send(ack_packet(PUBACK, first[6].packet_id))
    client.ping()
    broker.settle()
    for _ in range(2):
        broker.restart(how)
        client = broker.returning("ann")
        again = [client.expect(PUBLISH) for _ in range(6)]
        nothing_came(client)
        expected = [first[3], first[4], first[5], first[7], first[8], first[9]]
        assert [(one.packet_id, one.payload) for one in again] == [
            (one.packet_id, one.payload) for one in expected
        ]
        assert all(one.dup and one.qos == 1 for one in again)
        assert all(one.properties == first[0].properties for one in again)
        broker.settle()
    for message in again:
        client.send(ack_packet(PUBACK, message.packet_id))
    client.ping()
    broker.settle()
    broker.restart(how)
    nothing_came(broker.returning("ann"))


def test_unacknowledged_retained_messages_are_redelivered_as_retained(broker: Broker, how: str) -> None:
    publisher = broker.client()
    publisher.publish("kept", b"x", qos=1, retain=True)
    client = broker.lasting("ann")
    client.subscribe("kept", qos=1, subscription_identifier=3)
    first = client.expect(PUBLISH)
    assert first.retain
    broker.settle()
    broker.restart(how)
    again = broker.returning("ann").expect(PUBLISH)
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"x", True)
    assert again.properties == first.properties
    assert again.retain


def test_unacknowledged_shared_messages_are_redelivered(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    client.subscribe("$share/g/a", qos=1, subscription_identifier=9)
    broker.client().publish("a", b"x", qos=1)
    first = client.expect(PUBLISH)
    broker.settle()
    broker.restart(how)
    client = broker.returning("ann")
    again = client.expect(PUBLISH)
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"x", True)
    assert again.properties == first.properties
    nothing_came(client)


def test_messages_for_a_shared_subscription_without_members_wait(broker: Broker, how: str) -> None:
    """The first message of a shared subscription whose only member is disconnected."""
    client = broker.lasting("ann")
    client.subscribe("$share/g/a", qos=1)
    client.disconnect()
    broker.client().publish("a", b"x", qos=1)
    broker.restart(how)
    client = broker.returning("ann")
    assert client.receive().payload == b"x"
    nothing_came(client)


def test_a_member_that_never_returns_blocks_no_other(broker: Broker, how: str) -> None:
    ann = broker.lasting("ann", session_expiry_interval=2)
    ann.subscribe("$share/g/a", qos=1)
    broker.client().publish("a", b"x", qos=1)
    assert ann.expect(PUBLISH).payload == b"x"  # and leaves it unacknowledged
    bob = broker.lasting("bob")
    bob.subscribe("$share/g/a", qos=1)
    bob.close()
    broker.settle()
    broker.restart(how)
    bob = broker.returning("bob")
    assert bob.receive(10).payload == b"x"


# QoS 2 to the client


def test_qos_2_to_the_client_resumes_at_every_step(broker: Broker, how: str) -> None:
    """Four messages at different steps: sent, received, released, completed."""
    client = broker.lasting("ann")
    client.subscribe("a", qos=2)
    publisher = broker.client()
    for number in range(4):
        publisher.publish("a", b"%d" % number, qos=2)
    sent, got, released, finished = (client.expect(PUBLISH).packet_id for _ in range(4))
    for packet_id in (got, released, finished):
        client.send(ack_packet(PUBREC, packet_id))
    for packet_id in (got, released, finished):
        assert client.expect(PUBREL).packet_id == packet_id
    client.send(ack_packet(PUBCOMP, finished))
    client.ping()
    broker.settle()

    for _ in range(2):
        broker.restart(how)
        client = broker.returning("ann")
        packets = [client.read() for _ in range(3)]
        nothing_came(client)
        assert {(one.kind, one.packet_id) for one in packets} == {
            (PUBLISH, sent),
            (PUBREL, got),
            (PUBREL, released),
        }
        assert all(one.dup and one.payload == b"0" for one in packets if one.kind == PUBLISH)

    client.send(ack_packet(PUBCOMP, released))
    client.send(ack_packet(PUBREC, sent))
    assert client.expect(PUBREL).packet_id == sent
    broker.settle()
    broker.restart(how)
    client = broker.returning("ann")
    packets = [client.read() for _ in range(2)]
    assert {(one.kind, one.packet_id) for one in packets} == {(PUBREL, sent), (PUBREL, got)}
    for packet_id in (sent, got):
        client.send(ack_packet(PUBCOMP, packet_id))
    client.ping()
    broker.settle()
    broker.restart(how)
    nothing_came(broker.returning("ann"))


def test_the_packet_id_of_a_qos_2_message_is_durable_before_it_is_sent(broker: Broker, how: str) -> None:
    """After a crash right after delivery, it is redelivered under its packet id, so the client detects it."""
    client = broker.lasting("ann")
    client.subscribe("a", qos=2)
    broker.client().publish("a", b"x", qos=2)
    first = client.expect(PUBLISH)
    broker.restart(how)
    client = broker.returning("ann")
    again = client.expect(PUBLISH)
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"x", True)
    client.send(ack_packet(PUBREC, first.packet_id))
    assert client.expect(PUBREL).packet_id == first.packet_id
    broker.restart(how)
    client = broker.returning("ann")
    assert client.expect(PUBREL).packet_id == first.packet_id
    nothing_came(client)


def test_a_refused_message_is_not_redelivered(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    client.subscribe("a", qos=2)
    publisher = broker.client()
    publisher.publish("a", b"one", qos=1)
    publisher.publish("a", b"two", qos=2)
    client.send(ack_packet(PUBACK, client.expect(PUBLISH).packet_id, 0x80))
    client.send(ack_packet(PUBREC, client.expect(PUBLISH).packet_id, 0x80))
    client.ping()
    broker.settle()
    broker.restart(how)
    nothing_came(broker.returning("ann"))


def test_packet_ids_in_use_are_not_assigned_again(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    client.subscribe("a", qos=2)
    publisher = broker.client()
    for _ in range(5):
        publisher.publish("a", b"first", qos=2)
    ids = [client.expect(PUBLISH).packet_id for _ in range(5)]
    client.send(ack_packet(PUBREC, ids[4]))
    client.expect(PUBREL)
    broker.restart(how)
    client = broker.returning("ann")
    for _ in range(5):
        client.read()
    publisher = broker.client()
    for _ in range(5):
        publisher.publish("a", b"second", qos=2)
    more = [client.expect(PUBLISH) for _ in range(5)]
    assert [one.payload for one in more] == [b"second"] * 5
    assert not {one.packet_id for one in more} & set(ids)


# QoS 2 from the client


def test_qos_2_from_the_client_resumes_at_every_step(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    for packet_id in (1, 2, 3):
        client.send(publish_packet("a", b"%d" % packet_id, qos=2, packet_id=packet_id))
        assert client.expect(PUBREC).packet_id == packet_id
    for packet_id in (2, 3):
        client.send(ack_packet(PUBREL, packet_id))
        assert client.expect(PUBCOMP).packet_id == packet_id
    broker.restart(how)

    client = broker.returning("ann")
    client.send(publish_packet("a", b"1", qos=2, packet_id=1, dup=True))  # as if PUBREC had been lost
    assert client.expect(PUBREC).packet_id == 1
    client.send(ack_packet(PUBREL, 2))  # as if PUBCOMP had been lost
    assert client.expect(PUBCOMP).reason == 0x92
    client.send(publish_packet("a", b"new", qos=2, packet_id=3))
    assert client.expect(PUBREC).packet_id == 3
    broker.restart(how)

    client = broker.returning("ann")
    for packet_id in (1, 3):
        client.send(ack_packet(PUBREL, packet_id))
        answer = client.expect(PUBCOMP)
        assert (answer.packet_id, answer.reason) == (packet_id, 0)
    broker.restart(how)

    client = broker.returning("ann")
    client.send(ack_packet(PUBREL, 1))
    assert client.expect(PUBCOMP).reason == 0x92
    client.send(publish_packet("a", b"another", qos=2, packet_id=1))
    client.expect(PUBREC)
    assert broker.logged("a") == [b"1", b"2", b"3", b"new", b"another"]


@pytest.mark.parametrize("together", [True, False])
def test_a_packet_id_is_known_though_another_step_came_with_it(
    broker: Broker, how: str, together: bool
) -> None:
    """The state is written with the message, and again when its exchange is over."""
    client = broker.lasting("ann")
    client.send(publish_packet("a", b"seven", qos=2, packet_id=7))
    client.expect(PUBREC)
    packets = [publish_packet("a", b"one", qos=2, packet_id=1), ack_packet(PUBREL, 7)]
    for data in [b"".join(packets)] if together else packets:
        client.send(data)
    assert {client.read().kind for _ in packets} == {PUBREC, PUBCOMP}
    broker.settle()
    broker.settle()
    broker.restart(how)
    client = broker.returning("ann")
    client.send(publish_packet("a", b"one", qos=2, packet_id=1, dup=True))
    assert client.expect(PUBREC).packet_id == 1
    client.send(ack_packet(PUBREL, 1))
    assert client.expect(PUBCOMP).reason == 0
    assert broker.logged("a") == [b"seven", b"one"]


def test_many_unfinished_qos_2_messages_are_distinguished(broker: Broker, how: str) -> None:
    client = broker.lasting("ann")
    ids = list(range(1, 1_001))
    client.send(b"".join(publish_packet("a", b"%d" % one, qos=2, packet_id=one) for one in ids))
    assert [client.expect(PUBREC).packet_id for _ in ids] == ids
    done = ids[::3]
    client.send(b"".join(ack_packet(PUBREL, one) for one in done))
    assert [client.expect(PUBCOMP).packet_id for _ in done] == done
    broker.restart(how)
    client = broker.returning("ann")
    # All are sent once more: those that were released are new ones under old ids.
    client.send(b"".join(publish_packet("a", b"%d" % one, qos=2, packet_id=one, dup=True) for one in ids))
    assert [client.expect(PUBREC).packet_id for _ in ids] == ids
    assert broker.logged("a") == [b"%d" % one for one in ids] + [b"%d" % one for one in done]


def test_qos_2_state_of_a_session_without_expiry_is_dropped(broker: Broker, how: str) -> None:
    client = broker.client("ann")
    client.send(publish_packet("a", b"1", qos=2, packet_id=1))
    client.expect(PUBREC)
    broker.restart(how)
    client = broker.lasting("ann")
    client.send(publish_packet("a", b"2", qos=2, packet_id=1))
    client.expect(PUBREC)
    assert broker.logged("a") == [b"1", b"2"]


# Many at once


def test_many_sessions_are_restored(broker: Broker, how: str) -> None:
    for number in range(100):
        client = broker.lasting(f"client-{number}", 4 if number % 2 else 5)
        client.subscribe(f"to/{number}", "to/all", qos=1 + number % 2)
        client.close()
    broker.restart(how)
    publisher = broker.client()
    for number in range(100):
        publisher.publish(f"to/{number}", b"%d" % number, qos=2)
    publisher.publish("to/all", b"end", qos=2)
    broker.restart(how)
    for number in range(100):
        client = broker.returning(f"client-{number}", 4 if number % 2 else 5)
        assert [one.payload for one in receive_until(client, b"end")] == [b"%d" % number, b"end"]
        client.close()
