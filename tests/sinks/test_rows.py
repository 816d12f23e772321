"""Rows that are no messages are refused when they are staged; all others reach subscribers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyrite.sinks import rows as checks
from pyrite.sinks.staging import Staging
from pyrite.storage.query import SCHEMA, QueryError
from tests.sinks.test_commits import Driver, machine
from tests.support.durable import Machine

__all__ = ["machine"]

LONG = "x" * 65_536


def row(**columns: Any) -> pa.RecordBatch:
    """Make a message that is good, and one with other columns."""
    both: dict[str, list[Any]] = {"topic": ["good", "t"], "payload": [b"", b"1"]}
    for name, value in columns.items():
        both[name] = [both[name][0] if name in both else None, value]
    return pa.record_batch({name: pa.array(both[name], SCHEMA.field(name).type) for name in both})


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"qos": 3}, "column 'qos': expected 0, 1 or 2, not 3"),
        ({"qos": -1}, "column 'qos': expected 0, 1 or 2, not -1"),
        ({"payload_format": 7}, "column 'payload_format': expected 0 or 1, not 7"),
        ({"message_expiry": 2**40}, "'message_expiry': expected 0 to 4294967295 seconds, not 1099511627776"),
        ({"message_expiry": -5}, "'message_expiry': expected 0 to 4294967295 seconds, not -5"),
        ({"content_type": LONG}, "'content_type': expected at most 65535 bytes, not 'xxxx"),
        ({"content_type": "ü" * 32_768}, "... (65536 bytes)"),
        ({"content_type": "a\0"}, "'content_type': expected a text without null characters, not 'a\\x00'"),
        ({"topic": LONG}, "column 'topic': expected at most 65535 bytes"),
        ({"topic": ""}, "column 'topic': expected a nonempty topic name, not ''"),
        ({"topic": "a/#"}, "column 'topic': expected a topic name without wildcards, not 'a/#'"),
        ({"topic": "+/a"}, "column 'topic': expected a topic name without wildcards, not '+/a'"),
        ({"topic": "a\0b"}, "column 'topic': expected a text without null characters"),
        (
            {"response_topic": ""},
            "column 'response_topic': expected a nonempty topic name",
        ),
        ({"response_topic": "a/+"}, "column 'response_topic': expected a topic name without wildcards"),
        ({"correlation_data": LONG.encode()}, "column 'correlation_data': expected at most 65535 bytes"),
        (
            {"user_properties": [{"key": None, "value": "b"}]},
            "a key and a value in every pair, not {'key': N",
        ),
        ({"user_properties": [{"key": "a", "value": None}]}, "column 'user_properties': expected a key and"),
        ({"user_properties": [None]}, "a key and a value in every pair, not None"),
        (
            {"user_properties": [{"key": LONG, "value": ""}]},
            "'user_properties': expected at most 65535 bytes",
        ),
        (
            {"user_properties": [{"key": "", "value": "\0"}]},
            "'user_properties': expected a text without null",
        ),
    ],
)
def test_what_no_message_may_have(tmp_path: Path, columns: dict[str, Any], text: str) -> None:
    batch = row(**columns)
    with pytest.raises(QueryError) as wrong:
        Staging(tmp_path).write("sink", "part", batch.schema, [batch])
    assert text in str(wrong.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_texts_that_are_no_utf_8(tmp_path: Path) -> None:
    topics = pa.array([b"\xff"]).view(pa.string())
    batch = pa.record_batch({"topic": topics, "payload": pa.array([b""])})
    with pytest.raises(QueryError, match=r"column 'topic': .*UTF8"):
        Staging(tmp_path).write("sink", "part", batch.schema, [batch])


def test_a_message_that_fits_into_no_packet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_MESSAGE", 1_000)  # 256 MiB take their time
    pairs = [{"key": "k" * 10, "value": "v" * 77}] * 10
    small = row(payload=b"x" * 62, content_type="x" * 5, user_properties=pairs)
    assert Staging(tmp_path).write("sink", "part", small.schema, [small, small]) == 4
    large = row(payload=b"x" * 65, content_type="x" * 5, user_properties=pairs)
    with pytest.raises(QueryError, match="expected at most 1000 bytes in a message, not 1001"):
        Staging(tmp_path).write("sink", "part", large.schema, [large])


def test_all_that_may_be_reaches_a_subscriber(machine: Machine) -> None:
    subscriber = machine.core.connect("subscriber")
    subscriber.subscribe("#", qos=1)
    text = LONG[1:]
    driver = Driver(machine)
    pairs = [{"key": text, "value": text}, {"key": "", "value": ""}]
    batches = [
        row(topic=text, message_expiry=2**32 - 1, payload_format=1),
        row(content_type=text, response_topic=text, correlation_data=text.encode(), message_expiry=0),
        row(user_properties=pairs, payload_format=0, qos=2),
    ]
    driver.commit(0, driver.stage(*batches))
    assert driver.answers == [(True, "")]
    assert [(one.payload, one.topic.decode()) for one in subscriber.messages()] == [
        (payload, topic) for last in (text, "t", "t") for payload, topic in ((b"", "good"), (b"1", last))
    ]
