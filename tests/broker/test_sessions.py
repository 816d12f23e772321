"""Sessions: how long they last, takeover, expiry of messages, and limits (3.1, 4.1)."""

from __future__ import annotations

import pytest

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.protocols.mqtt.packets import Connack, Disconnect, Publish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V5, V31, V311, Client, Core

BOTH_VERSIONS = pytest.mark.parametrize("version", [V5, V311])


def present(client: Client) -> bool:
    assert client.connack is not None
    return client.connack.session_present


def test_a_5_0_session_lasts_for_its_expiry_interval(core: Core) -> None:
    core.connect("c", session_expiry=10).drop()
    core.tick(9)
    client = core.connect("c", clean_start=False, session_expiry=10)
    assert present(client)
    client.drop()
    core.tick(11)
    assert core.broker.sessions.by_id == {}
    assert core.broker.figures.clients_expired == 1
    assert not present(core.connect("c", clean_start=False))


def test_a_session_without_expiry_interval_ends_with_its_connection(core: Core) -> None:
    """[MQTT-3.1.2-23]"""
    client = core.connect("c")
    client.subscribe("a")
    client.drop()
    assert core.broker.sessions.by_id == {}
    assert core.broker.subscriptions.count == 0


def test_a_3_1_1_session_lasts_unless_clean(core: Core) -> None:
    core.connect("c", V311, clean_start=False).drop()
    core.tick(1e9)
    client = core.connect("c", V311, clean_start=False)
    assert present(client)
    client.drop()
    client = core.connect("c", V311)
    assert not present(client)
    client.drop()
    assert core.broker.sessions.by_id == {}


def test_a_3_1_connack_has_no_session_present_flag(core: Core) -> None:
    core.connect("c", V31, clean_start=False).drop()
    client = core.connect("c", V31, clean_start=False)
    assert not present(client)


def test_the_maximum_expiry_interval_is_enforced_and_announced() -> None:
    core = Core(options=MqttOptions(max_session_expiry=100))
    client = core.connect("c", session_expiry=1_000)
    assert client.connack is not None
    assert client.connack.properties["session_expiry"] == 100
    client.drop()
    core.connect("old", V311, clean_start=False).drop()
    core.tick(101)
    assert core.broker.sessions.by_id == {}


def test_disconnect_may_change_the_expiry_interval(core: Core) -> None:
    core.connect("c", session_expiry=1_000).disconnect(session_expiry=0)
    assert core.broker.sessions.by_id == {}
    core.connect("c", session_expiry=10).disconnect(session_expiry=1_000)
    core.tick(500)
    assert "c" in core.broker.sessions.by_id


def test_disconnect_cannot_add_an_expiry_interval(core: Core) -> None:
    """3.14.2.2.2"""
    client = core.connect("c")
    client.send(Disconnect(0, {"session_expiry": 10}))
    assert client.only(Disconnect).reason == Reason.PROTOCOL_ERROR
    assert core.broker.sessions.by_id == {}


def test_a_clean_start_discards_the_session(core: Core) -> None:
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


def test_a_client_without_an_id_is_assigned_one(core: Core) -> None:
    """[MQTT-3.1.3-6], [MQTT-3.2.2-16]"""
    first, second = core.connect(""), core.connect("")
    assert first.connack is not None
    assert second.connack is not None
    given = first.connack.properties["assigned_client_id"]
    assert given in core.broker.sessions.by_id
    assert given != second.connack.properties["assigned_client_id"]
    assert core.connect("", V311)


@BOTH_VERSIONS
def test_a_second_connection_takes_over_the_session(core: Core, version: int) -> None:
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
def test_a_takeover_ends_a_session_without_expiry_interval(core: Core, version: int) -> None:
    """3.1.2.11.2: it ends when the network connection is closed; and [MQTT-3.1.2-6] of 3.1.1: its state must
    not be reused in any subsequent session."""
    first = core.connect("c", version, clean_start=True)
    first.subscribe("a", qos=1)
    second = core.connect("c", version, clean_start=False)
    assert not present(second)
    core.connect("writer").publish("a", b"x", qos=1)
    assert second.received() == []


def test_packets_of_a_taken_over_connection_are_ignored(core: Core) -> None:
    first = core.connect("c")
    core.connect("c")
    reader = core.connect("reader")
    reader.subscribe("#")
    first.feed(first.encoded(Publish(b"a", b"x")))
    core.broker.output.flush()
    assert reader.received() == []


def test_a_queued_message_expires(core: Core) -> None:
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


def test_a_retained_message_expires(core: Core) -> None:
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


def test_sessions_are_limited() -> None:
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
