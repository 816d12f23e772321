"""Topic names and topic filters (MQTT 4.7): what is valid, and which topics match.

Topics are kept as the UTF-8 bytes that travelled, so that no message is ever decoded to be routed.
"""

from __future__ import annotations

from collections.abc import Sequence

SHARE_PREFIX = b"$share/"
MAX_TOPIC = 65_535
"""Bytes of a topic or filter: no MQTT packet takes a longer one [MQTT-4.7.3-3]."""
_LAST = b"\xff"
"""Sorts after all UTF-8."""


class InvalidTopic(ValueError):
    """A topic name or filter that no broker may accept; the message says why."""


def check_topic(topic: bytes, max_levels: int) -> None:
    """Raise InvalidTopic unless messages may be published on `topic` (already known to be UTF-8)."""
    if not topic:
        raise InvalidTopic("a topic name has at least one character")  # [MQTT-4.7.3-1]
    if len(topic) > MAX_TOPIC:
        raise InvalidTopic(f"a topic has at most {MAX_TOPIC} bytes")
    if b"+" in topic or b"#" in topic:
        raise InvalidTopic("a topic name holds no wildcard")  # [MQTT-3.3.2-2]
    if b"\0" in topic:
        raise InvalidTopic("a topic name holds no null character")  # [MQTT-4.7.3-2]
    if topic.count(b"/") >= max_levels:
        raise InvalidTopic(f"a topic has at most {max_levels} levels here")


def check_filter(topic_filter: bytes, max_levels: int) -> None:
    """Raise InvalidTopic unless `topic_filter` is a valid filter, without the parts of a shared one."""
    if not topic_filter:
        raise InvalidTopic("a topic filter has at least one character")  # [MQTT-4.7.3-1]
    if len(topic_filter) > MAX_TOPIC:
        raise InvalidTopic(f"a topic filter has at most {MAX_TOPIC} bytes")
    if b"\0" in topic_filter:
        raise InvalidTopic("a topic filter holds no null character")  # [MQTT-4.7.3-2]
    levels = topic_filter.split(b"/")
    if len(levels) > max_levels:
        raise InvalidTopic(f"a topic filter has at most {max_levels} levels here")
    if topic_filter.count(b"#") != (levels[-1] == b"#"):
        raise InvalidTopic("'#' stands alone, in the last level")  # [MQTT-4.7.1-1]
    if topic_filter.count(b"+") != levels.count(b"+"):
        raise InvalidTopic("'+' fills a whole level")  # [MQTT-4.7.1-2]


def split_shared(topic_filter: bytes) -> tuple[str | None, bytes]:
    """Return (group, filter) of a shared subscription's filter, or (None, filter) of any other."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None, topic_filter
    group, slash, rest = topic_filter[len(SHARE_PREFIX) :].partition(b"/")
    if not group or not slash or not rest:
        raise InvalidTopic("a shared subscription is $share/group/filter")  # [MQTT-4.8.2-1]
    if b"+" in group or b"#" in group:
        raise InvalidTopic("the name of a shared subscription's group holds no wildcard")  # [MQTT-4.8.2-2]
    return group.decode(), rest


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Tell whether `topic` is among those that `topic_filter` asks for."""
    if topic.startswith(b"$") and topic_filter[:1] in (b"+", b"#"):
        return False  # [MQTT-4.7.2-1]
    if topic_filter == b"#":
        return True
    return levels_match(topic_filter.split(b"/"), topic.split(b"/"))


def levels_match(levels: Sequence[bytes], names: Sequence[bytes], at: int = 0) -> bool:
    """Tell whether levels of a filter ask for those of a topic from number `at` on."""
    end = len(names)
    for level in levels:
        if level == b"#":
            return True  # "sport/#" asks for "sport" too
        if at == end or (level != names[at] and level != b"+"):
            return False
        at += 1
    return at == end


def bounds(topic_filter: bytes) -> tuple[bytes, bytes]:
    """Return between what, all topics lie, by their bytes, that a filter asks for; others may, too."""
    stem = topic_filter.partition(b"+")[0].partition(b"#")[0]
    if stem == topic_filter:
        return stem, stem
    return stem.removesuffix(b"/"), stem + _LAST  # "sport/#" asks for "sport" too


def covers(topic_filter: bytes, other: bytes) -> bool:
    """Tell whether `topic_filter` asks for every topic that `other`, a filter or a topic, asks for."""
    if other.startswith(b"$") and topic_filter[:1] in (b"+", b"#"):
        return False
    levels, others = topic_filter.split(b"/"), other.split(b"/")
    for number, level in enumerate(levels):
        if level == b"#":
            return True
        if number >= len(others) or others[number] == b"#" or level not in (b"+", others[number]):
            return False
    return len(levels) == len(others)
