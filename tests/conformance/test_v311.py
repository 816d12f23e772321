"""MQTT 3.1.1, and 3.1: where they differ from 5.0. Sections are those of the 3.1.1 specification."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .client import Client, Closed
from .conftest import Broker, StartBroker
from .wire import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Will,
    ack_packet,
    connect_packet,
    packet,
    publish_packet,
    string,
    subscribe_packet,
    u16,
    unsubscribe_packet,
)

V311 = 4


def _connect(flags: int, payload: bytes) -> bytes:
    return packet(CONNECT, 0, string("MQTT") + b"\x04" + bytes([flags]) + u16(60) + payload)


def ends(client: Client) -> None:
    """Require the end of the connection, with no DISCONNECT before it: version 3.1.1 has none for servers."""
    client.expect_closed()


# Connecting.


def test_connack_is_two_bytes_long(broker: Broker, client_id: str) -> None:
    """Section 3.2: flags and return code, no properties."""
    client = broker.open(V311)
    client.send(connect_packet(client_id, version=V311))
    assert client.transport.receive(5) == b"\x20\x02\x00\x00"


def test_mqisdp_connects_with_version_3(broker: Broker, topic: str, client_id: str) -> None:
    """MQTT 3.1: the protocol's older name."""
    client = broker.open(3)
    client.send(connect_packet(client_id, version=3, protocol_name="MQIsdp"))
    assert client.transport.receive(5) == b"\x20\x02\x00\x00"
    client.subscribe(topic, qos=2)
    client.publish(topic, b"old", qos=2)
    assert client.receive().payload == b"old"


def test_version_3_1_has_no_session_present(broker: Broker, topic: str, client_id: str) -> None:
    """MQTT 3.1: the first byte of CONNACK is reserved; the session resumes all the same."""
    for _ in range(2):
        client = broker.open(3)
        client.send(connect_packet(client_id, version=3, protocol_name="MQIsdp", clean=False))
        assert client.transport.receive(5) == b"\x20\x02\x00\x00"
        client.close()


@pytest.mark.parametrize(("name", "version"), [("MQTT", 3), ("MQIsdp", 4), ("MQTT", 0), ("MQIsdp", 5)])
def test_an_unacceptable_version_is_refused_with_1(broker: Broker, name: str, version: int) -> None:
    """Section 3.1.2.2: return code 1, then the end."""
    client = broker.open(V311)
    body = string(name) + bytes([version, 0x02]) + u16(60) + string("c")
    client.send(packet(CONNECT, 0, body))
    answer = client.transport.receive(5)
    assert answer in (b"\x20\x02\x00\x01", b"")
    if answer:
        ends(client)


def test_an_empty_identifier_needs_a_clean_session(broker: Broker) -> None:
    """Section 3.1.3.1: return code 2 without."""
    client = broker.open(V311)
    client.send(connect_packet("", version=V311, clean=False))
    assert client.expect(CONNACK).reason == 2
    ends(client)


def test_an_empty_identifier_with_a_clean_session_is_served(broker: Broker, topic: str) -> None:
    """Section 3.1.3.1: the server makes one up, and cannot tell which."""
    clients = [broker.connect("", version=V311) for _ in range(2)]
    for client in clients:
        client.subscribe(topic)
    clients[0].publish(topic, b"message")
    for client in clients:
        assert client.receive().payload == b"message"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(connect_packet("c", version=V311, reserved=1), id="reserved connect flag"),
        pytest.param(_connect(0x42, string("c") + string("password")), id="password without user name"),
        pytest.param(_connect(0x1E, string("c") + string("t") + string("p")), id="will QoS 3"),
        pytest.param(_connect(0x0A, string("c")), id="will QoS without will"),
        pytest.param(_connect(0x22, string("c")), id="will retain without will"),
        pytest.param(_connect(0x82, string("c")), id="no user name"),
        pytest.param(_connect(0x02, string("c") + b"more"), id="bytes past the end"),
        pytest.param(_connect(0x02, b""), id="no client identifier"),
        pytest.param(connect_packet(b"\xed\xa0\x80", version=V311), id="client identifier not UTF-8"),
        pytest.param(connect_packet(b"a\x00b", version=V311), id="client identifier with U+0000"),
        pytest.param(connect_packet("c", version=V311, will=Will("a/#")), id="will topic with wildcard"),
        pytest.param(publish_packet("t", version=V311), id="PUBLISH first"),
    ],
)
def test_a_wrong_connect_is_not_accepted(broker: Broker, data: bytes) -> None:
    """Section 3.1: the connection ends; no return code says why, and none says welcome."""
    client = broker.open(V311)
    client.send(data)
    try:
        answer = client.expect(CONNACK)
    except Closed:
        return
    assert answer.reason in (2, 5)
    ends(client)


