"""Routes: the tree of subscriptions against the plain definition, and the cache in front of it."""

from __future__ import annotations

import random
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker import routes
from pyrite.broker.core import QUIET_MESSAGES, Broker
from pyrite.broker.routes import MAX_CACHED_ROUTES, MIN_CACHED_ROUTES, Route
from pyrite.broker.session import Session
from pyrite.broker.subscriptions import Subscription, SubscriptionTree
from pyrite.topics.filters import matches
from tests.support.topics import TOPICS, filters

Change = tuple[str, int, bytes, int, str | None]


@st.composite
def changes(draw: st.DrawFn) -> Change:
    what = draw(st.sampled_from(["add", "add", "remove"]))
    group = draw(st.sampled_from([None, None, "g", "h"]))
    return what, draw(st.integers(0, 2)), draw(filters()), draw(st.integers(0, 2)), group


def who(route: Route) -> tuple[set[Session], dict[tuple[str, frozenset[Session]], int]]:
    """Return the receivers of a route: sessions, and groups with their members."""
    groups: dict[tuple[str, frozenset[Session]], int] = {}
    for group in route.groups:
        key = (group.name, frozenset(member.session for member in group.members))
        groups[key] = groups.get(key, 0) + 1
    return {target.session for target in route.targets}, groups


@pytest.mark.parametrize("absent", [b"a/b/x", b"a/b", b"a/b/c/d", b"a/x", b"x"])
def test_removing_an_absent_subscription_removes_nothing(absent: bytes) -> None:
    tree = SubscriptionTree()
    session = Session(Broker(), "c")
    there = Subscription(session, b"a/b/c", 1)
    tree.add(there)
    tree.remove(Subscription(session, absent, 1))
    assert tree.count == 1
    assert tree.route(b"a/b/c").targets == (there,)


@pytest.mark.parametrize("topic_filter", [b"a/", b"a//", b"a/+", b"a/#", b"a/x", b"a/xy", b"a/x/", b"a"])
@pytest.mark.parametrize("topic", [b"a", b"a/", b"a//", b"a/x", b"a/xy", b"a/x/", b"a/x/y"])
def test_a_single_filter_gets_exactly_the_topics_that_it_matches(topic_filter: bytes, topic: bytes) -> None:
    tree = SubscriptionTree()
    tree.add(Subscription(Session(Broker(), "c"), topic_filter, 1))
    assert bool(tree.route(topic).targets) is matches(topic_filter, topic)


def test_memory_of_a_filter_depends_on_its_length_not_its_levels() -> None:
    """A thousand filters of a hundred levels each with few common prefixes."""
    chosen = random.Random(1)
    tree = SubscriptionTree()
    session = Session(Broker(), "c")
    filters_ = [b"/".join(chosen.choices([b"+", b"a", b"b"], k=100)) for _ in range(1_000)]
    tracemalloc.start()
    try:
        held = [Subscription(session, one, 0) for one in filters_]
        before, _ = tracemalloc.get_traced_memory()
        for subscription in held:
            tree.add(subscription)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000 * 3_000, "bytes a filter"
    topic = b"/".join(chosen.choices([b"a", b"b"], k=100))
    filters_.append(b"/".join([*topic.split(b"/")[:99], b"#"]))
    held.append(Subscription(session, filters_[-1], 1))
    tree.add(held[-1])
    assert [target.qos for target in tree.route(topic).targets] == [1]
    for subscription in held:
        tree.remove(subscription)
    assert tree.count == 0
    assert tree.route(topic).targets == ()


def test_the_oldest_routes_leave_the_cache_first() -> None:
    tree = SubscriptionTree()
    for number in range(MAX_CACHED_ROUTES + 20_000):
        tree.route(b"%d" % number)
        assert len(tree.cache.routes) <= MAX_CACHED_ROUTES
    assert len(tree.cache.routes) > MAX_CACHED_ROUTES * 0.9
    first, *_, last = tree.cache.routes
    assert int(last) == MAX_CACHED_ROUTES + 19_999
    assert int(first) == MAX_CACHED_ROUTES + 20_000 - len(tree.cache.routes)


def test_the_route_cache_is_bounded_by_the_receivers_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_CACHED_RECEIVERS", 1_000)
    tree, broker = SubscriptionTree(), Broker()
    for number in range(50):
        tree.add(Subscription(Session(broker, f"all-{number}"), b"#"))
        tree.add(Subscription(Session(broker, f"one-{number}"), b"t/%d" % number))
    for _ in range(2):
        for number in range(50):
            assert len(tree.route(b"t/%d" % number).targets) == 51
            assert 0 < sum(len(route.key) for route in tree.cache.shared.values()) <= 1_000
        tree.add(Subscription(Session(broker, "another"), b"nothing"))
    before = len(tree.cache.shared)
    tree.add(Subscription(Session(broker, "another"), b"#"))
    assert before >= 9
    assert not tree.cache.shared


def test_the_route_cache_shrinks_when_traffic_is_low() -> None:
    broker = Broker()
    for number in range(20_000):
        broker.subscriptions.route(b"%d" % number)
    held, size = broker.subscriptions.cache.routes, sys.getsizeof(broker.subscriptions.cache.routes)
    for second in range(1, 6):  # more messages than there is time to find routes for
        broker.figures.publish_received += QUIET_MESSAGES
        broker.tick(second)
    assert len(held) == 20_000
    for second in range(6, 40):
        broker.tick(second)
    assert broker.subscriptions.cache.routes is held
    assert list(held) == [b"%d" % number for number in range(20_000 - MIN_CACHED_ROUTES, 20_000)]
    assert sys.getsizeof(held) < size / 10


@settings(max_examples=200, deadline=None)
@given(st.lists(changes(), min_size=1, max_size=15), st.lists(TOPICS, min_size=1, max_size=5))
def test_cached_routes_are_right_after_every_change(steps: list[Change], topics: list[bytes]) -> None:
    """Every topic is routed after every change, so each route is cached at the next change."""
    broker = Broker()
    tree = SubscriptionTree()
    sessions = [Session(broker, f"c{number}") for number in range(3)]
    held: dict[tuple[int, bytes, str | None], Subscription] = {}
    for what, number, topic_filter, qos, group in steps:
        key = (number, topic_filter, group)
        if what == "add":
            subscription = Subscription(sessions[number], topic_filter, qos)
            assert tree.add(subscription, group) is (key not in held)
            held[key] = subscription
        elif key in held:
            tree.remove(held.pop(key))
        for topic in topics:
            right = [(k, s) for k, s in held.items() if matches(k[1], topic)]
            route = tree.route(topic)
            targets, groups = who(route)
            assert targets == {sessions[k[0]] for k, _ in right if k[2] is None}
            expected: dict[tuple[str, frozenset[Session]], int] = {}
            for group_filter, name in {(k[1], k[2]) for k, _ in right if k[2] is not None}:
                members = frozenset(sessions[k[0]] for k, _ in right if k[1:] == (group_filter, name))
                assert name is not None
                expected[name, members] = expected.get((name, members), 0) + 1
            assert groups == expected
            for target in route.targets:
                mine = [s for k, s in right if k[2] is None and s.session is target.session]
                assert target.qos == max(s.qos for s in mine)  # [MQTT-3.3.4-2]
        assert tree.count == len(held)
        assert tree.shared_count == sum(1 for key in held if key[2] is not None)
