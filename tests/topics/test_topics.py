"""Topics and filters: validity, matching, and the ordered tree of topics, against a plain definition."""

from __future__ import annotations

import random
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.topics.filters import InvalidTopic, check_filter, check_topic, matches, split_shared
from pyrite.topics.tree import OrderedTopicTree, walk
from tests.support.topics import TOPICS, filters


def by_the_book(topic_filter: str, topic: str) -> bool:
    """Match by section 4.7 as a regular expression, independent of the code under test."""
    if topic.startswith("$") and topic_filter.startswith(("+", "#")):
        return False
    if topic_filter == "#":
        return True
    pattern = "/".join("[^/]*" if level == "+" else re.escape(level) for level in topic_filter.split("/"))
    return re.fullmatch(re.sub(r"/\\#$", "(/.*)?", pattern), topic) is not None


@settings(max_examples=300, deadline=None)
@given(filters(), TOPICS)
def test_matching_agrees_with_the_specification(topic_filter: bytes, topic: bytes) -> None:
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
def test_the_examples_of_the_specification_match(topic_filter: str, topic: str, expected: bool) -> None:
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
def test_a_walk_over_several_trees_finds_matches_in_order(
    first: list[bytes], second: list[bytes], topic_filter: bytes
) -> None:
    trees: list[OrderedTopicTree[int]] = [OrderedTopicTree(), OrderedTopicTree()]
    for tree, topics in zip(trees, (first, second), strict=True):
        for topic in topics:
            tree[topic] = 1
    found = [topic for topic in walk(trees, topic_filter) if topic is not None]
    assert found == sorted({topic for topic in first + second if matches(topic_filter, topic)})


def test_a_walk_skips_branches_that_cannot_match() -> None:
    tree: OrderedTopicTree[int] = OrderedTopicTree()
    for device in range(50):
        for name in range(100):
            tree[b"%02d/%03d" % (device, name)] = 1
    assert len(list(walk((tree,), b"+/050"))) < 300
    assert len(list(walk((tree,), b"07/+"))) < 110


@pytest.mark.parametrize("change", ["remove", "add"])
def test_a_walk_continues_while_topics_come_and_go(change: str) -> None:
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


def test_memory_of_a_topic_depends_on_its_length_not_its_levels() -> None:
    """A thousand topics of a hundred levels each with few common prefixes."""
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


@pytest.mark.parametrize("topic", ["", "+", "a/+", "#", "a#", "a\0b", "a/b/c/d"])
def test_an_invalid_topic_is_refused(topic: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic(topic.encode(), 3)


@pytest.mark.parametrize("topic", ["a", "/", " ", "a//b", "$SYS/x"])
def test_a_valid_topic_is_accepted(topic: str) -> None:
    check_topic(topic.encode(), 3)


@pytest.mark.parametrize(
    "topic_filter", ["", "a+", "a/b+/c", "#/a", "a/#/b", "a#", "##", "a/++", "\0", "a/b/c/#"]
)
def test_an_invalid_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(InvalidTopic):
        check_filter(topic_filter.encode(), 3)


@pytest.mark.parametrize("topic_filter", ["#", "+", "+/+/#", "/", "a//b", "$SYS/#"])
def test_a_valid_filter_is_accepted(topic_filter: str) -> None:
    check_filter(topic_filter.encode(), 3)


@pytest.mark.parametrize(
    "topic_filter", ["$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/#/a"]
)
def test_an_invalid_shared_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(InvalidTopic):
        split_shared(topic_filter.encode())


def test_a_shared_filter_consists_of_group_and_filter() -> None:
    assert split_shared(b"$share/g/a/#") == ("g", b"a/#")
    assert split_shared(b"$share/g//") == ("g", b"/")
    assert split_shared(b"$shared/g/a") == (None, b"$shared/g/a")
