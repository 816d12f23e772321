"""MQTT features that can be disabled: CONNACK announces it, and the broker enforces it."""

from __future__ import annotations

from typing import Any

import pytest

from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.protocols.mqtt.packets import Ack, Disconnect, Publish, Subscribe, WillMessage, Wish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V311, Core


def offered(core: Core, **properties: Any) -> dict[str, Any]:
    connack = core.wire().connect("c", **properties)
    assert connack.reason == 0
    return connack.properties


def test_all_features_are_available_by_default(core: Core) -> None:
    """Absent properties mean the protocol's own defaults (3.2.2.3)."""
    assert offered(core) == {"maximum_packet_size": 16 * 1024 * 1024, "topic_alias_maximum": 64}


@pytest.mark.parametrize("maximum", [0, 1])
def test_the_maximum_qos_is_announced_and_enforced(maximum: int) -> None:
    """[MQTT-3.2.2-9] to [MQTT-3.2.2-12]"""
    core = Core(options=MqttOptions(maximum_qos=maximum))
    assert offered(core)["maximum_qos"] == maximum
    client = core.connect("c")
    assert client.subscribe("a", qos=2) == [maximum]
    client.publish("a", b"x", qos=maximum)
    assert Publish(b"a", b"x", maximum, packet_id=maximum) in client.received()
    client.publish("a", b"x", qos=maximum + 1)
    assert client.only(Disconnect).reason == Reason.QOS_NOT_SUPPORTED
    will = WillMessage(b"w", b"", maximum + 1)
    assert core.wire().connect("d", will=will).reason == Reason.QOS_NOT_SUPPORTED
    old = core.connect("old", V311)
    old.publish("a", b"x", qos=2)
    assert old.closed


def test_retained_messages_can_be_disabled() -> None:
    """[MQTT-3.2.2-13], [MQTT-3.2.2-14]"""
    core = Core(options=MqttOptions(retain_available=False))
    assert offered(core)["retain_available"] == 0
    client = core.connect("c")
    client.publish("a", b"x", retain=True)
    assert client.only(Disconnect).reason == Reason.RETAIN_NOT_SUPPORTED
    will = WillMessage(b"w", b"", 0, True)
    assert core.wire().connect("d", will=will).reason == Reason.RETAIN_NOT_SUPPORTED
    assert len(core.broker.retained) == 0


def test_wildcard_subscriptions_can_be_disabled() -> None:
    core = Core(options=MqttOptions(wildcard_subscriptions=False))
    assert offered(core)["wildcard_subscription_available"] == 0
    refused = Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
    assert core.connect("c").subscribe("a/#", "+", "a") == [refused, refused, 0]


def test_shared_subscriptions_can_be_disabled() -> None:
    core = Core(options=MqttOptions(shared_subscriptions=False))
    assert offered(core)["shared_subscription_available"] == 0
    refused = Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    assert core.connect("c").subscribe("$share/g/a", "a") == [refused, 0]


def test_subscription_identifiers_can_be_disabled() -> None:
    core = Core(options=MqttOptions(subscription_identifiers=False))
    assert offered(core)["subscription_identifier_available"] == 0
    client = core.connect("c")
    client.send(Subscribe(1, [Wish(b"a")], {"subscription_identifier": 1}))
    assert client.only(Disconnect).reason == Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED


def test_topic_aliases_from_clients_can_be_disabled() -> None:
    core = Core(options=MqttOptions(topic_alias_maximum=0))
    assert "topic_alias_maximum" not in offered(core)
    client = core.connect("c")
    client.publish("a", b"x", topic_alias=1)
    assert client.only(Disconnect).reason == Reason.TOPIC_ALIAS_INVALID


def test_topic_aliases_to_clients_can_be_disabled() -> None:
    core = Core(options=MqttOptions(use_topic_aliases=False))
    client = core.connect("c", topic_alias_maximum=10)
    client.subscribe("a")
    client.publish("a", b"x")
    assert client.only(Publish) == Publish(b"a", b"x")


def test_response_information_is_sent_on_request() -> None:
    """[MQTT-3.1.2-28]"""
    core = Core(options=MqttOptions(response_information="answers/"))
    assert offered(core, request_response_information=1)["response_information"] == "answers/"
    assert "response_information" not in offered(core, request_response_information=0)
    assert "response_information" not in offered(core)


def test_the_payload_format_can_be_checked() -> None:
    """3.3.2.3.2"""
    core = Core(options=MqttOptions(check_payload_format=True))
    client = core.connect("c")
    client.subscribe("a")
    client.publish("a", b"\xff", qos=1, payload_format=1)
    assert client.only(Ack).reason == Reason.PAYLOAD_FORMAT_INVALID
    client.publish("a", b"\xff", payload_format=1)
    assert client.received() == []
    client.publish("a", b"\xff", payload_format=0)
    client.publish("a", "ü".encode(), payload_format=1)
    assert client.payloads() == [b"\xff", "ü".encode()]
    will = WillMessage(b"w", b"\xff", properties={"payload_format": 1})
    assert core.wire().connect("d", will=will).reason == Reason.PAYLOAD_FORMAT_INVALID


def test_a_payload_that_is_not_utf_8_does_not_affect_its_neighbours() -> None:
    core = Core(options=MqttOptions(check_payload_format=True))
    reader = core.connect("reader")
    reader.subscribe("a")
    client = core.connect("c")
    properties = {"payload_format": 1}
    client.send(
        *(
            Publish(b"a", p, 1, packet_id=n + 1, properties=properties)
            for n, p in enumerate((b"x", b"\xff", b"y"))
        )
    )
    assert reader.payloads() == [b"x", b"y"]
    assert [packet.reason for packet in client.received() if isinstance(packet, Ack)] == [0, 0x99, 0]


def test_reason_strings_are_sent_unless_the_client_declines_them() -> None:
    """[MQTT-3.1.2-29]: CONNACK and DISCONNECT may carry them regardless."""
    core = Core()
    for wanted in (1, 0):
        client = core.connect("c", request_problem_information=wanted)
        client.send(Subscribe(1, [Wish(b"a/#/b")]))
        (suback,) = client.received()
        assert ("reason_string" in getattr(suback, "properties", {})) is bool(wanted)
        client.publish("$SYS/x", b"x", qos=1)
        assert ("reason_string" in client.only(Ack).properties) is bool(wanted)


def test_a_reason_string_that_makes_the_packet_too_large_is_omitted() -> None:
    """[MQTT-3.9.2-1], [MQTT-3.4.2-2]"""
    core = Core()
    client = core.connect("c", maximum_packet_size=15)
    client.publish("$SYS/x", b"x", qos=1, packet_id=3)
    assert client.only(Ack) == Ack(4, 3, Reason.NOT_AUTHORIZED)
    client.send(b"\x00\x00")
    assert client.only(Disconnect).properties == {}
