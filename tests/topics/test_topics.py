"""Topics and filters: what is valid, what matches, and the two trees against the plain definition."""

from __future__ import annotations

import random
import re
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker.core import FEW_MESSAGES, Broker
from pyrite.broker.session import Session
from pyrite.broker.subscriptions import (
    FEW_ROUTES,
    MAX_CACHED_ROUTES,
    Route,
    Subscription,
    SubscriptionTree,
)
from pyrite.topics.filters import InvalidTopic, check_filter, check_topic, matches, split_shared
from pyrite.topics.tree import OrderedTopicTree, walk

# Few names, so that filters and topics meet; one begins with $, which matters in the first level only.
LEVELS = st.sampled_from(["a", "b", "", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool).map(str.encode)


@st.composite
def filters(draw: st.DrawFn) -> bytes:
    levels = draw(st.lists(LEVELS | st.just("+"), min_size=0, max_size=4))
    if not levels or draw(st.booleans()):
        levels.append(draw(st.sampled_from(["#", "+", "a"])))
    return "/".join(levels).encode() or b"+"


def by_the_book(topic_filter: str, topic: str) -> bool:
    """Section 4.7 as a regular expression, apart from the code under test."""
    if topic.startswith("$") and topic_filter.startswith(("+", "#")):
        return False
    if topic_filter == "#":
        return True
    pattern = "/".join("[^/]*" if level == "+" else re.escape(level) for level in topic_filter.split("/"))
    return re.fullmatch(re.sub(r"/\\#$", "(/.*)?", pattern), topic) is not None


@settings(max_examples=300, deadline=None)
@given(filters(), TOPICS)
def test_matching_is_as_the_specification_has_it(topic_filter: bytes, topic: bytes) -> None:
    assert matches(topic_filter, topic) is by_the_book(topic_filter.decode(), topic.decode())


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/x", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("#", "a/$b", True),
        ("a/+", "a/$b", True),
        ("ACCOUNTS", "Accounts", False),
    ],
)
def test_the_examples_of_the_specification(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter.encode(), topic.encode()) is expected
    assert by_the_book(topic_filter, topic) is expected


@settings(max_examples=300, deadline=None)
@given(st.lists(TOPICS, max_size=12), st.lists(TOPICS, max_size=6), filters())
def test_a_topic_tree_finds_the_topics_that_match(
    put: list[bytes], removed: list[bytes], topic_filter: bytes
) -> None:
    tree: OrderedTopicTree[int] = OrderedTopicTree()
    for number, topic in enumerate(put):
        tree[topic] = number
    for topic in removed:
        assert (tree.pop(topic) is not None) is (topic in put)
        put = [other for other in put if other != topic]
    found = list(tree.matching(topic_filter))
    right = sorted({topic for topic in put if matches(topic_filter, topic)})
    assert sorted(found) == right
    assert len(tree) == len(set(put))
    for after in (None, b"", *put, *removed):
        following = list(tree.following(after, topic_filter))
        assert following == sorted(following)
        rest = [topic for topic in right if after is None or topic > after]
        assert [topic for topic in following if matches(topic_filter, topic)] == rest


@settings(max_examples=300, deadline=None)
@given(st.lists(TOPICS, max_size=12), st.lists(TOPICS, max_size=12), filters())
def test_a_walk_finds_in_order_what_matches_in_any_of_the_trees(
    first: list[bytes], second: list[bytes], topic_filter: bytes
) -> None:
    trees: list[OrderedTopicTree[int]] = [OrderedTopicTree(), OrderedTopicTree()]
    for tree, topics in zip(trees, (first, second), strict=True):
        for topic in topics:
            tree[topic] = 1
    found = [topic for topic in walk(trees, topic_filter) if topic is not None]
    assert found == sorted({topic for topic in first + second if matches(topic_filter, topic)})


def test_a_walk_passes_over_what_cannot_match() -> None:
    tree: OrderedTopicTree[int] = OrderedTopicTree()
    for device in range(50):
        for name in range(100):
            tree[b"%02d/%03d" % (device, name)] = 1
    assert len(list(walk((tree,), b"+/050"))) < 300
    assert len(list(walk((tree,), b"07/+"))) < 110


@pytest.mark.parametrize("change", ["remove", "add"])
def test_a_walk_goes_on_while_topics_come_and_go(change: str) -> None:
    tree: OrderedTopicTree[int] = OrderedTopicTree()
    for number in range(1_000):
        tree[b"a/%03d" % number] = 1
    found = []
    for topic in walk((tree,), b"a/#"):
        if topic is not None:
            found.append(topic)
            if change == "remove":
                tree.pop(topic)
            elif not topic.endswith(b"x"):
                tree[topic + b"x"] = 1
    assert [topic for topic in found if not topic.endswith(b"x")] == [b"a/%03d" % n for n in range(1_000)]
    assert found == sorted(set(found))


Change = tuple[str, int, bytes, int, str | None]


@st.composite
def changes(draw: st.DrawFn) -> Change:
    what = draw(st.sampled_from(["add", "add", "remove"]))
    group = draw(st.sampled_from([None, None, "g", "h"]))
    return what, draw(st.integers(0, 2)), draw(filters()), draw(st.integers(0, 2)), group


