"""Sections 3.1.2.5 and 3.1.3.2: the will."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from .client import Client
from .conftest import Broker, let_a_second_expire
from .wire import Will, packet


def watch(broker: Broker, topic: str) -> Client:
    """Return a client that sees every message to the topic, with its RETAIN flag."""
    watcher = broker.connect()
    watcher.subscribe(topic, qos=2, retain_as_published=True)
    return watcher


def _drop(client: Client) -> None:
    client.close()


def _disconnect_with_will(client: Client) -> None:
    client.disconnect(0x04)


def _disconnect_with_error(client: Client) -> None:
    client.disconnect(0x80)


def _break_protocol(client: Client) -> None:
    client.send(packet(0, 0))
    client.expect_disconnect(0x81, 0x82)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(_drop, id="the network fails"),
        pytest.param(_disconnect_with_will, id="DISCONNECT with will"),
        pytest.param(_disconnect_with_error, id="DISCONNECT with unspecified error"),
        pytest.param(_break_protocol, id="protocol error"),
    ],
)
def test_the_will_is_published_when_the_connection_ends(
    broker: Broker, topic: str, end: Callable[[Client], None]
) -> None:
    """[MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.14.2-1]"""
    watcher = watch(broker, topic)
    end(broker.connect(will=Will(topic, b"gone")))
    assert watcher.receive().payload == b"gone"


def test_the_will_is_published_when_the_keep_alive_passes(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-22] As if the network had failed."""
    watcher = watch(broker, topic)
    broker.connect(will=Will(topic), keep_alive=1)
    assert watcher.receive().payload == b"gone"


def test_the_will_is_published_at_a_takeover(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.4-3] With no delay, the end of the older connection is enough."""
    watcher = watch(broker, topic)
    broker.connect(client_id, will=Will(topic), session_expiry_interval=60)
    broker.connect(client_id, clean=False, session_expiry_interval=60)
    assert watcher.receive().payload == b"gone"


@pytest.mark.parametrize("reason", [None, 0x00])
def test_a_normal_disconnect_discards_the_will(broker: Broker, topic: str, reason: int | None) -> None:
    """[MQTT-3.14.4-3] [MQTT-3.1.2-8] [MQTT-3.1.2-10]"""
    watcher = watch(broker, topic)
    client = broker.connect(will=Will(topic))
    client.disconnect(reason)
    assert watcher.received_before_fence(broker.connect()) == []


def test_a_will_is_published_once(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-10] Publishing removes it: the next connection of the session has none."""
    watcher = watch(broker, topic)
    broker.connect(client_id, will=Will(topic), session_expiry_interval=60).close()
    assert watcher.receive().payload == b"gone"
    client = broker.connect(client_id, clean=False, session_expiry_interval=60)
    client.disconnect(0x04)
    assert watcher.received_before_fence(broker.connect()) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_will_is_published_with_its_qos(broker: Broker, topic: str, qos: int) -> None:
    """[MQTT-3.1.2-12] 0, 1 and 2 are all possible."""
    watcher = watch(broker, topic)
    broker.connect(will=Will(topic, qos=qos)).close()
    assert watcher.receive().qos == qos


def test_a_will_without_retain_is_not_retained(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-14]"""
    watcher = watch(broker, topic)
    broker.connect(will=Will(topic)).close()
    assert not watcher.receive().retain
    late = broker.connect()
    late.subscribe(topic)
    assert late.received_before_fence(late) == []


def test_a_will_with_retain_is_retained(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-15]"""
    watcher = watch(broker, topic)
    broker.connect(will=Will(topic, b"kept", retain=True)).close()
    assert watcher.receive().retain
    late = broker.connect()
    late.subscribe(topic)
    message = late.receive()
    assert (message.payload, message.retain) == (b"kept", True)


