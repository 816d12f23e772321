"""Sections 3.1 and 3.2: CONNECT and CONNACK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Broker
from .wire import CONNACK, PINGREQ, PINGRESP, SUBACK, connect_packet, packet, publish_packet, subscribe_packet


@pytest.mark.parametrize("version", [0, 1, 2, 6, 84, 255])
def test_an_unknown_protocol_version_is_refused(broker: Broker, version: int) -> None:
    """[MQTT-3.1.2-2] Unsupported Protocol Version, in the form of version 5 or of version 3."""
    client = broker.open()
    client.send(connect_packet("c", version=version, protocol_name="MQTT"))
    answer = client.transport.receive(5)
    assert answer == b"\x20\x02\x00\x01" or (answer[0], answer[2:4]) == (0x20, b"\x00\x84")
    assert client.transport.receive(5) == b""


@pytest.mark.parametrize("name", ["mqtt", "MQTt", "MQTT ", "", "AMQP", "MQTTMQTT"])
def test_an_unknown_protocol_name_is_refused(broker: Broker, name: str) -> None:
    """[MQTT-3.1.2-1] The connection is closed; a CONNACK before that is Unsupported Protocol Version."""
    client = broker.open()
    client.send(connect_packet("c", protocol_name=name))
    answer = client.transport.receive(5)
    if answer:
        assert answer[0] == CONNACK << 4
        assert answer[3] in (0x84, 0x01)
        assert client.transport.receive(5) == b""


def test_a_valid_connect_is_acknowledged_with_success(broker: Broker, client_id: str) -> None:
    """[MQTT-3.1.4-5] [MQTT-3.2.2-1] [MQTT-3.2.2-2]"""
    connack = broker.open().connect(client_id)
    assert connack.reason == 0
    assert not connack.session_present


def test_the_first_packet_from_the_server_is_connack(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.2.0-1] Also when the client did not wait for it; everything else follows in order."""
    client = broker.open()
    client.send(
        connect_packet(client_id) + subscribe_packet(1, [(topic, 0)]) + publish_packet(topic, b"early")
    )
    assert client.expect(CONNACK).reason == 0
    assert client.expect(SUBACK).reasons == (0,)
    assert client.receive().payload == b"early"


def test_resumed_messages_follow_the_connack(broker: Broker, topic: str, client_id: str) -> None:
    """[MQTT-3.2.0-1] Even when they have been waiting."""
    client = broker.connect(client_id, session_expiry_interval=60)
    client.subscribe(topic, qos=1)
    client.disconnect()
    broker.connect().publish(topic, b"waiting", qos=1)
    client = broker.open()
    client.send(connect_packet(client_id, clean=False, session_expiry_interval=60))
    assert client.expect(CONNACK).session_present
    assert client.receive().payload == b"waiting"


def test_nothing_after_a_refused_connect_is_processed(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.4-6] The PUBLISH came in the same segment as the CONNECT."""
    watcher = broker.connect()
    watcher.subscribe(topic)
    client = broker.open()
    client.send(connect_packet("c", reserved=1) + publish_packet(topic, b"dead"))
    client.expect_refused(0x81)
    assert watcher.received_before_fence(broker.connect()) == []


@pytest.mark.parametrize(
    "client_id",
    [
        pytest.param("a", id="1 character"),
        pytest.param("0123456789abcdefghijklm", id="23 characters, lower"),
        pytest.param("nopqrstuvwxyzABCDEFGHIJ", id="23 characters, mixed"),
        pytest.param("KLMNOPQRSTUVWXYZ", id="upper"),
    ],
)
def test_every_plain_client_identifier_is_accepted(broker: Broker, client_id: str) -> None:
    """[MQTT-3.1.3-5] 1 to 23 characters out of 0-9, a-z, A-Z."""
    connack = broker.open().connect(client_id)
    assert connack.reason == 0
    assert "assigned_client_identifier" not in connack.properties


def test_an_empty_client_identifier_gets_a_new_one_assigned(broker: Broker) -> None:
    """[MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16] A different one for each connection."""
    assigned = [broker.connect("").connack for _ in range(3)]
    names = {connack.properties["assigned_client_identifier"] for connack in assigned if connack}
    assert len(names) == 3
    assert "" not in names


def test_an_assigned_client_identifier_names_the_session(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.3-7] [MQTT-3.1.3-2] As if the client had provided it itself."""
    client = broker.connect("", session_expiry_interval=60)
    assert client.connack is not None
    name = client.connack.properties["assigned_client_identifier"]
    client.subscribe(topic, qos=1)
    client.disconnect()
    resumed = broker.connect(name, clean=False)
    assert resumed.connack is not None
    assert resumed.connack.session_present