def who(route: Route) -> tuple[set[Session], dict[tuple[str, frozenset[Session]], int]]:
    """Return who gets the messages of a route: sessions, and the groups with their members."""
    groups: dict[tuple[str, frozenset[Session]], int] = {}
    for group in route.groups:
        key = (group.name, frozenset(member.session for member in group.members))
        groups[key] = groups.get(key, 0) + 1
    return {target.session for target in route.targets}, groups


def test_a_topic_costs_what_it_is_long_whatever_its_levels() -> None:
    """A thousand topics of a hundred levels each, no two of which have much in common."""
    chosen = random.Random(1)
    topics = [b"/".join(chosen.choices([b"a", b"b", b"c"], k=100)) for _ in range(1_000)]
    tracemalloc.start()
    try:
        tree: OrderedTopicTree[int] = OrderedTopicTree()
        before, _ = tracemalloc.get_traced_memory()
        for number, topic in enumerate(topics):
            tree[topic] = number
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000 * 1_500, "bytes a topic"
    assert sorted(tree.matching(b"/".join([b"+"] * 100))) == sorted(topics)
    assert list(tree.matching(topics[0][:-2] + b"/#")) == [topics[0]]


@pytest.mark.parametrize("absent", [b"a/b/x", b"a/b", b"a/b/c/d", b"a/x", b"x"])
def test_removing_what_is_not_there_removes_nothing(absent: bytes) -> None:
    tree = SubscriptionTree()
    session = Session(Broker(), "c")
    there = Subscription(session, b"a/b/c", 1)
    tree.add(there)
    tree.remove(Subscription(session, absent, 1))
    assert tree.count == 1
    assert tree.route(b"a/b/c").targets == (there,)


@pytest.mark.parametrize("topic_filter", [b"a/", b"a//", b"a/+", b"a/#", b"a/x", b"a/xy", b"a/x/", b"a"])
@pytest.mark.parametrize("topic", [b"a", b"a/", b"a//", b"a/x", b"a/xy", b"a/x/", b"a/x/y"])
def test_a_filter_alone_in_the_tree_gets_what_it_matches(topic_filter: bytes, topic: bytes) -> None:
    tree = SubscriptionTree()
    tree.add(Subscription(Session(Broker(), "c"), topic_filter, 1))
    assert bool(tree.route(topic).targets) is matches(topic_filter, topic)


def test_a_filter_costs_what_it_is_long_whatever_its_levels() -> None:
    """A thousand filters of a hundred levels each, no two of which have much in common."""
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


def test_the_oldest_routes_make_room_for_new_ones() -> None:
    tree = SubscriptionTree()
    for number in range(MAX_CACHED_ROUTES + 20_000):
        tree.route(b"%d" % number)
        assert len(tree.routes) <= MAX_CACHED_ROUTES
    assert len(tree.routes) > MAX_CACHED_ROUTES * 0.9
    first, *_, last = tree.routes
    assert int(last) == MAX_CACHED_ROUTES + 19_999
    assert int(first) == MAX_CACHED_ROUTES + 20_000 - len(tree.routes)


def test_routes_are_forgotten_when_few_messages_come() -> None:
    broker = Broker()
    for number in range(20_000):
        broker.subscriptions.route(b"%d" % number)
    held, size = broker.subscriptions.routes, sys.getsizeof(broker.subscriptions.routes)
    for second in range(1, 6):  # more messages than there is time to find routes for
        broker.figures.publish_received += FEW_MESSAGES
        broker.tick(second)
    assert len(held) == 20_000
    for second in range(6, 40):
        broker.tick(second)
    assert broker.subscriptions.routes is held
    assert list(held) == [b"%d" % number for number in range(20_000 - FEW_ROUTES, 20_000)]
    assert sys.getsizeof(held) < size / 10


@settings(max_examples=200, deadline=None)
@given(st.lists(changes(), min_size=1, max_size=15), st.lists(TOPICS, min_size=1, max_size=5))
def test_routes_are_right_after_every_change(steps: list[Change], topics: list[bytes]) -> None:
    """Every topic is routed after every change, so that each route is in the cache at the next one."""
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


@pytest.mark.parametrize("topic", ["", "+", "a/+", "#", "a#", "a\0b", "a/b/c/d"])
def test_a_wrong_topic_is_refused(topic: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic(topic.encode(), 3)


@pytest.mark.parametrize("topic", ["a", "/", " ", "a//b", "$SYS/x"])
def test_a_right_topic_passes(topic: str) -> None:
    check_topic(topic.encode(), 3)


@pytest.mark.parametrize(
    "topic_filter", ["", "a+", "a/b+/c", "#/a", "a/#/b", "a#", "##", "a/++", "\0", "a/b/c/#"]
)
def test_a_wrong_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(InvalidTopic):
        check_filter(topic_filter.encode(), 3)


@pytest.mark.parametrize("topic_filter", ["#", "+", "+/+/#", "/", "a//b", "$SYS/#"])
def test_a_right_filter_passes(topic_filter: str) -> None:
    check_filter(topic_filter.encode(), 3)


@pytest.mark.parametrize(
    "topic_filter", ["$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/#/a"]
)
def test_a_wrong_shared_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(InvalidTopic):
        split_shared(topic_filter.encode())


def test_a_shared_filter_is_a_group_and_a_filter() -> None:
    assert split_shared(b"$share/g/a/#") == ("g", b"a/#")
    assert split_shared(b"$share/g//") == ("g", b"/")
    assert split_shared(b"$shared/g/a") == (None, b"$shared/g/a")
