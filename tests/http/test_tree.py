"""Topics level by level: each level once, as a scan of all topics finds them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.server.api.tree import children, level_at
from pyrite.topics.tree import OrderedTopicTree

LEVELS = st.sampled_from(["", "a", "a-b", "a0", "b", "$S", "ü"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@settings(max_examples=300, deadline=None)
@given(st.sets(TOPICS), st.sets(TOPICS), st.none() | st.lists(LEVELS, min_size=1, max_size=2).map("/".join))
def test_every_level_is_found_once_from_any_cursor(
    created: set[str], kept: set[str], below: str | None
) -> None:
    trees = []
    for topics in (created, kept):
        tree: OrderedTopicTree[bool] = OrderedTopicTree()
        for topic in topics:
            tree[topic.encode()] = True
        trees.append(tree)
    stem = "" if below is None else f"{below}/"
    under = {topic for topic in created | kept if topic.startswith(stem)}
    names = {topic[len(stem) :].partition("/")[0] for topic in under}
    if not stem:
        names = {name for name in names if not name.startswith("$")}

    places = list(children(trees, stem.encode(), None))
    found = [level_at(stem.encode(), place).decode().removeprefix(stem) for place in places]
    assert len(found) == len(set(found))
    assert set(found) == names
    for number, place in enumerate(places):
        assert list(children(trees, stem.encode(), place)) == places[number + 1 :]
        level = level_at(stem.encode(), place)
        for tree, topics in zip(trees, (created, kept), strict=True):
            assert tree.count_below(level) == sum(one.startswith(f"{level.decode()}/") for one in topics)
