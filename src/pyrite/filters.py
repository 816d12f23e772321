"""Topic filters as text (4.7), for the client and for queries of the log."""

from __future__ import annotations

from collections.abc import Sequence


def check_filter(topic_filter: str) -> None:
    """Raise ValueError for an invalid filter (4.7); many brokers would just close the connection."""
    levels = topic_filter.split("/")
    wrong = any(len(level) > 1 and ("+" in level or "#" in level) for level in levels) or "#" in levels[:-1]
    if not topic_filter or "\0" in topic_filter or len(topic_filter.encode()) > 65_535 or wrong:
        raise ValueError(
            f"invalid topic filter {topic_filter[:100]!r}: + must be a whole level, and # the whole "
            "last level"
        )


def levels_of(topic_filter: str) -> list[str]:
    """Split a filter into levels, for `matches`."""
    levels = topic_filter.split("/")
    if levels[0] == "$share" and len(levels) > 2:
        del levels[:2]  # $share/GROUP/FILTER (4.8.2)
    return levels


def matches(levels: Sequence[str], topic: str) -> bool:
    """True if a topic matches the levels of a filter (4.7)."""
    if topic.startswith("$") and levels[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    names = topic.split("/")
    for at, level in enumerate(levels):
        if level == "#":
            return True
        if at >= len(names) or level not in ("+", names[at]):
            return False
    return len(names) == len(levels)