def test_the_will_carries_its_properties(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.3-10] [MQTT-3.1.2-9] User properties in order; the delay is not a property of the message."""
    users = [("b", "1"), ("a", "2"), ("b", "1"), ("", "")]
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answer/here",
        "correlation_data": b"\x00\x01",
        "user_property": users,
    }
    watcher = watch(broker, topic)
    broker.connect(will=Will(topic, properties={**properties, "will_delay_interval": 0})).close()
    assert watcher.receive().properties == properties


def test_the_will_may_be_empty(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-9] The will payload is zero or more bytes."""
    watcher = watch(broker, topic)
    broker.connect(will=Will(topic, b"")).close()
    assert watcher.receive().payload == b""


def test_the_will_payload_is_any_bytes(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-9] It is binary data, not a string."""
    watcher = watch(broker, topic)
    broker.connect(will=Will(topic, b"\x00\xff\xed\xa0\x80")).close()
    assert watcher.receive().payload == b"\x00\xff\xed\xa0\x80"


def test_the_will_waits_for_its_delay(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-8] Nothing at once, and the message after about a second."""
    watcher = watch(broker, topic)
    broker.connect(
        will=Will(topic, properties={"will_delay_interval": 1}), session_expiry_interval=60
    ).close()
    began = time.monotonic()
    assert watcher.received_before_fence(broker.connect()) == []
    assert watcher.receive().payload == b"gone"
    assert time.monotonic() - began > 0.8


def test_reconnecting_in_time_withholds_the_will(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.3-9] [MQTT-3.1.2-8]"""
    watcher = watch(broker, topic)
    will = Will(topic, properties={"will_delay_interval": 1})
    broker.connect(client_id, will=will, session_expiry_interval=60).close()
    client = broker.connect(client_id, clean=False, session_expiry_interval=60)
    let_a_second_expire()
    client.ping()
    assert watcher.received_before_fence(broker.connect()) == []


def test_the_end_of_the_session_cuts_the_delay_short(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-8] The session ends with the connection, so the will does not wait for its minute."""
    watcher = watch(broker, topic)
    broker.connect(will=Will(topic, properties={"will_delay_interval": 60})).close()
    assert watcher.receive().payload == b"gone"


def test_the_expiry_of_the_session_cuts_the_delay_short(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-8] The same when the session ends a second later."""
    watcher = watch(broker, topic)
    will = Will(topic, properties={"will_delay_interval": 60})
    broker.connect(will=will, session_expiry_interval=1).close()
    assert watcher.receive().payload == b"gone"


def test_a_clean_start_ends_the_delay_with_the_session(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-8] A clean start ends the session, so that the will of that session is published."""
    watcher = watch(broker, topic)
    will = Will(topic, properties={"will_delay_interval": 60})
    broker.connect(client_id, will=will, session_expiry_interval=60).close()
    broker.connect(client_id)
    assert watcher.receive().payload == b"gone"


def test_the_will_is_sent_to_sessions_that_are_away(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-7] [MQTT-4.5.0-1] It is an application message like any other."""
    watcher = broker.connect(client_id, session_expiry_interval=60)
    watcher.subscribe(topic, qos=1)
    watcher.disconnect()
    witness = watch(broker, topic)
    broker.connect(will=Will(topic, qos=1)).close()
    witness.receive()
    watcher = broker.connect(client_id, clean=False)
    assert watcher.receive().payload == b"gone"


def test_a_takeover_that_ends_the_session_does_not_wait(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-8] [MQTT-4.1.0-2] The older session had no expiry interval: it ends, whatever the delay."""
    watcher = watch(broker, topic)
    broker.connect(client_id, will=Will(topic, properties={"will_delay_interval": 60}))
    broker.connect(client_id, clean=False)
    assert watcher.receive().payload == b"gone"


def test_a_takeover_of_the_session_withholds_a_delayed_will(
    broker: Broker, topic: str, client_id: str
) -> None:
    """[MQTT-3.1.3-9] The newer connection goes on with the session."""
    watcher = watch(broker, topic)
    will = Will(topic, properties={"will_delay_interval": 1})
    older = broker.connect(client_id, will=will, session_expiry_interval=60)
    broker.connect(client_id, clean=False, session_expiry_interval=60)
    older.expect_disconnect(0x8E)
    let_a_second_expire()
    assert watcher.received_before_fence(broker.connect()) == []
