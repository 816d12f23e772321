"""Topic names and topic filters (MQTT 4.7): what is valid, and which topics match.

Topics are UTF-8 bytes, as in packets, so that routing a message decodes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyrite.errors import PyriteError

SHARE_PREFIX = b"$share/"
MAX_TOPIC = 65_535
"""Maximum bytes of a topic or filter [MQTT-4.7.3-3]."""
MAX_LEVELS = MAX_TOPIC + 1
"""Maximum levels of a filter where no limit of a broker applies."""
_LAST = b"\xff"
"""Sorts after all UTF-8."""


class InvalidTopic(PyriteError):
    """An invalid topic name or filter."""


def check_topic(topic: bytes, max_levels: int = MAX_LEVELS) -> None:
    """Raise InvalidTopic unless `topic`, which is UTF-8, is a valid topic name."""
    if not topic:
        raise InvalidTopic("a topic name must not be empty")  # [MQTT-4.7.3-1]
    if len(topic) > MAX_TOPIC:
        raise InvalidTopic(f"a topic has at most {MAX_TOPIC} bytes")
    if b"+" in topic or b"#" in topic:
        raise InvalidTopic("a topic name must not contain wildcards")  # [MQTT-3.3.2-2]
    if b"\0" in topic:
        raise InvalidTopic("a topic name must not contain a null character")  # [MQTT-4.7.3-2]
    if topic.count(b"/") >= max_levels:
        raise InvalidTopic(f"a topic has at most {max_levels} levels")


def check_filter(topic_filter: bytes, max_levels: int = MAX_LEVELS) -> None:
    """Raise InvalidTopic unless `topic_filter` is a valid filter, without $share/GROUP/."""
    if not topic_filter:
        raise InvalidTopic("a topic filter must not be empty")  # [MQTT-4.7.3-1]
    if len(topic_filter) > MAX_TOPIC:
        raise InvalidTopic(f"a topic filter has at most {MAX_TOPIC} bytes")
    if b"\0" in topic_filter:
        raise InvalidTopic("a topic filter must not contain a null character")  # [MQTT-4.7.3-2]
    levels = topic_filter.split(b"/")
    if len(levels) > max_levels:
        raise InvalidTopic(f"a topic filter has at most {max_levels} levels")
    if topic_filter.count(b"#") != (levels[-1] == b"#"):
        raise InvalidTopic("'#' must be the whole last level")  # [MQTT-4.7.1-1]
    if topic_filter.count(b"+") != levels.count(b"+"):
        raise InvalidTopic("'+' must be a whole level")  # [MQTT-4.7.1-2]


def split_shared(topic_filter: bytes) -> tuple[str | None, bytes]:
    """Return (group, filter) of a shared subscription's filter, or (None, filter) of any other."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None, topic_filter
    group, slash, rest = topic_filter[len(SHARE_PREFIX) :].partition(b"/")
    if not group or not slash or not rest:
        raise InvalidTopic("expected $share/GROUP/FILTER")  # [MQTT-4.8.2-1]
    if b"+" in group or b"#" in group:
        raise InvalidTopic("the group in $share/GROUP/FILTER must not contain wildcards")  # [MQTT-4.8.2-2]
    return group.decode(), rest


def without_share(topic_filter: bytes) -> bytes:
    """Return FILTER for $share/GROUP/FILTER, and every other filter unchanged, even if it is invalid."""
    parts = topic_filter.split(b"/", 2)
    return parts[2] if parts[0] == b"$share" and len(parts) == 3 else topic_filter


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Return True if a topic matches a filter."""
    if topic.startswith(b"$") and topic_filter[:1] in (b"+", b"#"):
        return False  # [MQTT-4.7.2-1]
    if topic_filter == b"#":
        return True
    return levels_match(topic_filter.split(b"/"), topic.split(b"/"))


def levels_match(levels: Sequence[bytes], names: Sequence[bytes], at: int = 0) -> bool:
    """Return True if the levels of a filter match those of a topic, starting at level number `at`."""
    end = len(names)
    for level in levels:
        if level == b"#":
            return True  # "sport/#" matches "sport" too
        if at == end or (level != names[at] and level != b"+"):
            return False
        at += 1
    return at == end


def bounds(topic_filter: bytes) -> tuple[bytes, bytes]:
    """Return a lower and an upper bound, in byte order, of the topics that a filter matches."""
    stem = topic_filter.partition(b"+")[0].partition(b"#")[0]
    if stem == topic_filter:
        return stem, stem
    return stem.removesuffix(b"/"), stem + _LAST  # "sport/#" matches "sport" too


def covers(topic_filter: bytes, other: bytes) -> bool:
    """Return True if `topic_filter` matches every topic that `other`, a filter or a topic, matches."""
    if other.startswith(b"$") and topic_filter[:1] in (b"+", b"#"):
        return False
    levels, others = topic_filter.split(b"/"), other.split(b"/")
    for number, level in enumerate(levels):
        if level == b"#":
            return True
        if number >= len(others) or others[number] == b"#" or level not in (b"+", others[number]):
            return False
    return len(levels) == len(others)
