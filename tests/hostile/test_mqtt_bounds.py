"""Bounds for one MQTT client: properties, filters and requests; permissions are checked before work."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyrite.access.guard import Guard
from pyrite.access.rules import Rule
from pyrite.broker.access import BAD_USER_NAME_OR_PASSWORD, Accept, Access, Credentials, Refuse
from pyrite.broker.limits import Limits
from pyrite.broker.timers import LATEST, NO_SLOT, Timers
from pyrite.journal.disk import open_journal
from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.fields import MAX_PROPERTIES, MAX_USER_PROPERTY_BYTES
from pyrite.protocols.mqtt.packets import (
    MAX_FILTERS,
    V5,
    V311,
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    Unsubscribe,
    WillMessage,
    Wish,
    encode,
)
from pyrite.protocols.mqtt.reasons import Reason
from pyrite.protocols.mqtt.requests import MAX_REQUEST
from pyrite.storage.options import StreamOptions
from tests.support.core import Client, Core


def pairs(count: int, size: int = 0) -> dict[str, Any]:
    return {"user_property": [("", "x" * size)] * count}


def reason_of(client: Client) -> int:
    """Return the reason of a DISCONNECT."""
    last = client.received()[-1]
    assert isinstance(last, Disconnect | Connack)
    assert client.closed
    return last.reason


# Work per packet


@pytest.mark.parametrize("properties", [pairs(MAX_PROPERTIES + 1), pairs(2, MAX_USER_PROPERTY_BYTES // 2)])
@pytest.mark.parametrize("kind", ["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "PUBACK", "DISCONNECT"])
def test_a_packet_with_too_many_properties_ends_the_connection(kind: str, properties: dict[str, Any]) -> None:
    client = Core().connect("c")
    packets: dict[str, Packet] = {
        "PUBLISH": Publish(b"t", b"x", properties=properties),
        "SUBSCRIBE": Subscribe(1, [Wish(b"t")], properties),
        "UNSUBSCRIBE": Unsubscribe(1, [b"t"], properties),
        "PUBACK": Ack(fields.PUBACK, 1, 0x10, properties),
        "DISCONNECT": Disconnect(0x04, properties),
    }
    client.send(packets[kind])
    assert reason_of(client) == Reason.QUOTA_EXCEEDED


def test_the_maximum_of_properties_reaches_the_subscriber() -> None:
    core = Core()
    reader = core.connect("reader")
    reader.subscribe("t")
    core.connect("c").publish("t", b"x", **pairs(MAX_PROPERTIES))
    assert len(reader.messages()[0].properties["user_property"]) == MAX_PROPERTIES


@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
def test_a_packet_with_too_many_filters_ends_the_connection(kind: type) -> None:
    core = Core()
    client = core.connect("c")
    names = [b"t/%d" % number for number in range(MAX_FILTERS)]
    client.send(Subscribe(1, [Wish(name) for name in names]))
    assert not client.closed
    client.received()
    names.append(b"one more")
    client.send(kind(1, [Wish(name) for name in names] if kind is Subscribe else names))
    assert reason_of(client) == Reason.QUOTA_EXCEEDED


def test_packets_other_than_publish_are_limited_to_a_mebibyte() -> None:
    client = Core().connect("c")
    client.send(b"\x82" + fields.varint(1024 * 1024 + 1))
    assert reason_of(client) == Reason.QUOTA_EXCEEDED


@pytest.mark.parametrize("version", [V5, V311])
def test_packets_before_the_login_are_small(version: int) -> None:
    limits = Limits(before_login=2_000)
    good = Core(limits).wire(version)
    assert good.connect("c", will=WillMessage(b"t", b"x" * 1_900)).reason == 0
    for data in (
        encode(Connect("c", version, will=WillMessage(b"t", b"x" * 2_000)), version),
        encode(Connect("c", version, will=WillMessage(b"t", b"x" * 2_000)), version)[:20],
    ):
        bad = Core(limits).wire(version)
        bad.feed(data)
        bad.core.flush()
        assert bad.closed
        assert bad.connection.received is None, "nothing is kept for it"


# Requests


def test_a_request_is_neither_published_nor_retained() -> None:
    core = Core()
    reader = core.connect("reader")
    reader.subscribe("$pyrite/#", qos=2)
    client = core.connect("c")
    for qos in (0, 1, 2):
        for topic in ("$pyrite/", "$pyrite/x", "$pyrite/topics/create"):
            client.publish(topic, b"made", qos=qos, retain=True)
    assert reader.payloads() == []
    assert not core.broker.retained.values
    late = core.connect("late")
    late.subscribe("$pyrite/#")
    assert late.payloads() == []


def test_requests_are_acknowledged_once_and_handled_once() -> None:
    core = Core()
    client = core.connect("c")
    for dup in (False, True):
        client.publish(
            "$pyrite/topics/create", b"made", qos=2, packet_id=7, dup=dup, response_topic="answers"
        )
    found = client.received()
    assert [one.reason for one in found if isinstance(one, Ack)] == [0, 0]
    assert sum(isinstance(one, Publish) for one in found) == 1


def test_a_will_is_not_handled_as_a_request() -> None:
    client = Core().wire()
    connack = client.connect("c", will=WillMessage(b"$pyrite/topics/delete", b"x", retain=True))
    assert connack.reason == Reason.TOPIC_NAME_INVALID


def ask(client: Client, topic: str, payload: bytes) -> dict[str, str]:
    client.publish(f"$pyrite/{topic}", payload, response_topic="answers")
    return dict(client.messages()[-1].properties["user_property"])


def test_the_size_of_a_request_is_limited() -> None:
    client = Core().connect("c")
    assert str(MAX_REQUEST) in ask(client, "topics/list", b"x" * (MAX_REQUEST + 1))["pyrite-error"]


RULES = [
    Rule(["*", "anonymous"], subscribe=["answers"]),
    Rule(["ann"], pull=["#"], subscribe=["#"]),
    Rule(["bob"], subscribe=["answers", "open"]),
]


class Named(Guard):
    """Accepts every user name."""

    def __init__(self) -> None:
        super().__init__({}, RULES, True)

    def takes_time(self, credentials: Credentials) -> bool:
        return False

    def authenticate(self, credentials: Credentials) -> Accept:
        return Accept(username=credentials.username)


def test_nothing_is_listed_without_permission() -> None:
    core = Core(access=Named())
    client = core.connect("c", username="bob")
    core.broker.catalog.create(b"a secret")
    client.publish("$pyrite/topics/list", b"#", response_topic="answers")
    (answer,) = client.messages()
    assert "not authorized" in dict(answer.properties["user_property"])["pyrite-error"]


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Core]:
    """Return a broker with a log, rules, and a consumer of everything."""
    journal = open_journal(tmp_path / "data", [StreamOptions()])
    core = Core(journal=journal, access=Named())
    ann = core.connect("ann", username="ann")
    assert "pyrite-error" not in ask(ann, "consumers/hidden/create", b'{"filter": "#"}')
    ann.disconnect()
    yield core
    journal.close()


@pytest.mark.parametrize("action", ["create", "fetch", "ack", "delete"])
def test_permissions_are_checked_before_a_consumer_request_is_decoded(logged: Core, action: str) -> None:
    client = logged.connect("c", username="bob")
    answers = {
        ask(client, f"consumers/{name}/{action}", b"{ this is no JSON")["pyrite-error"].replace(name, "NAME")
        for name in ("hidden", "absent")
    }
    assert len(answers) == 1, "and a missing consumer is answered like one of others"
    assert "not authorized" in answers.pop()
    assert "hidden" in logged.broker.consumers


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * MAX_REQUEST,
        b'{"a":' * (MAX_REQUEST // 5),
        b"9" * 60_000,
        b'{"within": ' + b"9" * 60_000 + b"}",
        b'{"within": 1e' + b"9" * 60_000 + b"}",
        b"[" + b"1," * (MAX_REQUEST // 2 - 1) + b"1]",
    ],
    ids=["lists", "objects", "number", "member", "exponent", "many"],
)
@pytest.mark.parametrize("action", ["create", "fetch", "ack"])
def test_decoding_the_largest_request_is_one_short_turn(logged: Core, action: str, payload: bytes) -> None:
    client = logged.connect("c", username="ann")
    took = []
    for _ in range(3):  # one may be long by accident
        began = time.thread_time()
        ask(client, f"consumers/hidden/{action}", payload)
        took.append(time.thread_time() - began)
    assert min(took) < 0.02


# Taking over


def test_a_takeover_by_another_user_gets_no_earlier_answers() -> None:
    core = Core(access=Named())
    core.broker.catalog.create(b"a secret")
    ann = core.connect("shared id", username="ann", clean_start=False, session_expiry=100)
    ann.publish("$pyrite/topics/list", b"#", qos=1, response_topic="answers")
    assert any(isinstance(one, Publish) for one in ann.received())
    ann.drop()
    thief = core.wire()
    assert thief.connect("shared id", clean_start=False, username="bob", session_expiry=100).session_present
    assert thief.messages() == []


def test_a_takeover_by_the_same_user_gets_earlier_answers() -> None:
    core = Core(access=Named())
    ann = core.connect("c", username="ann", clean_start=False, session_expiry=100)
    ann.publish("$pyrite/topics/list", b"#", qos=1, response_topic="answers")
    ann.drop()
    again = core.wire()
    again.connect("c", clean_start=False, username="ann", session_expiry=100)
    assert len(again.messages()) == 1


# Log-ins


class Passwords(Access):
    """Accepts one password."""

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        if credentials.password == b"right":
            return Accept(username=credentials.username)
        return Refuse(BAD_USER_NAME_OR_PASSWORD, "wrong")


def test_a_locked_address_gets_the_same_answer_for_every_name() -> None:
    core = Core(access=Passwords())

    def log_in(name: str, password: bytes) -> tuple[int, object]:
        connack = core.wire().connect("", username=name, password=password)
        return connack.reason, connack.properties.get("reason_string")

    assert log_in("known", b"right")[0] == 0
    for number in range(10):
        log_in(f"stranger {number}", b"guess")
    first = log_in("stranger", b"guess")
    assert first[0] == Reason.CONNECTION_RATE_EXCEEDED
    for _ in range(8):
        assert log_in("known", b"guess") == first
        assert log_in("stranger", b"guess") == first
    core.tick(601)
    assert log_in("known", b"right")[0] == 0


class Thing:
    slot = NO_SLOT
    happened = False

    def due(self) -> None:
        self.happened = True


@pytest.mark.parametrize("when", [1e308, math.inf, math.nan, 1e20, LATEST * 2])
def test_a_timer_at_an_infinite_time_is_never_due(when: float) -> None:
    timers, thing = Timers(), Thing()
    timers.advance(1_000.0)
    timers.set(thing, when)
    assert not timers.advance(100_000.0)
    assert not thing.happened
    timers.cancel(thing)


@pytest.mark.parametrize("when", [-math.inf, -1e308, -1.0, 0.0])
def test_a_timer_left_over_is_due_next(when: float) -> None:
    timers, thing = Timers(), Thing()
    timers.advance(1_000.0)
    timers.set(thing, when)
    timers.advance(1_000.2)
    assert thing.happened


@pytest.mark.parametrize("seconds", [1e308, math.inf, 0.5])
def test_a_login_may_last_for_any_time(seconds: float) -> None:
    class Timed(Access):
        def authenticate(self, credentials: Credentials) -> Accept:
            return Accept(seconds=seconds)

    core = Core(access=Timed())
    client = core.connect("c")
    core.tick(2)
    assert client.closed == (seconds == 0.5)


# Turns


def test_many_busy_clients_share_one_turn() -> None:
    core = Core(clock=time.monotonic)
    clients = [core.connect(f"c{number}") for number in range(20)]
    for client in clients:
        client.connection.interrupt(b"\xc0\x00" * 20_000, 0)
    began = time.thread_time()
    core.broker.turns.take()
    assert time.thread_time() - began < 0.02, "twenty turns would take 40 ms"
    assert core.broker.turns.has_work
    while core.broker.turns.has_work:
        core.broker.turns.take()
        core.broker.output.flush()
    assert all(client.transport.written.count(b"\xd0\x00") == 20_000 for client in clients)


def test_after_a_long_read_the_next_one_waits_for_a_turn() -> None:
    times = iter([0.0, 0.001, *[1.0] * 100])
    core = Core()
    client = core.connect("c")
    core.broker.clock = lambda: next(times)
    client.connection.receive(b"\xc0\x00")
    assert client.transport.paused
    core.broker.turns.take()
    assert not client.transport.paused
