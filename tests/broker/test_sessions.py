"""Sessions, wills, take-over and time (3.1, 4.1)."""

from __future__ import annotations

from typing import Any

import pytest

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.protocols.mqtt.packets import Connack, Connect, Disconnect, Publish, WillMessage
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V5, V31, V311, Client, Core

BOTH_VERSIONS = pytest.mark.parametrize("version", [V5, V311])


def will(delay: int = 0, payload: bytes = b"gone", retain: bool = False, **properties: Any) -> WillMessage:
    if delay:
        properties["will_delay"] = delay
    return WillMessage(b"w", payload, 1, retain, properties)


def watcher(core: Core) -> Client:
    client = core.connect("watcher")
    client.subscribe("w", qos=1, retain_as_published=True)
    return client


def present(client: Client) -> bool:
    assert client.connack is not None
    return client.connack.session_present


# Sessions


def test_a_session_of_5_0_lasts_as_long_as_its_expiry(core: Core) -> None:
    core.connect("c", session_expiry=10).drop()
    core.tick(9)
    client = core.connect("c", clean_start=False, session_expiry=10)
    assert present(client)
    client.drop()
    core.tick(11)
    assert core.broker.sessions == {}
    assert core.broker.figures.clients_expired == 1
    assert not present(core.connect("c", clean_start=False))


def test_a_session_without_an_expiry_ends_with_its_connection(core: Core) -> None:
    """[MQTT-3.1.2-23]"""
    client = core.connect("c")
    client.subscribe("a")
    client.drop()
    assert core.broker.sessions == {}
    assert core.broker.subscriptions.count == 0


def test_a_session_of_3_1_1_lasts_if_it_is_not_clean(core: Core) -> None:
    core.connect("c", V311, clean_start=False).drop()
    core.tick(1e9)
    client = core.connect("c", V311, clean_start=False)
    assert present(client)
    client.drop()
    client = core.connect("c", V311)
    assert not present(client)
    client.drop()
    assert core.broker.sessions == {}


def test_a_client_of_3_1_is_told_no_session_present(core: Core) -> None:
    core.connect("c", V31, clean_start=False).drop()
    client = core.connect("c", V31, clean_start=False)
    assert not present(client)


def test_the_longest_expiry_is_bounded_and_told() -> None:
    core = Core(options=MqttOptions(max_session_expiry=100))
    client = core.connect("c", session_expiry=1_000)
    assert client.connack is not None
    assert client.connack.properties["session_expiry"] == 100
    client.drop()
    core.connect("old", V311, clean_start=False).drop()
    core.tick(101)
    assert core.broker.sessions == {}


def test_disconnect_may_change_the_expiry(core: Core) -> None:
    core.connect("c", session_expiry=1_000).disconnect(session_expiry=0)
    assert core.broker.sessions == {}
    core.connect("c", session_expiry=10).disconnect(session_expiry=1_000)
    core.tick(500)
    assert "c" in core.broker.sessions


def test_disconnect_may_not_make_a_session_last_that_did_not(core: Core) -> None:
    """3.14.2.2.2"""
    client = core.connect("c")
    client.send(Disconnect(0, {"session_expiry": 10}))
    assert client.only(Disconnect).reason == Reason.PROTOCOL_ERROR
    assert core.broker.sessions == {}


def test_a_clean_start_forgets_everything(core: Core) -> None:
    """[MQTT-3.1.2-4]"""
    client = core.connect("c", session_expiry=100)
    client.subscribe("a", qos=1)
    client.drop()
    core.connect("writer").publish("a", b"x", qos=1)
    client = core.connect("c", clean_start=True, session_expiry=100)
    assert not present(client)
    assert client.received() == []
    core.connect("writer").publish("a", b"x", qos=1)
    assert client.received() == []
    assert core.broker.figures.messages_stored == 0


def test_a_client_without_an_id_is_given_one(core: Core) -> None:
    """[MQTT-3.1.3-6], [MQTT-3.2.2-16]"""
    first, second = core.connect(""), core.connect("")
    assert first.connack is not None
    assert second.connack is not None
    given = first.connack.properties["assigned_client_id"]
    assert given in core.broker.sessions
    assert given != second.connack.properties["assigned_client_id"]
    assert core.connect("", V311)


@BOTH_VERSIONS
def test_a_second_connection_takes_over(core: Core, version: int) -> None:
    """[MQTT-3.1.4-3]"""
    lasting = {"session_expiry": 100} if version == V5 else {}
    first = core.connect("c", version, clean_start=False, **lasting)
    first.subscribe("a", qos=1)
    core.connect("writer").publish("a", b"x", qos=1)
    second = core.connect("c", version, clean_start=False, **lasting)
    assert present(second)
    if version == V5:
        last = first.received()[-1]
        assert isinstance(last, Disconnect)
        assert last.reason == Reason.SESSION_TAKEN_OVER
    assert first.closed
    first.drop()  # which its transport says later
    assert second.ping()
    assert second.payloads() == [b"x"]
    assert core.broker.figures.connections == 2


