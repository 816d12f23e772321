"""Wills: when they are published, their delay and their expiry (3.1.2.5, 3.1.3.2)."""

from __future__ import annotations

from typing import Any

import pytest

from pyrite.protocols.mqtt.packets import Publish, WillMessage
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V5, V311, Client, Core

BOTH_VERSIONS = pytest.mark.parametrize("version", [V5, V311])


def will(delay: int = 0, payload: bytes = b"gone", retain: bool = False, **properties: Any) -> WillMessage:
    if delay:
        properties["will_delay"] = delay
    return WillMessage(b"w", payload, 1, retain, properties)


def watcher(core: Core) -> Client:
    client = core.connect("watcher")
    client.subscribe("w", qos=1, retain_as_published=True)
    return client


def test_a_will_is_published_when_the_connection_is_lost(core: Core) -> None:
    """[MQTT-3.1.2-8]"""
    reader = watcher(core)
    core.connect("c", will=will()).drop()
    assert reader.payloads() == [b"gone"]


@BOTH_VERSIONS
def test_a_will_is_not_published_after_disconnect(core: Core, version: int) -> None:
    """[MQTT-3.14.4-3]"""
    reader = watcher(core)
    core.connect("c", version, will=will()).disconnect()
    core.tick(1_000)
    assert reader.received() == []


def test_a_will_is_published_after_disconnect_with_will(core: Core) -> None:
    reader = watcher(core)
    core.connect("c", will=will()).disconnect(Reason.DISCONNECT_WITH_WILL)
    assert reader.payloads() == [b"gone"]


@pytest.mark.parametrize("data", [b"\x00\x00", b"\x30\x00"])
def test_a_will_is_published_when_the_broker_ends_the_connection(core: Core, data: bytes) -> None:
    reader = watcher(core)
    core.connect("c", will=will()).send(data)
    assert reader.payloads() == [b"gone"]


def test_a_will_is_published_at_a_takeover(core: Core) -> None:
    """3.1.4: the will of the older connection, unless it has a delay."""
    reader = watcher(core)
    core.connect("c", will=will(), session_expiry=100)
    core.connect("c", clean_start=False, session_expiry=100)
    assert reader.payloads() == [b"gone"]


def test_a_delayed_will_is_published_after_its_delay(core: Core) -> None:
    reader = watcher(core)
    core.connect("c", will=will(delay=10), session_expiry=100).drop()
    core.tick(9)
    assert reader.received() == []
    core.tick(2)
    assert reader.payloads() == [b"gone"]
    core.tick(1_000)
    assert reader.received() == []


def test_a_delayed_will_is_withheld_if_the_client_reconnects_in_time(core: Core) -> None:
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


def test_a_delayed_will_is_published_when_the_session_ends_first(core: Core) -> None:
    reader = watcher(core)
    core.connect("c", will=will(delay=100), session_expiry=10).drop()
    core.tick(9)
    assert reader.received() == []
    core.tick(2)
    assert reader.payloads() == [b"gone"]
    core.connect("d", will=will(delay=100)).drop()
    assert reader.payloads() == [b"gone"], "a session without expiry ends at once"


def test_a_delayed_will_is_published_when_a_clean_start_ends_the_session(core: Core) -> None:
    reader = watcher(core)
    core.connect("c", will=will(delay=100), session_expiry=1_000).drop()
    core.connect("c", clean_start=True)
    assert reader.payloads() == [b"gone"]


def test_a_will_may_be_retained_and_carries_its_properties(core: Core) -> None:
    core.connect("c", will=will(retain=True, content_type="x", user_property=[("k", "v")])).drop()
    message = watcher(core).only(Publish)
    assert (message.payload, message.retain) == (b"gone", True)
    assert message.properties == {"content_type": "x", "user_property": [("k", "v")]}


def test_the_expiry_of_a_will_starts_when_it_is_published(core: Core) -> None:
    core.connect("c", will=will(delay=50, retain=True, message_expiry=20), session_expiry=100).drop()
    core.tick(51)
    core.tick(5)
    message = watcher(core).only(Publish)
    assert 14 <= message.properties["message_expiry"] <= 16
