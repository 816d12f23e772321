"""Trees of topics that are searched by filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from sortedcontainers import SortedList

from pyrite.topics.filters import bounds, levels_match

Value = TypeVar("Value")

SMALL = 8_192
"""Number of topics up to which the dictionary is never shrunk."""
SHRINK_FACTOR = 64
"""The dictionary is shrunk when the tree once had this many times as many topics: copying the rest is
quick."""
AFTER_SLASH = b"0"
"""The byte after a slash: the topics below a level are from `level/` to before `level0`."""
MAX_WALK_CHUNK = 64
"""Topics that a walk reads at a time."""
_LAST = b"\xff"
"""Sorts after all UTF-8."""


class _Branch:
    """One level of the tree: the levels below it, and the topic that ends here.

    A branch with a single topic below it stores that topic instead of further branches. So the memory of a
    topic depends on its length, not on the number of its levels.
    """

    __slots__ = ("children", "topic")

    def __init__(self, topic: bytes | None = None) -> None:
        self.children: dict[bytes, _Branch] | None = None
        self.topic = topic

    def goes_on(self, depth: int) -> bool:
        """Return whether the topic stored here has more than `depth` levels."""
        return self.topic is not None and self.topic.count(b"/") >= depth


class TopicTree(Generic[Value]):
    """A dictionary by topic that also finds its topics by filter.

    Reading an exact topic is one look-up in `values`. The tree is walked only for filters; the cost
    depends on the number of topics found, not on the number stored.
    """

    __slots__ = ("_most", "_root", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, Value] = {}
        """Always the same object, so that callers may keep a reference."""
        self._most = SMALL
        """Highest number of topics since the dictionary was last shrunk."""
        self._root = _Branch()

    def __len__(self) -> int:
        return len(self.values)

    def __setitem__(self, topic: bytes, value: Value) -> None:
        if topic not in self.values:
            self._place(topic)
            self._most = max(self._most, len(self.values))
        self.values[topic] = value

    def _place(self, topic: bytes) -> None:
        branch = self._root
        for depth, level in enumerate(topic.split(b"/"), 1):
            if branch.children is None:
                branch.children = {}
            below = branch.children.get(level)
            if below is None:
                branch.children[level] = _Branch(topic)
                return
            if below.goes_on(depth):
                other, below.topic = below.topic, None
                assert other is not None
                below.children = {other.split(b"/")[depth]: _Branch(other)}
            branch = below
        branch.topic = topic

    def pop(self, topic: bytes) -> Value | None:
        """Remove `topic` and return its value, or None if it is missing."""
        value = self.values.pop(topic, None)
        if value is None:
            return None
        path = [self._root]
        levels = topic.split(b"/")
        for level in levels:
            children = path[-1].children
            assert children is not None
            path.append(children[level])
            if path[-1].topic == topic:
                break
        path[-1].topic = None
        for depth in range(len(path) - 1, 0, -1):
            branch, children = path[depth], path[depth - 1].children
            if branch.children or branch.topic is not None:
                break
            assert children is not None
            del children[levels[depth - 1]]
        if len(self.values) < self._most // SHRINK_FACTOR:
            self._shrink()
        return value

    def _shrink(self) -> None:
        """Free memory: a dictionary keeps room for all entries that it ever had."""
        values = dict(self.values)
        self.values.clear()
        self.values.update(values)
        self._most = max(SMALL, len(values))

    def matching(self, topic_filter: bytes) -> Iterator[bytes]:
        """Yield the topics that match a filter. The tree must not change meanwhile."""
        for topic in self.steps(topic_filter):
            if topic is not None:
                yield topic

    def steps(self, topic_filter: bytes) -> Iterator[bytes | None]:
        """Yield the topics that match a filter in short steps, and None for a branch without a match."""
        if b"+" not in topic_filter and b"#" not in topic_filter:
            if topic_filter in self.values:
                yield topic_filter
            return
        levels = topic_filter.split(b"/")
        waiting: list[tuple[Iterator[_Branch], int]] = [(iter((self._root,)), 0)]
        while waiting:
            branches, depth = waiting[-1]
            branch = next(branches, None)
            if branch is None:
                waiting.pop()
                continue
            topic = branch.topic
            level = levels[depth] if depth < len(levels) else None
            found: bytes | None = None
            if level == b"#":  # "sport/#" matches "sport", and everything below it
                found = topic
                waiting.append((self._below(branch), depth))
            elif topic is not None and branch.goes_on(depth):
                if levels_match(levels[depth:], topic.split(b"/"), depth):
                    found = topic
            elif level is None:
                found = topic
            elif level == b"+":
                waiting.append((self._below(branch), depth + 1))
            elif branch.children is not None and level in branch.children:
                waiting.append((iter((branch.children[level],)), depth + 1))
            yield found

    def _below(self, branch: _Branch) -> Iterator[_Branch]:
        """Yield the branches that a wildcard matches below a branch."""
        is_root = branch is self._root
        for name, below in (branch.children or {}).items():
            if not (is_root and name.startswith(b"$")):  # [MQTT-4.7.2-1]
                yield below

    def take_apart(self) -> Iterator[None]:
        """Free the tree in small steps; nothing may use it any more."""
        while self.values:
            self.values.popitem()
            yield
        waiting = [self._root]
        while waiting:
            branch = waiting.pop()
            if branch.children is not None:
                waiting += branch.children.values()
                branch.children = None
            yield


class OrderedTopicTree(TopicTree[Value]):
    """A topic tree that also keeps its topics in order, for lists in pages."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        super().__init__()
        self._order: SortedList[bytes] = SortedList()

    def _place(self, topic: bytes) -> None:
        super()._place(topic)
        self._order.add(topic)

    def pop(self, topic: bytes) -> Value | None:
        """Remove `topic` and return its value, or None if it is missing."""
        value = super().pop(topic)
        if value is not None:
            self._order.remove(topic)
        return value

    def following(self, after: bytes | None, topic_filter: bytes) -> Iterator[bytes]:
        """Yield, in order, the topics after a given one, or all, that share a filter's prefix before its
        wildcards.

        The result includes every match, and some other topics. The tree must not change meanwhile.
        """
        first, last = bounds(topic_filter)
        found: Iterator[bytes]
        if after is None or after < first:
            found = self._order.irange(first, last)
        else:
            found = self._order.irange(after, last, (False, True))
        return found

    def chunk(self, start: bytes, last: bytes, count: int) -> list[bytes]:
        """Return up to `count` topics in order, from `start` up to and including `last`."""
        return list(islice(self._order.irange(start, last), count))

    def first(self, start: bytes) -> bytes | None:
        """Return the first topic that is not before `start`."""
        found: bytes | None = next(self._order.irange(start), None)
        return found

    def count_below(self, level: bytes) -> int:
        """Return the number of topics below a level, without the topic that ends there."""
        count: int = self._order.bisect_left(level + AFTER_SLASH) - self._order.bisect_left(level + b"/")
        return count


