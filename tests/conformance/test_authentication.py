"""Sections 3.15 and 4.12: authentication, enhanced and plain, and what clients are allowed to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .client import Client
from .conftest import Broker, StartBroker
from .reader import Packet
from .wire import (
    AUTH,
    CONNACK,
    PINGREQ,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Will,
    ack_packet,
    auth_packet,
    connect_packet,
    disconnect_packet,
    packet,
    properties,
    publish_packet,
    subscribe_packet,
)


@pytest.fixture(scope="module")
def guarded(start_broker: StartBroker) -> Broker:
    """A broker with the gatekeeper plug-in."""
    return start_broker(
        '[mqtt]\nauthenticator = "gatekeeper:make_access"\n', Path(__file__).parent / "plugin"
    )


def challenged(broker: Broker, client_id: str = "", **values: Any) -> tuple[Client, Packet]:
    """Return a client that has been asked for its password, and the AUTH that asked."""
    client = broker.open()
    client.send(connect_packet(client_id, authentication_method="password", **values))
    return client, client.expect(AUTH)


def admitted(broker: Broker) -> Client:
    """Return a client that has answered the challenge."""
    client, _ = challenged(broker)
    client.send(auth_packet(0x18, authentication_method="password", authentication_data=b"right"))
    assert client.expect(CONNACK).reason == 0
    return client


# The exchange before CONNACK.


def test_an_unknown_method_is_refused(guarded: Broker) -> None:
    """[MQTT-4.12.0-1] Bad authentication method, and the connection is closed."""
    client = guarded.open()
    client.send(connect_packet("c", authentication_method="unheard of"))
    client.expect_refused(0x8C, 0x87)


def test_a_broker_without_methods_refuses_every_method(broker: Broker) -> None:
    """[MQTT-4.12.0-1] The same without an authenticator."""
    client = broker.open()
    client.send(connect_packet("c", authentication_method="SCRAM-SHA-256", authentication_data=b"n,,n=u"))
    client.expect_refused(0x8C, 0x87)


def test_the_server_asks_with_auth(guarded: Broker) -> None:
    """[MQTT-4.12.0-2] [MQTT-4.12.0-5] [MQTT-3.15.2-1] [MQTT-3.2.0-1] To continue, by the same method."""
    _, auth = challenged(guarded)
    assert auth.reason == 0x18
    assert auth.properties == {"authentication_method": "password", "authentication_data": b"password?"}


def test_the_right_answer_is_accepted(guarded: Broker) -> None:
    """[MQTT-4.12.0-3] [MQTT-4.12.0-5] [MQTT-3.1.4-5] The CONNACK names the method too."""
    client, _ = challenged(guarded)
    client.send(auth_packet(0x18, authentication_method="password", authentication_data=b"right"))
    connack = client.expect(CONNACK)
    assert connack.reason == 0
    assert connack.properties["authentication_method"] == "password"
    assert connack.properties["authentication_data"] == b"welcome"
    client.ping()


def test_one_step_can_be_enough(guarded: Broker) -> None:
    """[MQTT-4.12.0-5] The method may decide on what CONNECT carries."""
    client = guarded.open()
    connack = client.connect("", authentication_method="ticket", authentication_data=b"right")
    assert connack.reason == 0
    assert connack.properties["authentication_method"] == "ticket"


def test_the_wrong_answer_is_refused(guarded: Broker) -> None:
    """[MQTT-4.12.0-4] In the first step and in the second."""
    client, _ = challenged(guarded)
    client.send(auth_packet(0x18, authentication_method="password", authentication_data=b"wrong"))
    client.expect_refused(0x87)
    client = guarded.open()
    client.send(connect_packet("c", authentication_method="ticket", authentication_data=b"wrong"))
    client.expect_refused(0x86)


@pytest.mark.parametrize("reason", [0x00, 0x19, 0x01, 0x80])
def test_a_client_must_answer_with_continue(guarded: Broker, reason: int) -> None:
    """[MQTT-4.12.0-3] [MQTT-3.15.2-1] [MQTT-3.14.0-1] CONNACK refuses, as DISCONNECT may not."""
    client, _ = challenged(guarded)
    client.send(auth_packet(reason, authentication_method="password", authentication_data=b"right"))
    client.expect_refused(0x81, 0x82)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            auth_packet(0x18, authentication_method="ticket", authentication_data=b"right"), id="other"
        ),
        pytest.param(auth_packet(0x18, authentication_data=b"right"), id="none"),
        pytest.param(packet(AUTH, 0), id="empty AUTH"),
        pytest.param(auth_packet(0x18, authentication_method=["password", "password"]), id="twice"),
    ],
)
def test_the_method_may_not_change(guarded: Broker, data: bytes) -> None:
    """[MQTT-4.12.0-5] Every AUTH names the method of CONNECT."""
    client, _ = challenged(guarded)
    client.send(data)
    client.expect_refused(0x81, 0x82)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(publish_packet("t", b"early"), id="PUBLISH"),
        pytest.param(subscribe_packet(1, [("t", 0)]), id="SUBSCRIBE"),
        pytest.param(packet(PINGREQ, 0), id="PINGREQ"),
        pytest.param(connect_packet("again"), id="CONNECT"),
    ],
)
def test_nothing_but_auth_may_come_during_authentication(guarded: Broker, data: bytes) -> None:
    """[MQTT-3.1.2-30] [MQTT-3.14.0-1] A protocol error, answered with CONNACK."""
    client, _ = challenged(guarded)
    client.send(data)
    client.expect_refused(0x82)


def test_a_client_may_give_up_during_authentication(guarded: Broker) -> None:
    """[MQTT-3.1.2-30] DISCONNECT is allowed."""
    client, _ = challenged(guarded)
    client.send(disconnect_packet())
    client.expect_closed()


def test_no_session_is_touched_before_authentication(guarded: Broker, client_id: str) -> None:
    """[MQTT-3.1.4-6] [MQTT-3.1.4-2] An unauthenticated client does not take over the session."""
    owner = guarded.connect(client_id)
    client, _ = challenged(guarded, client_id)
    owner.ping()
    client.send(auth_packet(0x18, authentication_method="password", authentication_data=b"wrong"))
    client.expect_refused(0x87)
    owner.ping()


def test_nothing_is_processed_after_a_refusal(guarded: Broker, topic: str) -> None:
    """[MQTT-3.1.4-6] The PUBLISH that follows in the same segment is not."""
    watcher = guarded.connect()
    watcher.subscribe(topic)
    client = guarded.open()
    client.send(connect_packet("c", username="banned") + publish_packet(topic, b"dead"))
    client.expect_refused(0x87)
    assert watcher.received_before_fence(guarded.connect()) == []


def test_without_a_method_there_is_no_auth(guarded: Broker) -> None:
    """[MQTT-4.12.0-6] Neither AUTH nor a method in CONNACK, from a broker that has methods."""
    connack = guarded.connect().connack
    assert connack is not None
    assert not {"authentication_method", "authentication_data"} & set(connack.properties)


def test_without_a_method_the_client_may_not_send_auth(guarded: Broker) -> None:
    """[MQTT-4.12.0-7] A protocol error, also for a method that the broker knows."""
    client = guarded.connect()
    client.send(auth_packet(0x19, authentication_method="password"))
    client.expect_disconnect(0x82)


def test_auth_is_no_larger_than_the_client_takes(guarded: Broker) -> None:
    """[MQTT-3.15.2-2] [MQTT-3.15.2-3] What it must carry fits; a reason string or user property would not."""
    _, auth = challenged(guarded)
    _, again = challenged(guarded, maximum_packet_size=auth.size)
    assert again.size <= auth.size


# Re-authentication.


def test_a_client_can_authenticate_again(guarded: Broker, topic: str) -> None:
    """[MQTT-4.12.1-1] [MQTT-4.12.0-5] [MQTT-3.15.2-1] Its traffic continues meanwhile."""
    client = admitted(guarded)
    client.subscribe(topic)
    client.send(auth_packet(0x19, authentication_method="password"))
    assert client.expect(AUTH).reason == 0x18
    client.publish(topic, b"meanwhile")
    assert client.receive().payload == b"meanwhile"
    client.send(auth_packet(0x18, authentication_method="password", authentication_data=b"right"))
    auth = client.expect(AUTH)
    assert auth.reason == 0x00
    assert auth.properties["authentication_method"] == "password"


def test_authenticating_again_needs_the_same_method(guarded: Broker) -> None:
    """[MQTT-4.12.1-1] Another one is a protocol error."""
    client = admitted(guarded)
    client.send(auth_packet(0x19, authentication_method="ticket", authentication_data=b"right"))
    client.expect_disconnect(0x82)


def test_failing_to_authenticate_again_ends_the_connection(guarded: Broker) -> None:
    """[MQTT-4.12.1-2] DISCONNECT with the reason, then the end."""
    client = admitted(guarded)
    client.send(auth_packet(0x19, authentication_method="password"))
    client.expect(AUTH)
    client.send(auth_packet(0x18, authentication_method="password", authentication_data=b"wrong"))
    client.expect_disconnect(0x87)


def test_continuing_what_was_not_begun_is_a_protocol_error(guarded: Broker) -> None:
    """[MQTT-3.15.2-1] [MQTT-4.12.1-1]"""
    client = admitted(guarded)
    client.send(auth_packet(0x18, authentication_method="password", authentication_data=b"right"))
    client.expect_disconnect(0x82)


@pytest.mark.parametrize("flags", [1, 2, 4, 8])
def test_auth_with_reserved_flags_is_malformed(guarded: Broker, flags: int) -> None:
    """[MQTT-3.15.1-1] Where AUTH itself would be welcome."""
    client = admitted(guarded)
    client.send(packet(AUTH, flags, b"\x19" + properties(authentication_method="password")))
    client.expect_disconnect(0x81)


# User names, passwords and permissions.


def test_a_wrong_password_is_refused(guarded: Broker) -> None:
    """[MQTT-3.1.4-2] [MQTT-3.2.2-7] [MQTT-3.2.2-8] [MQTT-4.13.2-1]"""
    guarded.connect(username="user", password=b"right")
    for username, password, reason in (("user", b"wrong", 0x86), ("user", None, 0x86), ("banned", b"", 0x87)):
        client = guarded.open()
        client.send(connect_packet("c", username=username, password=password))
        client.expect_refused(reason)


def test_a_rejected_client_identifier_is_refused(guarded: Broker) -> None:
    """[MQTT-3.1.3-8] Client Identifier not valid, then the end."""
    client = guarded.open()
    client.send(connect_packet("unwanted1"))
    client.expect_refused(0x85)


def test_a_refusal_does_not_outgrow_the_packet_size(guarded: Broker) -> None:
    """[MQTT-3.2.2-19] [MQTT-3.2.2-20] The gatekeeper's reason is left out."""
    client = guarded.open()
    client.send(connect_packet("c", username="banned", maximum_packet_size=20))
    assert client.expect_refused(0x87).size <= 20


