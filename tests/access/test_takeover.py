"""A client that resumes a session with many subscriptions as another user: they are checked in turns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from pyrite.access.guard import Guard
from pyrite.access.rules import Rule
from pyrite.broker.access import Accept, Credentials
from pyrite.broker.subscribing import MAX_PRUNED_AT_ONCE
from pyrite.protocols.mqtt.packets import Connack, Connect, Publish, Subscribe, Wish
from pyrite.protocols.mqtt.reasons import Reason
from tests.support.core import Client, Core

FILTERS = [f"{number % 2}/{number}" for number in range(4 * MAX_PRUNED_AT_ONCE)]
EXPIRY = 100


class Named(Guard):
    """Rules for users that log in with their name alone."""

    def takes_time(self, credentials: Credentials) -> bool:
        return False

    def authenticate(self, credentials: Credentials) -> Accept:
        return Accept(username=credentials.username)


def rules(**subscribe: list[str]) -> Named:
    """Return rules that allow users to subscribe to filters, and everyone to publish."""
    users = [Rule([name], publish=["#"], subscribe=filters) for name, filters in subscribe.items()]
    return Named({}, users, anonymous=True)


@pytest.fixture
def core() -> Core:
    """A broker with a clock by which two steps fill a turn; ann may subscribe to more than bob and eve."""
    access = rules(ann=["#"], bob=["0/#"], eve=["1/#"], anonymous=[])
    ticks = count()
    return Core(access=access, clock=lambda: next(ticks) / 1_000)


def arrive(core: Core, user: str, clean_start: bool = False) -> Client:
    """Send CONNECT, and leave the turns to `finish`."""
    client = core.wire()
    properties: dict[str, Any] = {"session_expiry": EXPIRY}
    client.send(Connect("c", 5, clean_start, username=user, password=b"", properties=properties))
    return client


def finish(core: Core, enough: Callable[[], bool] = lambda: False) -> None:
    """Take turns until all work is done, or until it is enough."""
    while core.broker.turns.has_work and not enough():
        core.broker.turns.take()
        core.flush()


def first(core: Core) -> Client:
    """Connect as ann, and subscribe to all filters."""
    client = arrive(core, "ann")
    client.received()
    client.send(Subscribe(1, [Wish(one.encode()) for one in FILTERS]))
    finish(core)
    client.received()
    return client


def filters_of(core: Core) -> set[str]:
    return {one.decode() for one in core.broker.sessions.by_id["c"].subscriptions}


def test_only_subscriptions_that_the_new_user_may_have_are_left(core: Core) -> None:
    ann = first(core)
    bob = arrive(core, "bob")
    assert ann.closed
    assert bob.received() == []
    finish(core)
    (connack,) = bob.received()
    assert isinstance(connack, Connack)
    assert connack.session_present
    assert filters_of(core) == {one for one in FILTERS if one.startswith("0/")}


def test_no_message_is_sent_before_all_subscriptions_are_checked(core: Core) -> None:
    first(core)
    bob = arrive(core, "bob")
    publisher = core.connect("publisher")
    for topic in FILTERS:
        publisher.publish(topic)
    finish(core)
    assert [type(one) for one in bob.received()] == [Connack]
    for topic in FILTERS:
        publisher.publish(topic)
    finish(core)
    assert [one.topic.decode()[0] for one in bob.received() if isinstance(one, Publish)] == ["0"] * 32


@pytest.mark.parametrize("clean_start", [False, True])
def test_the_last_of_several_connections_gets_the_session(core: Core, clean_start: bool) -> None:
    first(core)
    bob = arrive(core, "bob")
    eve = arrive(core, "eve", clean_start)
    finish(core)
    (connack,) = bob.received()
    assert isinstance(connack, Connack)
    assert connack.reason == Reason.SERVER_BUSY
    assert bob.closed
    (connack,) = eve.received()
    assert isinstance(connack, Connack)
    assert connack.reason == 0
    assert connack.session_present is not clean_start
    assert all(one.startswith("1/") for one in filters_of(core))


def test_a_session_whose_new_client_gives_up_expires(core: Core) -> None:
    first(core)
    bob = arrive(core, "bob")
    bob.drop()
    finish(core)
    assert "c" in core.broker.sessions.by_id
    core.tick(EXPIRY + 1)
    finish(core)
    assert "c" not in core.broker.sessions.by_id


def test_rules_that_change_meanwhile_are_in_force(core: Core) -> None:
    first(core)
    bob = arrive(core, "bob")
    finish(core, enough=lambda: len(filters_of(core)) < len(FILTERS) * 3 // 4)
    assert bob.received() == []
    core.broker.access = rules(bob=["1/#"])
    core.broker.access_changed()
    finish(core)
    assert [type(one) for one in bob.received()] == [Connack]
    assert filters_of(core) <= {one for one in FILTERS if one.startswith("1/")}
