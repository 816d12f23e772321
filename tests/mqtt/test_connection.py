"""One connection: time to CONNECT, keep-alive, and what a client is told at its end (3.1.2.10, 3.14)."""

from __future__ import annotations

import pytest

from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.protocols.mqtt.packets import Connect, Disconnect, Publish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V5, V311, Core

BOTH_VERSIONS = pytest.mark.parametrize("version", [V5, V311])


@BOTH_VERSIONS
def test_a_client_that_is_silent_for_one_and_a_half_keep_alives_is_closed(core: Core, version: int) -> None:
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


def test_every_complete_packet_restarts_the_keep_alive(core: Core) -> None:
    """3.1.2.10: each piece ends one packet and begins the next."""
    client = core.connect("c", keep_alive=10)
    client.send(b"\xc0")
    for _ in range(10):
        core.tick(5)
        client.send(b"\x00\xc0")
        assert not client.closed


def test_single_bytes_of_a_packet_do_not_restart_the_keep_alive(core: Core) -> None:
    """3.1.2.10 requires a control packet, not a part of one."""
    client = core.connect("c", keep_alive=10)
    packet = client.encoded(Publish(b"a", b"x" * 100))
    for number in range(5):
        client.feed(packet[number : number + 1])
        core.tick(5)
    assert client.closed


def test_a_client_without_keep_alive_may_stay_silent(core: Core) -> None:
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


def test_a_refused_client_is_sent_the_server_reference() -> None:
    core = Core(Limits(max_sessions=0), options=MqttOptions(server_reference="other:1883"))
    connack = core.wire().connect("c")
    assert connack.reason == Reason.USE_ANOTHER_SERVER
    assert connack.properties["server_reference"] == "other:1883"


def test_a_connack_larger_than_the_client_accepts_ends_the_connection(core: Core) -> None:
    """[MQTT-3.1.2-24], [MQTT-3.2.0-1]: without a CONNACK there is no connection."""
    client = core.wire()
    client.send(Connect("c", properties={"maximum_packet_size": 2}))
    assert client.received() == []
    assert client.closed
    client.drop()
    assert "c" not in core.broker.sessions.by_id


def test_nothing_follows_a_disconnect_from_the_broker(core: Core) -> None:
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
