"""Who may connect and what they may do: authentication in one step and in many, and access to topics."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from pyrite.broker.access import Accept, Access, Challenge, Credentials, Exchange, Refuse
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import Ack, Auth, Connack, Connect, Disconnect, Publish, WillMessage
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import V5, V311, Client, Core

METHOD = "ADD-ONE"


class AddOne(Exchange):
    """Asks for the number after the one it names; "no" is refused."""

    def __init__(self, rounds: int, name: str) -> None:
        self.rounds = rounds
        self.name = name

    def step(self, data: bytes | None) -> Accept | Refuse | Challenge:
        if data == b"no":
            return Refuse(0x87, "it said no")
        if data == b"hello":
            return Challenge(b"1")
        if data != b"2":
            return Refuse()
        self.rounds -= 1
        return Challenge(b"1") if self.rounds else Accept(b"welcome", self.name)


class Guard(Access):
    """Knows one user, one method, and who may do what."""

    checks_topics = True

    def __init__(self) -> None:
        self.asked: list[Credentials] = []
        self.published_by: list[str | None] = []
        self.exchanges = 0
        self.closed = self.closed_to_readers = "closed"

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        self.asked.append(replace(credentials))  # the password is forgotten afterwards
        if credentials.username is None:
            return Accept()
        if (credentials.username, credentials.password) == ("ann", b"secret"):
            return Accept(username="ann")
        return Refuse(0x86, "who?")

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        if method != METHOD:
            return None
        self.exchanges += 1
        return AddOne(2 if credentials.client_id == "twice" else 1, f"caller {self.exchanges}")

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        self.published_by.append(credentials.username)
        return not topic.startswith(self.closed)

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        if topic_filter.startswith("caller"):
            return topic_filter == credentials.username
        return not topic_filter.startswith(self.closed_to_readers)


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def core(guard: Guard) -> Core:
    return Core(access=guard)


def hello(client_id: str = "c", data: bytes = b"hello", method: str = METHOD, **more: Any) -> Connect:
    properties = {"authentication_method": method, "authentication_data": data}
    return Connect(client_id, properties={**properties, **more})


def answer(data: bytes, reason: int = 0x18, method: str = METHOD) -> Auth:
    return Auth(reason, {"authentication_method": method, "authentication_data": data})


def let_in(core: Core, client_id: str = "c") -> Client:
    client = core.wire()
    client.send(hello(client_id))
    client.send(answer(b"2"))
    client.received()
    return client


# In one step


def test_a_client_is_asked_for_its_name_and_password(core: Core, guard: Guard) -> None:
    assert core.wire().connect("c", username="ann", password=b"secret").reason == 0
    asked = guard.asked[-1]
    assert (asked.client_id, asked.username, asked.password) == ("c", "ann", b"secret")
    assert asked.address == "127.0.0.1"


@pytest.mark.parametrize(("version", "code"), [(V5, 0x86), (V311, 4)])
def test_a_client_with_a_wrong_password_is_refused(core: Core, version: int, code: int) -> None:
    client = core.wire(version)
    assert client.connect("c", username="ann", password=b"wrong").reason == code
    assert client.closed
    assert core.broker.sessions == {}
    assert core.broker.figures.connections_refused == 1


def test_a_refused_client_does_not_disturb_the_one_of_that_id(core: Core) -> None:
    client = core.connect("c", username="ann", password=b"secret")
    core.wire().connect("c", username="ann", password=b"wrong")
    assert client.ping()


# In several steps (4.12)


def test_a_client_that_answers_the_challenge_is_let_in(core: Core) -> None:
    client = core.wire()
    client.send(hello())
    assert client.only(Auth) == answer(b"1")
    assert core.broker.sessions == {}
    client.send(answer(b"2"))
    connack = client.only(Connack)
    assert connack.reason == 0
    assert connack.properties["authentication_method"] == METHOD  # [MQTT-4.12.0-5]
    assert connack.properties["authentication_data"] == b"welcome"
    assert client.ping()


def test_a_challenge_may_be_followed_by_another(core: Core) -> None:
    client = core.wire()
    client.send(hello("twice"))
    for _ in range(2):
        assert client.only(Auth) == answer(b"1")
        client.send(answer(b"2"))
    assert client.only(Connack).reason == 0


def test_a_client_that_answers_wrongly_is_refused(core: Core) -> None:
    client = core.wire()
    client.send(hello())
    client.received()
    client.send(answer(b"3"))
    assert client.only(Connack).reason == Reason.NOT_AUTHORIZED
    assert client.closed


def test_a_client_may_be_refused_at_once(core: Core) -> None:
    client = core.wire()
    client.send(hello(data=b"no"))
    connack = client.only(Connack)
    assert (connack.reason, connack.properties) == (0x87, {"reason_string": "it said no"})


def test_a_method_that_there_is_not_is_refused(core: Core) -> None:
    """[MQTT-4.12.0-1]"""
    client = core.wire()
    client.send(hello(method="ROT13"))
    assert client.only(Connack).reason == Reason.BAD_AUTHENTICATION_METHOD
    assert client.closed


def test_until_connack_nothing_but_auth_and_disconnect_may_come(core: Core) -> None:
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
def test_a_wrong_auth_while_authenticating_is_a_protocol_error(core: Core, packet: Auth) -> None:
    client = core.wire()
    client.send(hello())
    client.received()
    client.send(packet)
    assert client.only(Connack).reason == Reason.PROTOCOL_ERROR
    assert client.closed


def test_a_client_that_does_not_go_on_authenticating_is_given_up(core: Core) -> None:
    client = core.wire()
    client.send(hello())
    core.tick(20)
    assert client.closed


def test_connect_and_the_answer_may_come_together(core: Core) -> None:
    client = core.wire()
    client.send(hello(), answer(b"2"), Publish(b"a", b"x", 1, packet_id=1))
    auth, connack, puback = client.received()
    assert isinstance(auth, Auth)
    assert isinstance(connack, Connack)
    assert isinstance(puback, Ack)


def test_a_client_may_authenticate_again(core: Core) -> None:
    """4.12.1"""
    client = let_in(core)
    client.send(answer(b"hello", 0x19))
    assert client.only(Auth) == answer(b"1")
    assert client.ping(), "others may go on meanwhile"
    client.send(answer(b"2"))
    assert client.only(Auth) == Auth(0, {"authentication_method": METHOD, "authentication_data": b"welcome"})


def test_a_client_that_fails_to_authenticate_again_is_disconnected(core: Core) -> None:
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
def test_a_wrong_auth_of_a_client_that_is_let_in_is_a_protocol_error(core: Core, packet: Auth) -> None:
    """[MQTT-4.12.1-1]"""
    client = let_in(core)
    client.send(packet)
    assert client.only(Disconnect).reason == Reason.PROTOCOL_ERROR


def test_a_client_without_a_method_may_not_send_auth(core: Core) -> None:
    """[MQTT-4.12.0-6]"""
    client = core.connect("c")
    client.send(answer(b"hello", 0x19))
    assert client.only(Disconnect).reason == Reason.PROTOCOL_ERROR


# Topics


def test_a_client_may_not_publish_where_it_is_not_allowed(core: Core) -> None:
    reader = core.connect("reader")
    reader.subscribe("#")
    for version in (V5, V311):
        client = core.connect("c", version)
        client.publish("closed/x", b"x", qos=0, retain=True)
        assert client.received() == []
        client.publish("closed/x", b"x", qos=1, packet_id=1)
        assert client.only(Ack).reason == (0x87 if version == V5 else 0)
        client.publish("closed/x", b"x", qos=2, packet_id=2)
        ack = client.only(Ack)
        assert (ack.type, ack.reason) == (fields.PUBREC, 0x87 if version == V5 else 0)
        client.publish("open", b"y")
        assert not client.closed
    assert core.broker.figures.messages_dropped == 6, "who cannot be told is at least counted"
    assert reader.payloads() == [b"y", b"y"]
    assert len(core.broker.retained) == 0


def test_what_is_taken_away_is_gone_with_the_next_message(core: Core, guard: Guard) -> None:
    client = core.connect("c")
    for closed, reason in (("closed", 0x10), ("a", 0x87), ("closed", 0x10)):
        guard.closed = closed
        client.publish("a", b"x", qos=1)
        assert client.only(Ack).reason == reason


def test_what_is_not_allowed_by_its_topic_is_not_allowed_by_an_alias(core: Core) -> None:
    client = core.connect("c")
    client.publish("closed/x", b"x", qos=1, packet_id=1, topic_alias=1)
    assert client.only(Ack).reason == 0x87
    client.publish("", b"x", qos=1, packet_id=1, topic_alias=1)
    assert client.only(Ack).reason == 0x87


def test_the_id_of_a_refused_message_of_qos_2_is_free_again(core: Core) -> None:
    """4.3.3: a PUBREC with a failure ends the exchange."""
    reader = core.connect("reader")
    reader.subscribe("#")
    client = core.connect("c")
    client.publish("closed/x", b"x", qos=2, packet_id=1)
    client.publish("open", b"y", qos=2, packet_id=1)
    assert reader.payloads() == [b"y"]


def test_who_has_become_another_has_what_that_one_may_have(core: Core) -> None:
    client, publisher = let_in(core), core.connect("publisher")
    assert client.subscribe("caller 1", "open") == [0, 0]
    client.send(answer(b"hello", 0x19), answer(b"2"))
    client.received()
    publisher.publish("caller 1", b"x")
    publisher.publish("open", b"y")
    assert client.payloads() == [b"y"]


def test_retained_messages_end_with_the_right_to_them(guard: Guard) -> None:
    core = Core(access=guard, clock=count().__next__)  # a turn is over whenever someone looks
    core.connect("publisher").send(*(Publish(b"a/%d" % n, b"x", retain=True) for n in range(1_000)))
    while core.broker.has_interrupted:
        core.broker.take_turns()
    client = core.connect("c")
    client.subscribe("a/#")
    assert len(client.payloads()) < 100
    guard.closed_to_readers = "a"
    session = core.broker.sessions["c"]
    core.broker.prune(session, client.connection.credentials)
    for _ in range(100):
        core.broker.take_turns()
    core.flush()
    assert client.payloads() == []


def test_a_client_may_not_subscribe_where_it_is_not_allowed(core: Core) -> None:
    client = core.connect("c")
    assert client.subscribe("closed/#", "open", "$share/g/closed/#") == [0x87, 0, 0x87]
    assert core.connect("old", V311).subscribe("closed/#", "open") == [0x80, 0]


def test_a_will_where_its_client_may_not_publish_is_refused(core: Core) -> None:
    assert core.wire().connect("c", will=WillMessage(b"closed/x", b"")).reason == 0x87
    assert core.wire(V311).connect("c", will=WillMessage(b"closed/x", b"")).reason == 5
    assert core.broker.sessions == {}


def test_a_client_is_known_by_the_name_it_was_accepted_by(core: Core, guard: Guard) -> None:
    client = let_in(core)
    client.publish("a", b"x")
    assert guard.published_by[-1] == "caller 1"
    client.send(answer(b"hello", 0x19), answer(b"2"))
    client.publish("a", b"x")
    client.publish("b", b"x")
    assert guard.published_by[-1] == "caller 2", "after it has authenticated again"


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$SYS/x"])
def test_no_one_publishes_on_sys(topic: str) -> None:
    core = Core()
    reader = core.connect("reader")
    reader.subscribe("$SYS/#")
    client = core.connect("c")
    client.publish(topic, b"x", qos=1)
    assert client.only(Ack).reason == Reason.NOT_AUTHORIZED
    assert reader.received() == []
    assert core.wire().connect("d", will=WillMessage(topic.encode(), b"")).reason == Reason.NOT_AUTHORIZED