def test_a_refusal_has_a_return_code(start_broker: StartBroker) -> None:
    """Section 3.2.2.3: 2 for the identifier, 4 for user name or password, 5 for not authorized."""
    folder = Path(__file__).parent / "plugin"
    broker = start_broker('[mqtt]\nauthenticator = "gatekeeper:make_access"\n', folder)
    for client_id, username, code in (("unwanted", "", 2), ("c", "user", 4), ("c", "banned", 5)):
        client = broker.open(V311)
        client.send(connect_packet(client_id, version=V311, username=username, password=b"wrong"))
        answer = client.expect(CONNACK)
        assert (answer.reason, answer.session_present) == (code, False)
        ends(client)
    client = broker.connect(version=V311)
    assert client.subscribe("private/t", "public/t", qos=1).reasons == (0x80, 1)
    assert client.publish("private/t", b"dropped", qos=1) is not None
    client.ping()


# Errors.


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(packet(0, 0), id="packet type 0"),
        pytest.param(packet(15, 0), id="packet type 15"),
        pytest.param(packet(AUTH, 0, b"\x18\x00"), id="AUTH of version 5"),
        pytest.param(connect_packet("c", version=V311), id="second CONNECT"),
        pytest.param(packet(PUBREL, 0, u16(1)), id="flags of PUBREL"),
        pytest.param(packet(SUBSCRIBE, 0, u16(1) + string("t") + b"\x00"), id="flags of SUBSCRIBE"),
        pytest.param(packet(UNSUBSCRIBE, 0, u16(1) + string("t")), id="flags of UNSUBSCRIBE"),
        pytest.param(packet(PUBACK, 1, u16(1)), id="flags of PUBACK"),
        pytest.param(packet(PINGREQ, 1), id="flags of PINGREQ"),
        pytest.param(packet(DISCONNECT, 1), id="flags of DISCONNECT"),
        pytest.param(packet(PUBLISH, 6, string("t") + u16(1)), id="PUBLISH of QoS 3"),
        pytest.param(publish_packet("a/#", version=V311), id="PUBLISH with wildcard"),
        pytest.param(publish_packet("", version=V311), id="PUBLISH to no topic"),
        pytest.param(publish_packet(b"\xff", version=V311), id="PUBLISH not UTF-8"),
        pytest.param(publish_packet("t", qos=1, packet_id=0, version=V311), id="PUBLISH with identifier 0"),
        pytest.param(packet(SUBSCRIBE, 2, u16(1)), id="SUBSCRIBE without filters"),
        pytest.param(subscribe_packet(0, [("t", 0)], version=V311), id="SUBSCRIBE with identifier 0"),
        pytest.param(subscribe_packet(1, [("t", 3)], version=V311), id="SUBSCRIBE with QoS 3"),
        pytest.param(subscribe_packet(1, [("t", 4)], version=V311), id="SUBSCRIBE with reserved bits"),
        pytest.param(packet(UNSUBSCRIBE, 2, u16(1)), id="UNSUBSCRIBE without filters"),
        pytest.param(packet(PUBACK, 0, b"\x00"), id="PUBACK cut short"),
        pytest.param(packet(PUBACK, 0, u16(1) + b"\x00\x00"), id="PUBACK of version 5"),
        pytest.param(packet(DISCONNECT, 0, b"\x00"), id="DISCONNECT of version 5"),
        pytest.param(b"\x30\xff\xff\xff\xff\x01", id="remaining length of five bytes"),
    ],
)
def test_an_error_ends_the_connection_without_a_word(broker: Broker, data: bytes) -> None:
    """Section 4.8: the server closes; DISCONNECT is for clients only."""
    client, bystander = broker.connect(version=V311), broker.connect(version=V311)
    client.send(data)
    ends(client)
    bystander.ping()


def test_a_takeover_ends_the_connection_without_a_word(broker: Broker, client_id: str) -> None:
    """Section 3.1.4: also when the newer client speaks version 5."""
    older = broker.connect(client_id, version=V311)
    newer = broker.connect(client_id)
    ends(older)
    newer.ping()


def test_a_passed_keep_alive_ends_the_connection_without_a_word(broker: Broker) -> None:
    """Section 3.1.2.10: one and a half seconds."""
    ends(broker.connect(version=V311, keep_alive=1))


def test_an_error_publishes_the_will_and_disconnect_discards_it(broker: Broker, topic: str) -> None:
    """Section 3.1.2.5."""
    watcher = broker.connect(version=V311)
    watcher.subscribe(topic)
    client = broker.connect(version=V311, will=Will(topic, b"clean"))
    client.disconnect()
    client = broker.connect(version=V311, will=Will(topic, b"error"))
    client.send(packet(0, 0))
    assert watcher.receive().payload == b"error"


# Sessions and messages.


def test_a_session_without_clean_session_lasts(broker: Broker, topic: str, client_id: str) -> None:
    """Section 3.1.2.4: version 3.1.1 knows no expiry; Session Present tells that it was kept."""
    client = broker.connect(client_id, version=V311, clean=False)
    client.subscribe(topic, qos=1)
    client.disconnect()
    broker.connect(version=V311).publish(topic, b"waiting", qos=1)
    client = broker.connect(client_id, version=V311, clean=False)
    assert client.connack is not None
    assert client.connack.session_present
    assert client.receive().payload == b"waiting"


