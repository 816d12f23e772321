"""Spark's filters as a query: a pushed filter is exact, or Spark applies it again. Without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    Not,
    StringContains,
    StringStartsWith,
)

from pyrite.spark.pushdown import push
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import COLUMNS, Query
from pyrite.topics.filters import matches
from tests.storage.samples import START, Rows, rows_of, write_segments
from tests.support.durable import quick_folder

FIRST = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=START)
TOPICS = st.sampled_from(["a", "a/b", "grün/ß", "a/+", "#", "", "grün", "z"])
COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def filters() -> st.SearchStrategy[Filter]:
    offsets = st.integers(-3, 90)
    times = offsets.map(lambda number: FIRST + timedelta(microseconds=number))
    return st.one_of(
        st.builds(lambda kind, value: kind(("offset",), value), st.sampled_from(COMPARISONS), offsets),
        st.builds(lambda kind, value: kind(("timestamp",), value), st.sampled_from(COMPARISONS), times),
        TOPICS.map(lambda topic: EqualTo(("topic",), topic)),
        st.lists(TOPICS, max_size=3).map(lambda topics: In(("topic",), tuple(topics))),
        st.sampled_from(["a", "a/", "a/b", "grün/", "/", "+/"]).map(
            lambda prefix: StringStartsWith(("topic",), prefix)
        ),
        st.sampled_from(["topic", "client_id"]).map(lambda name: IsNotNull((name,))),
        st.just(Not(EqualTo(("topic",), "a"))),
        st.just(StringContains(("topic",), "/")),
    )


def holds(one: Filter, row: dict[str, Any]) -> bool:
    """Return whether a row passes, as Spark would."""
    if isinstance(one, Not):
        return not holds(one.child, row)
    value = row[one.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(one, IsNotNull):
        return value is not None
    if isinstance(one, In):
        return value in one.value
    if isinstance(one, StringStartsWith):
        return bool(value.startswith(one.value))
    if isinstance(one, StringContains):
        return one.value in value
    wanted = one.value  # type: ignore[attr-defined]
    return bool(
        {
            EqualTo: value == wanted,
            EqualNullSafe: value == wanted,
            GreaterThan: value > wanted,
            GreaterThanOrEqual: value >= wanted,
            LessThan: value < wanted,
            LessThanOrEqual: value <= wanted,
        }[type(one)]
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(filters(), max_size=4), st.sampled_from([(), ("a/#",), ("+/ß",)]))
def test_pushed_and_remaining_filters_together_give_the_exact_rows(
    asked: list[Filter], topics: tuple[str, ...]
) -> None:
    with quick_folder() as folder:
        rows: Rows = rows_of(write_segments(folder / "streams" / "default", [8, 6], last_sealed=False))
        expected = [
            {name: row[name] for name in COLUMNS}
            for row in rows
            if all(holds(one, row) for one in asked)
            and (not topics or any(matches(one.encode(), row["topic"].encode()) for one in topics))
        ]
        query, left = push(Query(topics=topics), asked)
        read = [] if query is None else rows_of(list(LogFolder(folder).read(query)))
        assert [row for row in read if all(holds(one, row) for one in left)] == expected


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("topic",), "a/b"),
        In(("topic",), ("a", "b")),
        GreaterThan(("offset",), 5),
        LessThanOrEqual(("timestamp",), FIRST),
        IsNotNull(("topic",)),
    ],
)
def test_exact_filters_are_not_left_to_spark(one: Filter) -> None:
    assert push(Query(), [one])[1] == []


@pytest.mark.parametrize("topic", ["a\0b", "", "a/+", "x" * 65_536])
def test_an_impossible_topic_matches_no_rows(topic: str) -> None:
    assert push(Query(), [EqualTo(("topic",), topic)]) == (None, [])
    below = StringStartsWith(("topic",), f"{topic}/")
    assert push(Query(), [below]) == (Query(), [below])


def test_a_filter_on_a_time_without_a_zone_is_left_to_spark() -> None:
    naive = GreaterThan(("timestamp",), datetime(2026, 1, 1))
    assert push(Query(), [naive]) == (Query(), [naive])