def test_a_forbidden_publish_is_refused_and_goes_nowhere(guarded: Broker, topic: str) -> None:
    """[MQTT-3.4.2-1] [MQTT-3.5.2-1] Not authorized, in PUBACK and PUBREC; a QoS 0 message is dropped."""
    watcher, client = guarded.connect(), guarded.connect()
    watcher.subscribe(f"{topic}/#", qos=2)
    for qos in (1, 2):
        answer = client.publish(f"{topic}/private", b"secret", qos=qos)
        assert answer is not None
        assert answer.reason == 0x87
    assert watcher.received_before_fence(client) == []


def test_after_a_failing_pubrec_the_identifier_is_free(guarded: Broker, topic: str) -> None:
    """[MQTT-4.3.3-9] The same identifier is then a new message."""
    watcher, client = guarded.connect(), guarded.connect()
    watcher.subscribe(f"{topic}/#", qos=2)
    client.send(publish_packet(f"{topic}/private", b"refused", qos=2, packet_id=3))
    assert client.expect(PUBREC).reason == 0x87
    client.send(publish_packet(f"{topic}/public", b"accepted", qos=2, packet_id=3))
    assert client.expect(PUBREC).reason < 0x80
    client.send(ack_packet(PUBREL, 3))
    assert client.expect(PUBCOMP).reason == 0
    assert watcher.receive().payload == b"accepted"