@BOTH_VERSIONS
def test_a_session_that_ends_with_its_connection_ends_when_it_is_taken_over(core: Core, version: int) -> None:
    """3.1.2.11.2: it ends when the network connection is closed; and [MQTT-3.1.2-6] of 3.1.1: its state must
    not be reused in any subsequent session."""
    first = core.connect("c", version, clean_start=True)
    first.subscribe("a", qos=1)
    second = core.connect("c", version, clean_start=False)
    assert not present(second)
    core.connect("writer").publish("a", b"x", qos=1)
    assert second.received() == []


def test_what_a_client_sends_after_it_was_displaced_is_ignored(core: Core) -> None:
    first = core.connect("c")
    core.connect("c")
    reader = core.connect("reader")
    reader.subscribe("#")
    first.feed(first.encoded(Publish(b"a", b"x")))
    core.broker.flush()
    assert reader.received() == []


# Wills


def test_a_will_is_sent_when_the_connection_is_lost(core: Core) -> None:
    """[MQTT-3.1.2-8]"""
    reader = watcher(core)
    core.connect("c", will=will()).drop()
    assert reader.payloads() == [b"gone"]


@BOTH_VERSIONS
def test_a_will_is_not_sent_after_disconnect(core: Core, version: int) -> None:
    """[MQTT-3.14.4-3]"""
    reader = watcher(core)
    core.connect("c", version, will=will()).disconnect()
    core.tick(1_000)
    assert reader.received() == []


def test_a_will_is_sent_after_disconnect_with_will(core: Core) -> None:
    reader = watcher(core)
    core.connect("c", will=will()).disconnect(Reason.DISCONNECT_WITH_WILL)
    assert reader.payloads() == [b"gone"]


@pytest.mark.parametrize("data", [b"\x00\x00", b"\x30\x00"])
def test_a_will_is_sent_when_the_broker_ends_the_connection(core: Core, data: bytes) -> None:
    reader = watcher(core)
    core.connect("c", will=will()).send(data)
    assert reader.payloads() == [b"gone"]


def test_a_will_is_sent_when_another_connection_takes_over(core: Core) -> None:
    """3.1.4: the will of the old connection, if it has no delay."""
    reader = watcher(core)
    core.connect("c", will=will(), session_expiry=100)
    core.connect("c", clean_start=False, session_expiry=100)
    assert reader.payloads() == [b"gone"]


def test_a_delayed_will_is_sent_after_the_delay(core: Core) -> None:
    reader = watcher(core)
    core.connect("c", will=will(delay=10), session_expiry=100).drop()
    core.tick(9)
    assert reader.received() == []
    core.tick(2)
    assert reader.payloads() == [b"gone"]
    core.tick(1_000)
    assert reader.received() == []


def test_a_delayed_will_is_not_sent_if_the_client_is_back_in_time(core: Core) -> None:
    """[MQTT-3.1.3-9]"""
    reader = watcher(core)
    core.connect("c", will=will(delay=10), session_expiry=100).drop()
    core.tick(5)
    client = core.connect("c", clean_start=False, session_expiry=100)
    core.tick(50)
    assert reader.received() == []
    client.drop()
    core.tick(50)
    assert reader.received() == [], "the new connection has no will"


def test_a_delayed_will_is_sent_when_the_session_ends_first(core: Core) -> None:
    reader = watcher(core)
    core.connect("c", will=will(delay=100), session_expiry=10).drop()
    core.tick(9)
    assert reader.received() == []
    core.tick(2)
    assert reader.payloads() == [b"gone"]
    core.connect("d", will=will(delay=100)).drop()
    assert reader.payloads() == [b"gone"], "a session without expiry ends at once"


def test_a_delayed_will_is_sent_when_a_clean_start_ends_the_session(core: Core) -> None:
    reader = watcher(core)
    core.connect("c", will=will(delay=100), session_expiry=1_000).drop()
    core.connect("c", clean_start=True)
    assert reader.payloads() == [b"gone"]


def test_a_will_may_be_retained_and_carries_its_properties(core: Core) -> None:
    core.connect("c", will=will(retain=True, content_type="x", user_property=[("k", "v")])).drop()
    message = watcher(core).only(Publish)
    assert (message.payload, message.retain) == (b"gone", True)
    assert message.properties == {"content_type": "x", "user_property": [("k", "v")]}


def test_the_expiry_of_a_will_counts_from_when_it_is_sent(core: Core) -> None:
    core.connect("c", will=will(delay=50, retain=True, message_expiry=20), session_expiry=100).drop()
    core.tick(51)
    core.tick(5)
    message = watcher(core).only(Publish)
    assert 14 <= message.properties["message_expiry"] <= 16


# Time


@BOTH_VERSIONS
def test_a_client_that_is_silent_for_one_and_a_half_keep_alives_is_given_up(core: Core, version: int) -> None:
    """[MQTT-3.1.2-22]"""
    client = core.connect("c", version, keep_alive=10)
    core.tick(14.5)
    assert not client.closed
    assert client.ping()
    core.tick(14.5)
    assert not client.closed
    core.tick(1)
    assert client.closed
    if version == V5:
        assert client.only(Disconnect).reason == Reason.KEEP_ALIVE_TIMEOUT


