"""Sections 3.1.2.4, 3.1.2.11.2 and 4.1: sessions, and how long they live."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Broker, let_a_second_expire


def session_present(broker: Broker, client_id: str) -> bool:
    """Reconnect without a clean start, and tell whether there was a session."""
    connack = broker.connect(client_id, clean=False).connack
    assert connack is not None
    return connack.session_present


def test_clean_start_discards_the_session(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-4] [MQTT-3.1.4-4] [MQTT-3.2.2-2] Its subscriptions and waiting messages are gone."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publisher = broker.connect()
    publisher.publish(topic, b"waiting", qos=1)
    client = broker.connect(client_id, session_expiry_interval=60)
    assert client.connack is not None
    assert not client.connack.session_present
    publisher.publish(topic, b"new", qos=1)
    assert client.received_before_fence(publisher) == []


def test_a_session_resumes_without_clean_start(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-5] [MQTT-3.1.2-23] [MQTT-3.1.3-2] [MQTT-3.2.2-3] [MQTT-4.5.0-1]"""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(topic, qos=2)
    client.disconnect()
    publisher = broker.connect()
    publisher.publish(topic, b"one", qos=1)
    publisher.publish(topic, b"two", qos=2)
    client = broker.connect(client_id, clean=False, session_expiry_interval=60)
    assert client.connack is not None
    assert client.connack.session_present
    received = [client.receive(), client.receive()]
    assert [(message.payload, message.qos) for message in received] == [(b"one", 1), (b"two", 2)]


def test_without_a_session_a_new_one_is_created(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-6] [MQTT-3.2.2-3] Session Present is 0, and the new session works and lasts."""
    client = broker.connect(client_id, clean=False, session_expiry_interval=60)
    assert client.connack is not None
    assert not client.connack.session_present
    client.subscribe(topic)
    client.publish(topic, b"here")
    assert client.receive().payload == b"here"
    client.disconnect()
    assert session_present(broker, client_id)


def test_a_session_survives_the_loss_of_the_network(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-23] Without a DISCONNECT too."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(topic)
    client.close()
    assert session_present(broker, client_id)


@pytest.mark.parametrize("values", [{}, {"session_expiry_interval": 0}], ids=["absent", "0"])
def test_without_expiry_interval_the_session_ends_with_the_connection(
    broker: Broker, client_id: str, values: dict[str, Any]
) -> None:
    """[MQTT-4.1.0-2] [MQTT-3.2.2-3]"""
    client = broker.connect(client_id, **values)
    client.disconnect()
    assert not session_present(broker, client_id)


def test_a_session_is_discarded_after_its_expiry_interval(broker: Broker, client_id: str) -> None:
    """[MQTT-4.1.0-2] The interval is one second."""
    client = broker.connect(client_id, session_expiry_interval=1)
    client.disconnect()
    let_a_second_expire()
    assert not session_present(broker, client_id)


def test_an_open_connection_keeps_its_session(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-4.1.0-1] The expiry interval starts when the connection ends."""
    client = broker.connect(client_id, session_expiry_interval=1)
    client.subscribe(topic)
    let_a_second_expire()
    client.publish(topic, b"still")
    assert client.receive().payload == b"still"
    client.disconnect()
    assert session_present(broker, client_id)


def test_the_largest_expiry_interval_never_expires(broker: Broker, client_id: str) -> None:
    """[MQTT-3.1.2-23] 0xFFFFFFFF is for ever."""
    client = broker.connect(client_id, session_expiry_interval=0xFFFFFFFF)
    client.disconnect()
    assert session_present(broker, client_id)


def test_disconnect_can_end_the_session(broker: Broker, client_id: str) -> None:
    """Section 3.14.2.2.2: the interval of DISCONNECT replaces that of CONNECT. [MQTT-4.1.0-2]"""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.disconnect(0, session_expiry_interval=0)
    assert not session_present(broker, client_id)


def test_disconnect_can_lengthen_the_session(broker: Broker, client_id: str) -> None:
    """Section 3.14.2.2.2: from one second to a minute. [MQTT-3.1.2-23]"""
    client = broker.connect(client_id, session_expiry_interval=1)
    client.disconnect(0, session_expiry_interval=60)
    let_a_second_expire()
    assert session_present(broker, client_id)


def test_reconnecting_replaces_the_expiry_interval(broker: Broker, client_id: str) -> None:
    """[MQTT-4.1.0-2] The interval is that of the last connection."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.disconnect()
    client = broker.connect(client_id, clean=False)
    client.disconnect()
    assert not session_present(broker, client_id)


def test_a_taken_over_session_goes_on(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.4-3] [MQTT-3.1.4-4] [MQTT-3.1.2-5] Subscriptions move to the newer connection."""
    older = broker.connect(client_id, session_expiry_interval=60)
    older.subscribe(topic, qos=1)
    newer = broker.connect(client_id, clean=False, session_expiry_interval=60)
    older.expect_disconnect(0x8E)
    assert newer.connack is not None
    assert newer.connack.session_present
    broker.connect().publish(topic, b"moved", qos=1)
    assert newer.receive().payload == b"moved"


def test_a_clean_takeover_starts_anew(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-4] [MQTT-3.1.4-4] Even while the older connection is open."""
    older = broker.connect(client_id, session_expiry_interval=60)
    older.subscribe(topic, qos=1)
    newer = broker.connect(client_id, session_expiry_interval=60)
    older.expect_disconnect(0x8E)
    publisher = broker.connect()
    publisher.publish(topic, b"lost", qos=1)
    assert newer.received_before_fence(publisher) == []


def test_a_resumed_subscription_keeps_its_options(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-5] Session state includes QoS, identifier and options of subscriptions (section 4.1)."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(topic, qos=1, no_local=True, retain_as_published=True, subscription_identifier=7)
    client.disconnect()
    client = broker.connect(client_id, clean=False, session_expiry_interval=60)
    client.publish(topic, b"own", qos=1)
    broker.connect().publish(topic, b"foreign", qos=2, retain=True)
    message = client.receive()
    assert (message.payload, message.qos, message.retain) == (b"foreign", 1, True)
    assert message.properties == {"subscription_identifier": [7]}


def test_a_takeover_ends_a_session_without_expiry(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-4.1.0-2] [MQTT-3.2.2-3] The session ends with the older connection, before the newer begins."""
    older = broker.connect(client_id)
    older.subscribe(topic, qos=1)
    newer = broker.connect(client_id, clean=False, session_expiry_interval=60)
    older.expect_disconnect(0x8E)
    assert newer.connack is not None
    assert not newer.connack.session_present
    newer.publish(topic, b"unseen", qos=1)
    assert newer.received_before_fence(newer) == []
