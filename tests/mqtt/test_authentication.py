"""Authentication: by user name and password, and by an exchange of AUTH packets (3.1.3.5, 4.12)."""

from __future__ import annotations

import pytest

from pyrite.protocols.mqtt.packets import Ack, Auth, Connack, Connect, Disconnect, Publish, WillMessage
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.access import METHOD, Guard, answer, hello, let_in
from tests.support.core import V5, V311, Core


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def core(guard: Guard) -> Core:
    return Core(access=guard)


# In one step


def test_the_plug_in_is_given_user_name_and_password(core: Core, guard: Guard) -> None:
    assert core.wire().connect("c", username="ann", password=b"secret").reason == 0
    asked = guard.asked[-1]
    assert (asked.client_id, asked.username, asked.password) == ("c", "ann", b"secret")
    assert asked.address == "127.0.0.1"


@pytest.mark.parametrize(("version", "code"), [(V5, 0x86), (V311, 4)])
def test_a_client_with_a_wrong_password_is_refused(core: Core, version: int, code: int) -> None:
    client = core.wire(version)
    assert client.connect("c", username="ann", password=b"wrong").reason == code
    assert client.closed
    assert core.broker.sessions.by_id == {}
    assert core.broker.figures.connections_refused == 1


def test_a_refused_client_does_not_disconnect_a_client_with_the_same_id(core: Core) -> None:
    client = core.connect("c", username="ann", password=b"secret")
    core.wire().connect("c", username="ann", password=b"wrong")
    assert client.ping()


# In several steps (4.12)


def test_a_client_that_answers_the_challenge_is_accepted(core: Core) -> None:
    client = core.wire()
    client.send(hello())
    assert client.only(Auth) == answer(b"1")
    assert core.broker.sessions.by_id == {}
    client.send(answer(b"2"))
    connack = client.only(Connack)
    assert connack.reason == 0
    assert connack.properties["authentication_method"] == METHOD  # [MQTT-4.12.0-5]
    assert connack.properties["authentication_data"] == b"welcome"
    assert client.ping()


def test_an_exchange_may_have_several_challenges(core: Core) -> None:
    client = core.wire()
    client.send(hello("twice"))
    for _ in range(2):
        assert client.only(Auth) == answer(b"1")
        client.send(answer(b"2"))
    assert client.only(Connack).reason == 0


def test_a_wrong_answer_is_refused(core: Core) -> None:
    client = core.wire()
    client.send(hello())
    client.received()
    client.send(answer(b"3"))
    assert client.only(Connack).reason == Reason.NOT_AUTHORIZED
    assert client.closed


def test_a_client_may_be_refused_without_a_challenge(core: Core) -> None:
    client = core.wire()
    client.send(hello(data=b"no"))
    connack = client.only(Connack)
    assert (connack.reason, connack.properties) == (0x87, {"reason_string": "it said no"})


def test_an_unknown_method_is_refused(core: Core) -> None:
    """[MQTT-4.12.0-1]"""
    client = core.wire()
    client.send(hello(method="ROT13"))
    assert client.only(Connack).reason == Reason.BAD_AUTHENTICATION_METHOD
    assert client.closed


def test_only_auth_and_disconnect_are_allowed_before_connack(core: Core) -> None:
    """[MQTT-3.1.2-30]"""
    reader = core.connect("reader")
    reader.subscribe("#")
    for packet in (Publish(b"a", b"x"), b"\xc0\x00", Connect("c")):
        client = core.wire()
        client.send(hello())
        client.received()
        client.send(packet)
        assert client.only(Connack).reason == Reason.PROTOCOL_ERROR
        assert client.closed
    client = core.wire()
    client.send(hello())
    client.received()
    client.send(Disconnect())
    assert client.received() == []
    assert client.closed
    assert reader.received() == []


@pytest.mark.parametrize(
    "packet",
    [answer(b"2", method="OTHER"), Auth(0x18, {}), answer(b"2", 0x19), answer(b"2", 0x00)],
    ids=["another method", "no method", "re-authenticate", "success"],
)
def test_an_unexpected_auth_before_connack_is_a_protocol_error(core: Core, packet: Auth) -> None:
    client = core.wire()
    client.send(hello())
    client.received()
    client.send(packet)
    assert client.only(Connack).reason == Reason.PROTOCOL_ERROR
    assert client.closed


def test_an_unfinished_exchange_times_out(core: Core) -> None:
    client = core.wire()
    client.send(hello())
    core.tick(20)
    assert client.closed


def test_connect_and_auth_may_arrive_in_one_piece(core: Core) -> None:
    client = core.wire()
    client.send(hello(), answer(b"2"), Publish(b"a", b"x", 1, packet_id=1))
    auth, connack, puback = client.received()
    assert isinstance(auth, Auth)
    assert isinstance(connack, Connack)
    assert isinstance(puback, Ack)


def test_a_connected_client_may_authenticate_again(core: Core) -> None:
    """4.12.1"""
    client = let_in(core)
    client.send(answer(b"hello", 0x19))
    assert client.only(Auth) == answer(b"1")
    assert client.ping(), "others may go on meanwhile"
    client.send(answer(b"2"))
    assert client.only(Auth) == Auth(0, {"authentication_method": METHOD, "authentication_data": b"welcome"})


def test_a_failed_reauthentication_disconnects(core: Core) -> None:
    """[MQTT-4.12.1-2]"""
    reader = core.connect("reader")
    reader.subscribe("w")
    client = core.wire()
    connect = hello()
    connect.will = WillMessage(b"w", b"gone")
    client.send(connect)
    client.send(answer(b"2"))
    client.received()
    client.send(answer(b"hello", 0x19))
    client.received()
    client.send(answer(b"3"))
    assert client.only(Disconnect).reason == Reason.NOT_AUTHORIZED
    assert client.closed
    assert reader.payloads() == [b"gone"]


@pytest.mark.parametrize("packet", [answer(b"hello", 0x19, "OTHER"), answer(b"2", 0x18), answer(b"2", 0x00)])
def test_an_unexpected_auth_after_connack_is_a_protocol_error(core: Core, packet: Auth) -> None:
    """[MQTT-4.12.1-1]"""
    client = let_in(core)
    client.send(packet)
    assert client.only(Disconnect).reason == Reason.PROTOCOL_ERROR


def test_auth_from_a_client_without_a_method_is_a_protocol_error(core: Core) -> None:
    """[MQTT-4.12.0-6]"""
    client = core.connect("c")
    client.send(answer(b"hello", 0x19))
    assert client.only(Disconnect).reason == Reason.PROTOCOL_ERROR
