"""Topic filters (4.7): whether one is well formed, and which topics match it."""

from __future__ import annotations

from collections.abc import Sequence


def check_filter(topic_filter: str) -> None:
    """Raise ValueError for what is no filter (4.7); many brokers just close the connection."""
    levels = topic_filter.split("/")
    wrong = any(len(level) > 1 and ("+" in level or "#" in level) for level in levels) or "#" in levels[:-1]
    if not topic_filter or "\0" in topic_filter or len(topic_filter.encode()) > 65_535 or wrong:
        raise ValueError(
            f"{topic_filter[:100]!r} is no topic filter: + and # stand for whole levels, # for the last"
        )


def levels_of(topic_filter: str) -> list[str]:
    """Return the levels of a filter, as `matches` wants them."""
    levels = topic_filter.split("/")
    if levels[0] == "$share" and len(levels) > 2:
        del levels[:2]  # $share/GROUP/FILTER (4.8.2)
    return levels


def matches(levels: Sequence[str], topic: str) -> bool:
    """Return whether a topic matches a filter, which comes as its levels (4.7)."""
    if topic.startswith("$") and levels[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    names = topic.split("/")
    for at, level in enumerate(levels):
        if level == "#":
            return True
        if at >= len(names) or level not in ("+", names[at]):
            return False
    return len(names) == len(levels)