def test_a_forbidden_filter_is_refused_alone(guarded: Broker, topic: str) -> None:
    """[MQTT-3.8.4-7] [MQTT-3.9.3-2] Not authorized for that filter, in its place."""
    client = guarded.connect()
    assert client.subscribe(f"{topic}/private", topic, qos=1).reasons == (0x87, 1)


def test_a_forbidden_will_is_not_published(guarded: Broker, topic: str) -> None:
    """[MQTT-3.1.4-2] The connection is refused, or the will withheld."""
    watcher, client = guarded.connect(), guarded.open()
    watcher.subscribe(f"{topic}/#")
    client.connect("", will=Will(f"{topic}/private"))
    client.close()
    assert watcher.received_before_fence(guarded.connect()) == []


def test_reason_strings_are_withheld_on_request(guarded: Broker, topic: str) -> None:
    """[MQTT-3.1.2-29] Not in SUBACK, PUBACK or PUBREC, although the gatekeeper gives a reason."""
    client = guarded.connect(request_problem_information=0)
    answers = [client.publish(f"{topic}/private", qos=qos) for qos in (1, 2)]
    answers.append(client.subscribe(f"{topic}/private"))
    for answer in answers:
        assert answer is not None
        assert not {"reason_string", "user_property"} & set(answer.properties)


def test_a_refused_publish_still_sets_its_alias(guarded: Broker, topic: str) -> None:
    """[MQTT-3.3.2-12] The client has sent the mapping; that the message was refused does not undo it."""
    client = guarded.connect()
    for name in (f"{topic}/private", ""):
        answer = client.publish(name, qos=1, topic_alias=1)
        assert answer is not None
        assert answer.reason == 0x87