def test_every_packet_that_came_whole_counts_for_the_keep_alive(core: Core) -> None:
    """3.1.2.10: however the packets are cut; here each piece ends one and begins the next."""
    client = core.connect("c", keep_alive=10)
    client.send(b"\xc0")
    for _ in range(10):
        core.tick(5)
        client.send(b"\x00\xc0")
        assert not client.closed


def test_a_packet_that_comes_by_drops_does_not_count_for_the_keep_alive(core: Core) -> None:
    """3.1.2.10 asks for a control packet, not for a byte of one."""
    client = core.connect("c", keep_alive=10)
    packet = client.encoded(Publish(b"a", b"x" * 100))
    for number in range(5):
        client.feed(packet[number : number + 1])
        core.tick(5)
    assert client.closed


def test_a_client_without_keep_alive_may_be_silent_for_ever(core: Core) -> None:
    client = core.connect("c", keep_alive=0)
    core.tick(1e6)
    assert client.ping()


def test_the_broker_may_shorten_the_keep_alive() -> None:
    """[MQTT-3.2.2-21]"""
    core = Core(options=MqttOptions(server_keep_alive=10))
    for asked in (0, 100):
        client = core.connect(f"c{asked}", keep_alive=asked)
        assert client.connack is not None
        assert client.connack.properties["server_keep_alive"] == 10
        core.tick(16)
        assert client.closed
    client = core.connect("c", keep_alive=5)
    assert client.connack is not None
    assert "server_keep_alive" not in client.connack.properties


def test_a_connection_must_send_its_connect_in_time() -> None:
    core = Core(Limits(connect_timeout=5))
    silent, slow, late = core.wire(), core.wire(), core.wire()
    slow.send(slow.encoded(Connect("slow"))[:5])
    core.tick(4)
    assert late.connect("late").reason == 0
    slow.send(slow.encoded(Connect("slow"))[5:6])
    core.tick(2)
    assert silent.closed
    assert slow.closed
    assert not late.closed
    assert late.ping()


def test_a_message_waits_no_longer_than_its_expiry(core: Core) -> None:
    """[MQTT-3.3.2-5], [MQTT-3.3.2-6]"""
    reader = core.connect("c", session_expiry=1_000)
    reader.subscribe("a", qos=1)
    reader.drop()
    writer = core.connect("writer")
    writer.publish("a", b"short", qos=1, message_expiry=10)
    writer.publish("a", b"long", qos=1, message_expiry=100)
    writer.publish("a", b"ever", qos=1)
    core.tick(30)
    messages = core.connect("c", clean_start=False, session_expiry=1_000).messages()
    assert [message.payload for message in messages] == [b"long", b"ever"]
    assert messages[0].properties == {"message_expiry": 70}
    assert messages[1].properties == {}


def test_a_retained_message_stays_no_longer_than_its_expiry(core: Core) -> None:
    """[MQTT-3.3.2-5]"""
    writer = core.connect("writer")
    writer.publish("a", b"x", retain=True, message_expiry=10)
    core.tick(4)
    first = core.connect("first")
    first.subscribe("a")
    assert first.only(Publish).properties == {"message_expiry": 6}
    core.tick(7)
    first.subscribe("a")
    assert first.received() == []


# The broker's limits


def test_no_more_sessions_than_the_limit() -> None:
    core = Core(Limits(max_sessions=2))
    core.connect("a", session_expiry=100).drop()
    core.connect("b")
    for version, reason in ((V5, Reason.QUOTA_EXCEEDED), (V311, 3)):
        client = core.wire(version)
        assert client.connect("c") == Connack(
            reason, False, client.connack.properties if client.connack else {}
        )
        assert client.closed
    assert core.connect("a", clean_start=False)


def test_a_client_that_is_turned_away_is_told_of_another_server() -> None:
    core = Core(Limits(max_sessions=0), options=MqttOptions(server_reference="other:1883"))
    connack = core.wire().connect("c")
    assert connack.reason == Reason.USE_ANOTHER_SERVER
    assert connack.properties["server_reference"] == "other:1883"


def test_a_connack_that_the_client_cannot_take_is_not_sent_and_ends_the_connection(core: Core) -> None:
    """[MQTT-3.1.2-24], [MQTT-3.2.0-1]: without a CONNACK there is no connection."""
    client = core.wire()
    client.send(Connect("c", properties={"maximum_packet_size": 2}))
    assert client.received() == []
    assert client.closed
    client.drop()
    assert "c" not in core.broker.sessions


def test_a_connection_that_the_broker_ends_is_told_why_and_gets_nothing_more(core: Core) -> None:
    reader = core.connect("c", session_expiry=100)
    reader.subscribe("#", qos=1)
    reader.connection.ended(Reason.SERVER_SHUTTING_DOWN)
    assert reader.only(Disconnect).reason == Reason.SERVER_SHUTTING_DOWN
    writer = core.connect("writer")
    writer.publish("a", b"0", qos=0)
    writer.publish("a", b"1", qos=1)
    assert reader.received() == []
    reader.drop()
    assert core.connect("c", clean_start=False).payloads() == [b"1"]