def test_a_connected_client_is_taken_over_by_its_own_identifier(broker: Broker, client_id: str) -> None:
    """[MQTT-3.1.4-3] The older connection gets DISCONNECT 0x8E and is closed."""
    older = broker.connect(client_id)
    newer = broker.connect(client_id)
    older.expect_disconnect(0x8E)
    newer.ping()


def test_client_identifiers_are_compared_byte_by_byte(broker: Broker, unique: Callable[[str], str]) -> None:
    """[MQTT-3.1.3-2] Upper and lower case, composed and decomposed, are different clients."""
    name = unique("é")
    clients = [broker.connect(each) for each in (name, name.upper(), "e\u0301" + name[1:])]
    for client in clients:
        client.ping()


def test_the_connack_announces_the_features_of_the_server(broker: Broker) -> None:
    """[MQTT-3.2.2-9] Pyrite has every optional feature, so Maximum QoS is absent and nothing is denied."""
    connack = broker.connect().connack
    assert connack is not None
    assert "maximum_qos" not in connack.properties
    for feature in (
        "retain_available",
        "wildcard_subscription_available",
        "subscription_identifiers_available",
        "shared_subscription_available",
    ):
        assert connack.properties.get(feature, 1) == 1
    assert connack.properties["topic_alias_maximum"] > 0
    assert connack.properties.get("receive_maximum", 1) > 0
    assert connack.properties.get("maximum_packet_size", 1) > 0


@pytest.mark.parametrize("values", [{}, {"request_response_information": 0}], ids=["absent", "0"])
def test_response_information_is_not_sent_unasked(broker: Broker, values: dict[str, Any]) -> None:
    """[MQTT-3.1.2-28]"""
    connack = broker.connect(**values).connack
    assert connack is not None
    assert "response_information" not in connack.properties


def test_request_response_information_may_be_asked_for(broker: Broker) -> None:
    """Section 3.1.2.11.6: the server may answer without it."""
    assert broker.connect(request_response_information=1).connack is not None


def test_without_problem_information_no_reason_strings_come(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-29] Not on SUBACK, UNSUBACK, PUBACK, PUBREC or PUBCOMP, also when they report a failure."""
    client = broker.connect(request_problem_information=0)
    answers = [
        client.subscribe("a/#/b", topic, qos=2),
        client.unsubscribe("never/subscribed"),
        client.publish(topic, qos=1),
        client.publish(f"{topic}/nobody", qos=2),
    ]
    for answer in answers:
        assert answer is not None
        assert not {"reason_string", "user_property"} & set(answer.properties), answer


def test_problem_information_may_explain_the_end(broker: Broker) -> None:
    """[MQTT-3.1.2-29] DISCONNECT and CONNACK may carry a reason string in any case."""
    client = broker.connect(request_problem_information=0)
    client.send(packet(0, 0))
    assert client.expect_disconnect(0x81, 0x82).reason >= 0x80


def test_unknown_user_properties_are_ignored(broker: Broker, topic: str) -> None:
    """Section 3.1.2.11.8: user properties of CONNECT, also repeated ones, mean nothing to the server."""
    client = broker.connect(user_property=[("a", "1"), ("a", "1"), ("", "")])
    client.send(subscribe_packet(1, [(topic, 0)], user_property=[("b", "2"), ("b", "3")]))
    assert client.expect(SUBACK).reasons == (0,)


def test_user_name_and_password_are_accepted_in_any_combination(broker: Broker) -> None:
    """[MQTT-3.1.2-17] [MQTT-3.1.2-19] Version 5 allows a password without a user name."""
    broker.connect(username="user")
    broker.connect(username="user", password=b"\x00\xff")
    broker.connect(password=b"secret")
    broker.connect(username="", password=b"")


def test_a_ping_is_answered(broker: Broker) -> None:
    """[MQTT-3.12.4-1]"""
    client = broker.connect()
    for _ in range(3):
        client.send(packet(PINGREQ, 0))
        client.expect(PINGRESP)


def test_an_empty_client_identifier_may_ask_for_an_old_session(broker: Broker) -> None:
    """[MQTT-3.1.3-6] [MQTT-3.1.2-6] Without a clean start too, unlike version 3.1.1."""
    connack = broker.connect("", clean=False, session_expiry_interval=1).connack
    assert connack is not None
    assert not connack.session_present
    assert connack.properties["assigned_client_identifier"]
