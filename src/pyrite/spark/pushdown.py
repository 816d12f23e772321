"""Turn Spark's filters on offset, timestamp and topic into a narrower query of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from pyrite.storage.query import FOREVER, SCHEMA, Query
from pyrite.topics.filters import matches

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_TOPIC_BYTES = 65_535
"""Maximum length of a topic in bytes: its length is two bytes on the wire."""
_Comparison = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual


def push(query: Query, filters: Sequence[Filter]) -> tuple[Query | None, list[Filter]]:
    """Narrow a query by filters; return it, or None if no row can pass, and the filters left to Spark."""
    narrowed: Query | None = query
    left = []
    for one in filters:
        if narrowed is None:
            break
        narrowed, exact = _narrow(narrowed, one)
        if not exact:
            left.append(one)
    return narrowed, left


def _narrow(query: Query, one: Filter) -> tuple[Query | None, bool]:
    """Narrow a query by one filter; also return whether the query applies the filter exactly."""
    if isinstance(one, IsNotNull):
        return query, one.attribute[0] in SCHEMA.names and not SCHEMA.field(one.attribute[0]).nullable
    if isinstance(one, _Comparison) and one.attribute in (("offset",), ("timestamp",)):
        return _between(query, one)
    if isinstance(one, EqualTo | EqualNullSafe) and one.attribute == ("topic",):
        return _among(query, [one.value])
    if isinstance(one, In) and one.attribute == ("topic",):
        return _among(query, one.value)
    if isinstance(one, StringStartsWith) and one.attribute == ("topic",):
        return _below(query, one.value), False
    return query, False


def _between(query: Query, one: _Comparison) -> tuple[Query | None, bool]:
    """Narrow the range of offsets or timestamps; both are integers."""
    value = one.value
    is_time = one.attribute == ("timestamp",)
    if is_time and isinstance(value, datetime) and value.tzinfo is not None:
        value = (value - _BEGINNING) // _MICROSECOND
    if type(value) is not int:
        return query, False
    least, most = -(2**63), FOREVER
    if isinstance(one, EqualTo | EqualNullSafe | GreaterThanOrEqual | GreaterThan):
        least = value + isinstance(one, GreaterThan)
    if isinstance(one, EqualTo | EqualNullSafe | LessThanOrEqual | LessThan):
        most = value + (not isinstance(one, LessThan))
    if is_time:
        since = least if query.since is None else max(query.since, least)
        until = most if query.until is None else min(query.until, most)
        return (replace(query, since=since, until=until) if since < until else None), True
    start, stop = max(query.start, least), min(query.stop, most)
    return (replace(query, start=start, stop=stop) if start < stop else None), True


def _among(query: Query, topics: Sequence[object]) -> tuple[Query | None, bool]:
    """Narrow to these topics; an invalid topic is in no log."""
    wanted = [
        topic
        for topic in topics
        if isinstance(topic, str)
        and _is_topic(topic)
        and (not query.topics or any(matches(each.encode(), topic.encode()) for each in query.topics))
    ]
    return (replace(query, topics=tuple(wanted)) if wanted else None), True


def _below(query: Query, prefix: str) -> Query:
    """Narrow to the topics below the last whole level of a prefix; Spark filters the rest."""
    level, slash, _ = prefix.rpartition("/")
    if query.topics or not slash or not level or not _is_topic(f"{level}/x"):
        return query
    return replace(query, topics=(f"{level}/#",))


def _is_topic(text: str) -> bool:
    """True for a valid topic name without wildcards, which would match other topics as a filter."""
    return 0 < len(text.encode()) <= _MAX_TOPIC_BYTES and not {"+", "#", "\0"} & set(text)
