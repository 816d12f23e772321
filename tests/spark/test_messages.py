"""DataFrames as messages: allowed schemas and conversion of rows. Without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType

from pyrite.spark.messages import Messages
from pyrite.spark.options import OptionError
from pyrite.storage.query import SCHEMA


def shape(fixed: str | None = None, /, **columns: pa.Array) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pydict(columns)
    messages = Messages(from_arrow_schema(batch.schema), fixed)
    shaped = messages.shape(batch)
    assert shaped.schema == messages.schema
    return shaped


def test_topic_and_payload_columns_become_messages() -> None:
    rows = shape(topic=pa.array(["a", "b"]), payload=pa.array(["grün", ""])).to_pylist()
    assert rows == [{"topic": "a", "payload": "grün".encode()}, {"topic": "b", "payload": b""}]


def test_the_option_topic_sets_the_topic_of_every_message() -> None:
    rows = shape("t/u", payload=pa.array([b"\xff", b"2"]))
    assert rows.to_pylist() == [{"topic": "t/u", "payload": b"\xff"}, {"topic": "t/u", "payload": b"2"}]


def test_every_column_of_a_message_is_converted() -> None:
    rows = shape(
        payload=pa.array(["x", "y"]),
        topic=pa.array(["t", "t"]),
        qos=pa.array([2, None], pa.int32()),
        retain=pa.array([True, None]),
        message_expiry=pa.array([60, None], pa.int32()),
        content_type=pa.array(["text/plain", None]),
        response_topic=pa.array(["r", None]),
        correlation_data=pa.array(["c", None]),
        payload_format=pa.array([1, None]),
        user_properties=pa.array([[("a", "1"), ("b", "2")], None], pa.map_(pa.string(), pa.string())),
    )
    first, second = rows.to_pylist()
    pairs = [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]
    assert (first["qos"], first["retain"], first["message_expiry"], first["payload_format"]) == (
        2,
        True,
        60,
        1,
    )
    assert (first["correlation_data"], first["user_properties"]) == (b"c", pairs)
    assert (second["qos"], second["retain"]) == (1, False)
    assert second["user_properties"] is None
    assert shape("t", payload=pa.array(["x"]), user_properties=pa.array([pairs])).to_pylist() == [
        {"topic": "t", "payload": b"x", "user_properties": pairs}
    ]


@pytest.mark.parametrize("name", ["topic", "payload"])
def test_a_null_topic_or_payload_is_refused(name: str) -> None:
    columns = {"topic": pa.array(["t", "t"]), "payload": pa.array(["x", "y"])}
    with pytest.raises(ValueError, match=f"the column {name} is null in 1 row"):
        shape(**columns | {name: pa.array(["x", None])})


def test_a_number_out_of_range_is_reported_with_its_column() -> None:
    with pytest.raises(ValueError, match=r"the column qos: .*300"):
        shape("t", payload=pa.array(["x"]), qos=pa.array([300]))


TEXT = StringType()
PAIR = StructType([StructField("key", TEXT), StructField("value", TEXT)])


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ({"topic": TEXT}, None, "the column payload is missing"),
        ({"payload": TEXT}, None, "add a column topic or the option topic"),
        ({"payload": TEXT, "topic": TEXT}, "t", "both a column topic and the option topic"),
        ({"payload": LongType()}, "t", "the column payload has type bigint, expected string or binary"),
        ({"payload": TEXT, "offset": LongType()}, "t", "a message has no column 'offset'"),
        *(
            (
                {"payload": TEXT, "user_properties": kind},
                "t",
                f"has type {kind.simpleString()}, expected map<string,s",
            )
            for kind in (
                ArrayType(TEXT),
                ArrayType(StructType([StructField("a", TEXT)])),
                ArrayType(StructType([*PAIR.fields, StructField("more", TEXT)])),
                ArrayType(StructType([StructField("key", TEXT), StructField("value", LongType())])),
                MapType(TEXT, LongType()),
            )
        ),
    ],
)
def test_an_invalid_schema_is_refused(columns: dict[str, DataType], topic: str | None, said: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(OptionError) as wrong:
        Messages(schema, topic)
    assert said in str(wrong.value)


def test_columns_read_from_the_log_can_be_written_back() -> None:
    read = from_arrow_schema(SCHEMA)
    kept = [field for field in read.fields if field.name not in ("offset", "timestamp", "client_id")]
    assert set(Messages(StructType(kept), None).schema.names) == {field.name for field in kept}
