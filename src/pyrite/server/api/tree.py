"""Topics level by level: finds the levels below a level without visiting all topics.

In byte order, "a-b" comes between "a" and "a/c": the topics below a level need not follow the level's own
topic. So the *place* of a level, by which levels are ordered, is "a" if there is a topic "a", and otherwise
"a/", where the topics below it begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyrite.topics.tree import AFTER_SLASH, OrderedTopicTree


def children(trees: Sequence[OrderedTopicTree[Any]], stem: bytes, after: bytes | None) -> Iterator[bytes]:
    """Yield the places of the levels below `stem`, which is empty or ends with a slash.

    Only places after `after` are yielded, if it is given, and no first level that begins with $. The trees
    must not change during the iteration.
    """
    start = stem if after is None else max(stem, _next(stem, after))
    while True:
        found = [topic for tree in trees if (topic := tree.first(start)) is not None]
        if not found:
            return
        topic = min(found)
        if not topic.startswith(stem):
            return
        name, slash, _ = topic[len(stem) :].partition(b"/")
        level = stem + name
        if not stem and name.startswith(b"$"):  # [MQTT-4.7.2-1]
            start = b"%"  # the next byte after $
            continue
        place = level + slash
        if not slash or not any(level in tree.values for tree in trees):
            yield place
        start = _next(stem, place)


def level_at(stem: bytes, place: bytes) -> bytes:
    """Return the topic of the level at a place; an empty level name leaves the trailing slash."""
    return place if place == stem else place.removesuffix(b"/")


def _next(stem: bytes, place: bytes) -> bytes:
    """Return where to continue after a place: topics below a level without a topic are skipped."""
    level = level_at(stem, place)
    return level + (b"\0" if level == place else AFTER_SLASH)
