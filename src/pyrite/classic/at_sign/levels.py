"""Topic levels, as nested dictionaries."""

from __future__ import annotations

from typing import Any


class Level(list[Any]):
    """A topic level: the levels below it by name, and its value, which is what is printed."""

    wanted = False
    """True if a client subscribed to this level, and not only to one below."""


def place(tree: dict[str, Level], topic: str, value: object) -> Level:
    """Return the level of a topic in nested dictionaries; missing levels are created with a value."""
    for name in topic.split("/"):
        level = tree.setdefault(name, Level([{}, value]))
        tree = level[0]
    return level
