"""Topics level by level: which levels follow one, without a look at all that is below them.

In order, "a", "a-b" and "a/c" follow one another: what is below a level need not come right after the topic
that ends there. So a level has its place where its topic is, if there is one, or else where what is below it
begins: "a" is the place of a topic, "a/" that of a level which has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyrite.topics.tree import AFTER_SLASH, OrderedTopicTree


def children(trees: Sequence[OrderedTopicTree[Any]], stem: bytes, after: bytes | None) -> Iterator[bytes]:
    """Yield the places of the levels that follow `stem`, which ends with a slash or is empty.

    Those after a given place, or all; but of the first levels, none that begins with $. The trees must not
    change meanwhile.
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
            start = b"%"  # which comes next
            continue
        place = level + slash
        if not slash or not any(level in tree.values for tree in trees):
            yield place
        start = _next(stem, place)


def level_at(stem: bytes, place: bytes) -> bytes:
    """Return the level that has a place, as a topic; one whose name is empty ends with a slash itself."""
    return place if place == stem else place.removesuffix(b"/")


def _next(stem: bytes, place: bytes) -> bytes:
    """Return where to go on after a place: all that is below a level without a topic is passed over."""
    level = level_at(stem, place)
    return level + (b"\0" if level == place else AFTER_SLASH)
