"""Schemas: topic filters as patterns, and errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyrite.pipeline.errors import PipelineError
from pyrite.pipeline.schemas import TopicSchema, read_schemas
from pyrite.topics.filters import matches

TOPICS = ["a", "a/b", "a/b/c", "a//c", "ab", "a.b", "$SYS/a", "x/b/c", "a/b/c/d"]


def python_pattern(pattern: str) -> str:
    """Convert a pattern with Java's quotes to Python's."""
    return re.sub(r"\\Q(.*?)\\E", lambda found: re.escape(found[1]), pattern)


@pytest.mark.parametrize("topic_filter", ["a", "a/b", "a/+/c", "+/b/c", "a/#", "#", "+", "a/+", "a.b"])
def test_the_pattern_of_a_schema_matches_as_the_broker_does(topic_filter: str) -> None:
    pattern = python_pattern(TopicSchema("x", topic_filter, {}).pattern)
    for topic in TOPICS:
        found = re.search(pattern, topic) is not None
        assert found == matches(topic_filter.encode(), topic.encode()), topic


def test_the_schemas_of_a_new_project_are_valid() -> None:
    import pyrite.pipeline

    (schema,) = read_schemas(Path(pyrite.pipeline.__file__).parent / "template" / "schemas.toml")
    assert schema.silver == "silver_telemetry"
    assert schema.numbers == ("temperature", "vibration", "battery", "count")
    assert schema.ddl.startswith("`time` timestamp, `temperature` double")


def test_every_name_of_a_numeric_type_is_recognised() -> None:
    names = "byte tinyint short SMALLINT int integer long bigint float real Double dec decimal numeric"
    kinds = [*names.split(), "decimal(9, 3)", "dec(4)", "int NOT NULL", " long COMMENT 'a count'"]
    fields = {f"n{number}": kind for number, kind in enumerate(kinds)}
    others = [
        "string",
        "boolean",
        "date",
        "timestamp",
        "binary",
        "interval day",
        "array<int>",
        "map<int, int>",
    ]
    fields |= {f"other{number}": kind for number, kind in enumerate(others)}
    assert TopicSchema("x", "a", fields).numbers == tuple(f"n{number}" for number in range(len(kinds)))


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("a/+", "+/b", True),
        ("#", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "+/b/c", True),
        ("a/b", "a/c", False),
        ("a/+", "a/b/c", False),
        ("a/+", "a", False),
        ("+/b", "+/c", False),
        ("a/#", "b/#", False),
        ("#", "$SYS/a", False),
        ("$SYS/+", "$SYS/a", True),
    ],
)
def test_schemas_that_share_a_topic_are_refused(tmp_path: Path, one: str, other: str, overlap: bool) -> None:
    path = tmp_path / "schemas.toml"
    for topics in ((one, other), (other, one)):
        sections = zip(("x", "y"), topics, strict=True)
        path.write_text(
            "".join(f"[{name}]\ntopic = '{topic}'\nfields.b = 'int'\n" for name, topic in sections)
        )
        if overlap:
            with pytest.raises(PipelineError, match=r"\[x\] and \[y\]: a topic may match both"):
                read_schemas(path)
        else:
            assert [schema.topic for schema in read_schemas(path)] == list(topics)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no schema"),
        ("[A]\n", "must consist of lower-case letters"),
        ("[a]\ntopic = 'x'\n", "expected topic"),
        ("[a]\ntopic = 'x/#/y'\n[a.fields]\nb = 'int'\n", "'x/#/y'"),
        ("[a]\ntopic = 'x'\n[a.fields]\n", "expected at least one field"),
        ("[a]\ntopic = 'x'\n[a.fields]\n'o-o' = 'int'\n", "invalid field name 'o-o'"),
        ("[a]\ntopic = 'x'\nformat = 'xml'\n[a.fields]\nb = 'int'\n", "expected one of json, csv"),
        ("[a]\ntopic = 'x'\ndevice = 2\n[a.fields]\nb = 'int'\n", "a level of the topic (1 to 1)"),
        ("[a]\ntopic = 'x'\ntime = 'c'\n[a.fields]\nb = 'int'\n", "no such field"),
        ("[a]\ntopic = 'x'\ntime = 'b'\ntime_unit = 'h'\n[a.fields]\nb = 'int'\n", "s, ms, us"),
        ("[a]\ntopic = 'x'\n[a.fields]\nb = 1\n", "expected a Spark type"),
        ("[a", "schemas.toml"),
    ],
)
def test_a_mistake_in_a_schema_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "schemas.toml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=re.escape(said)):
        read_schemas(path)
