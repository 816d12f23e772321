"""Turns: work for one client is interrupted by the clock so that others are served."""

from __future__ import annotations

from itertools import count

import pytest

from pyrite.access.guard import Guard
from pyrite.access.rules import Rule
from pyrite.broker.message import Batch
from pyrite.broker.timers import TURN
from pyrite.protocols.mqtt.packets import Ping, Publish, Subscribe, Wish, encode
from tests.support.core import V5, V311, Client, Core

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


@pytest.fixture
def core() -> Core:
    """A broker whose clock advances by a quarter of a turn with every look."""
    ticks = count()
    return Core(clock=lambda: 100 + next(ticks) * TURN / 4)


def finish(core: Core) -> int:
    """Give interrupted clients turns until none is left; return the number of turns."""
    turns = 0
    while core.broker.turns.has_work:
        core.broker.turns.take()
        core.broker.output.flush()
        turns += 1
        assert turns < 10_000
    return turns


@pytest.mark.parametrize("version", [V5, V311])
def test_a_flood_of_requests_is_handled_in_turns(core: Core, version: int) -> None:
    flooder = core.connect("flooder", version)
    flooder.send(PINGREQ * 100)
    answered = flooder.transport.written.count(PINGRESP)
    assert 0 < answered < 20
    assert flooder.transport.paused
    assert finish(core) > 4
    assert flooder.transport.written.count(PINGRESP) == 100
    assert not flooder.transport.paused


def test_another_client_is_served_between_the_turns(core: Core) -> None:
    flooder, other = core.connect("flooder"), core.connect("other")
    flooder.send(PINGREQ * 100)
    other.send(Ping(12))
    assert other.transport.written.endswith(PINGRESP)
    assert core.broker.turns.has_work


def test_bytes_that_arrive_between_turns_keep_their_order(core: Core) -> None:
    reader = core.connect("reader")
    reader.subscribe("a/#")
    flooder = core.connect("flooder")
    first = b"".join(encode(Publish(b"a/%d" % number, b"x" * number), V5) for number in range(100))
    flooder.send(PINGREQ * 50 + first[:700])
    flooder.send(first[700:])
    flooder.send(Publish(b"a/last", b"last"))
    finish(core)
    assert [m.payload for m in reader.messages()] == [b"x" * n for n in range(100)] + [b"last"]


def test_many_retained_messages_are_sent_in_turns(core: Core) -> None:
    keeper = core.connect("keeper")
    total = 1_000
    for number in range(total):
        keeper.publish(f"kept/{number}", b"x", retain=True)
        finish(core)
    reader = core.connect("reader")
    reader.send(Subscribe(1, [Wish(b"kept/#")]), PINGREQ)
    assert 0 < reader.transport.written.count(b"kept/") < total
    assert not reader.transport.written.endswith(PINGRESP)
    finish(core)
    assert reader.transport.written.count(b"kept/") == total
    assert reader.transport.written.endswith(PINGRESP)


def test_a_client_that_leaves_while_waiting_for_its_turn_is_forgotten(core: Core) -> None:
    flooder = core.connect("flooder")
    flooder.send(PINGREQ * 100)
    flooder.connection.lost()
    finish(core)
    assert "flooder" not in core.broker.sessions.by_id


def test_sessions_that_expire_together_are_ended_in_turns(core: Core) -> None:
    for number in range(100):
        core.connect(f"c{number}", clean_start=False, session_expiry=10).connection.lost()
    other = core.connect("other")
    core.tick(11)
    assert 1 < len(core.broker.sessions.by_id) < 101
    other.send(Ping(12))
    assert other.transport.written.endswith(PINGRESP)
    assert finish(core) > 1
    assert list(core.broker.sessions.by_id) == ["other"]


def test_repeated_ticks_give_due_timers_one_turn(core: Core) -> None:
    for number in range(100):
        core.connect(f"c{number}", clean_start=False, session_expiry=10).connection.lost()
    for _ in range(3):
        core.tick(11)
    left = len(core.broker.sessions.by_id)
    core.broker.turns.take()
    assert left - len(core.broker.sessions.by_id) < 20