def test_a_clean_session_ends_with_its_connection(broker: Broker, topic: str, client_id: str) -> None:
    """Section 3.1.2.4: state from it is not reused."""
    client = broker.connect(client_id, version=V311)
    client.subscribe(topic, qos=1)
    client.disconnect()
    client = broker.connect(client_id, version=V311, clean=False)
    assert client.connack is not None
    assert not client.connack.session_present
    client.publish(topic, b"unseen", qos=1)
    assert client.received_before_fence(client) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_pass_in_both_versions(broker: Broker, topic: str, qos: int) -> None:
    """A publisher of one version reaches subscribers of both; properties exist where version 5 does."""
    old, new = broker.connect(version=V311), broker.connect()
    for client in (old, new):
        client.subscribe(topic, qos=qos)
    new.publish(topic, b"from new", qos=qos, content_type="text", user_property=[("a", "b")])
    assert old.receive().payload == b"from new"
    assert new.receive().properties == {"content_type": "text", "user_property": [("a", "b")]}
    old.publish(topic, b"from old", qos=qos)
    assert old.receive().payload == b"from old"
    message = new.receive()
    assert (message.payload, message.properties) == (b"from old", {})


@pytest.mark.parametrize("qos", [1, 2])
def test_an_unacknowledged_message_is_sent_again(
    broker: Broker, topic: str, client_id: str, qos: int
) -> None:
    """Section 4.4: after a reconnect with clean session 0."""
    client = broker.connect(client_id, version=V311, clean=False)
    client.subscribe(topic, qos=qos)
    broker.connect(version=V311).publish(topic, b"message", qos=qos)
    first = client.expect(PUBLISH)
    client.close()
    client = broker.connect(client_id, version=V311, clean=False)
    again = client.receive()
    assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"message")


def test_acknowledgements_are_two_bytes_long(broker: Broker, topic: str) -> None:
    """Sections 3.4 to 3.7: the packet identifier alone."""
    client = broker.connect(version=V311)
    client.send(publish_packet(topic, qos=1, packet_id=1, version=V311))
    assert client.expect(PUBACK).size == 4
    client.send(publish_packet(topic, qos=2, packet_id=2, version=V311))
    assert client.expect(PUBREC).size == 4
    client.send(ack_packet(PUBREL, 2))
    assert client.expect(PUBCOMP).size == 4
    client.send(ack_packet(PUBREL, 99))
    assert client.expect(PUBCOMP).packet_id == 99


def test_suback_tells_each_result(broker: Broker, topic: str) -> None:
    """Section 3.9.3: the granted QoS, or 0x80."""
    client = broker.connect(version=V311)
    client.send(subscribe_packet(1, [(topic, 2), ("a/#/b", 0), (f"{topic}/+", 1)], version=V311))
    assert client.expect(SUBACK).reasons == (2, 0x80, 1)


def test_unsuback_has_no_payload(broker: Broker, topic: str) -> None:
    """Section 3.11: it is sent also where nothing was subscribed."""
    client = broker.connect(version=V311)
    client.send(unsubscribe_packet(7, [topic, "other"], version=V311))
    unsuback = client.expect(UNSUBACK)
    assert (unsuback.packet_id, unsuback.size) == (7, 4)


def test_retained_messages_carry_the_flag_only_when_stored(broker: Broker, topic: str) -> None:
    """Section 3.3.1.3: 1 for a new subscription, 0 for an established one."""
    client = broker.connect(version=V311)
    client.subscribe(topic)
    client.publish(topic, b"kept", qos=1, retain=True)
    assert not client.receive().retain
    client.subscribe(topic)
    assert client.receive().retain


def test_own_messages_come_back(broker: Broker, topic: str) -> None:
    """Section 3.8: version 3.1.1 has no No Local."""
    client = broker.connect(version=V311)
    client.subscribe(topic)
    client.publish(topic, b"own")
    assert client.receive().payload == b"own"


def test_a_session_can_change_its_version(broker: Broker, topic: str, unique: Callable[[str], str]) -> None:
    """A client that was upgraded finds what waited for it."""
    client_id = unique("upgraded")
    client = broker.connect(client_id, version=V311, clean=False)
    client.subscribe(topic, qos=1)
    client.disconnect()
    broker.connect().publish(topic, b"waiting", qos=1, content_type="text")
    client = broker.connect(client_id, clean=False)
    message = client.receive()
    assert (message.payload, message.properties) == (b"waiting", {"content_type": "text"})


def test_a_takeover_ends_a_clean_session(broker: Broker, topic: str, client_id: str) -> None:
    """Section 3.1.2.4: the state of a clean session is not reused in any subsequent session."""
    older = broker.connect(client_id, version=V311)
    older.subscribe(topic, qos=1)
    newer = broker.connect(client_id, version=V311, clean=False)
    ends(older)
    assert newer.connack is not None
    assert not newer.connack.session_present
    newer.publish(topic, b"unseen", qos=1)
    assert newer.received_before_fence(newer) == []