def walk(trees: Sequence[OrderedTopicTree[Any]], topic_filter: bytes) -> Iterator[bytes | None]:
    """Yield, in order, the topics of all trees that match a filter, and None for a topic that does not match.

    Each step takes a bounded time. The trees may change between two steps: removed topics may still
    appear, added topics may be missing. Ranges without a match are skipped.
    """
    if b"+" not in topic_filter and b"#" not in topic_filter:
        if any(topic_filter in tree.values for tree in trees):
            yield topic_filter
        return
    levels = topic_filter.split(b"/")
    start, last = bounds(topic_filter)
    count = 1
    while start <= last:
        chunk = trees[0].chunk(start, last, count)
        for tree in trees[1:]:
            chunk = sorted({*chunk, *tree.chunk(start, last, count)})[:count]
        for topic in chunk:
            if topic < start:
                continue
            following = _next_start(levels, topic)
            if following is None:
                start = topic + b"\0"
                yield topic
            else:
                start = following
                yield None
        if len(chunk) < count:
            return
        skipped = start > chunk[-1] + b"\0"
        count = 1 if skipped else min(2 * count, MAX_WALK_CHUNK)


def _next_start(levels: Sequence[bytes], topic: bytes) -> bytes | None:
    """Return None if a topic matches a filter's levels; else the lowest topic that may be the next match."""
    if topic.startswith(b"$") and levels[0] in (b"+", b"#"):
        return b"%"  # the byte after "$" [MQTT-4.7.2-1]
    names = topic.split(b"/")
    for at, level in enumerate(levels):
        if level == b"#":
            return None
        if at == len(names):
            return topic + b"\0"
        if level not in (b"+", names[at]):
            wanted = b"/".join([*names[:at], level])
            if topic < wanted:
                return wanted
            below = wanted + b"/"
            if topic < below and at + 1 < len(levels):
                return below
            return _past(levels, names, at)
    return None if len(levels) == len(names) else _past(levels, names, len(levels))


def _past(levels: Sequence[bytes], names: Sequence[bytes], at: int) -> bytes:
    """Return the lower bound of the topics that follow all those with the same names up to the last `+`
    before `at`."""
    for depth in range(at, 0, -1):
        if levels[depth - 1] == b"+":
            return b"/".join(names[:depth]) + AFTER_SLASH
    return _LAST