@pytest.mark.parametrize("how", ["leaves", "begins anew"])
def test_a_session_with_many_subscriptions_ends_in_turns(core: Core, how: str) -> None:
    leaver, publisher = core.connect("leaver", session_expiry=0 if how == "leaves" else 60), core.connect("p")
    filters = [f"a/{number}/#" for number in range(2_000)]
    for first in range(0, len(filters), 500):
        leaver.send(Subscribe(1, [Wish(name.encode(), 1) for name in filters[first : first + 500]]))
        finish(core)
    leaver.send(Subscribe(2, [Wish(b"a/+/#", 1), Wish(b"b", 1), Wish(b"$share/group/c", 1)]))
    finish(core)
    publisher.publish("a/1/x", b"before", qos=1)
    stored = core.broker.figures.messages_stored
    leaver.drop()
    if how == "begins anew":
        core.connect("leaver")
    tree = core.broker.subscriptions
    assert 1_000 < tree.count < 2_003
    assert tree.shared_count == 0
    assert core.broker.turns.has_work
    for topic in ("a/1/x", "a/2/x", "b"):
        publisher.publish(topic, b"for no one", qos=1)
    assert core.broker.figures.messages_stored == stored == 0
    core.broker.turns.take()
    assert core.broker.turns.has_work, "one turn is not enough"
    finish(core)
    assert tree.count == 0
    assert not tree.route(b"a/1/x").targets


def take_everything(core: Core, client: Client) -> list[bytes]:
    """Acknowledge until nothing more comes; return the payloads in order."""
    payloads: list[bytes] = []
    while True:
        finish(core)
        core.flush()
        messages = client.finish()
        if not messages:
            return payloads
        payloads += [message.payload for message in messages]


@pytest.mark.parametrize("in_flight", [10, 0])
def test_a_client_that_reconnects_before_its_end_was_handled_gets_all_in_order(
    core: Core, in_flight: int
) -> None:
    core.broker.access = Guard({}, [Rule(["anonymous"], publish=["#"], subscribe=["a/#"])], True)
    asked = {"clean_start": False, "session_expiry": 100, "receive_maximum": 10}
    first = core.connect("reader", **asked)
    first.subscribe("a/#", qos=1)
    if not in_flight:
        first.drop()
    for number in range(300):
        core.broker.publishing.publish(Batch(b"a/%d" % number, b"%d" % number, 1))
    finish(core)
    core.flush()
    assert len(first.messages()) == in_flight
    core.broker.admission.changed()  # so that everything is checked again
    second = core.connect("reader", **asked)
    assert core.broker.turns.has_work, "the queue was checked in one go"
    for number in range(300, 320):
        core.broker.publishing.publish(Batch(b"a/%d" % number, b"%d" % number, 1))
    core.flush()
    assert second.payloads() == [], "something was sent before all was checked"
    assert take_everything(core, second) == [b"%d" % number for number in range(320)]


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_unacknowledged_messages_of_a_member_reach_one_other_member(
    core: Core, clean: bool, back: bool
) -> None:
    asked = {"session_expiry": 100, "receive_maximum": 20}
    first = core.connect("first", **asked)
    first.subscribe("$share/group/a/#", qos=1)
    for number in range(300):
        core.broker.publishing.publish(Batch(b"a/%d" % number, b"%d" % number, 1))
    finish(core)
    other = core.connect("other", receive_maximum=20)
    other.subscribe("$share/group/a/#", qos=1)
    received: list[bytes] = []
    first.drop()
    assert core.broker.turns.has_work, "all was handed over in one go"
    if back:
        first = core.connect("first", clean_start=clean, **asked)
        received = take_everything(core, first)
    others = take_everything(core, other)
    assert sorted(received + others, key=int) == [b"%d" % number for number in range(300)]
    assert others == sorted(others, key=int)


def test_the_end_of_a_session_frees_its_queue(core: Core) -> None:
    client = core.connect("reader", clean_start=False, session_expiry=100, receive_maximum=10)
    client.subscribe("$share/group/a/#", "b/#", qos=1)
    for number in range(300):
        core.broker.publishing.publish(Batch(b"ab"[number % 2 :][:1] + b"/%d" % number, b"x", 1))
    finish(core)
    core.connect("reader", clean_start=True)
    finish(core)
    assert core.broker.figures.messages_stored == 0
    assert core.broker.sessions.by_id["reader"].queue.messages == 0
    assert core.broker.subscriptions.count == 0
