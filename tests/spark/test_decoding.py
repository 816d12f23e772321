"""Decoding payloads into columns: no row is lost, and errors are marked. Without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyrite.spark import decoding
from pyrite.spark.columns import Columns
from pyrite.spark.options import OptionError
from pyrite.storage.query import COLUMNS, SCHEMA


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def decode(wanted: StructType, payload_format: str, payloads: list[bytes]) -> list[dict[str, Any]]:
    """Return what Spark would get for these payloads."""
    columns = Columns(wanted, payload_format)
    whole = {name: pa.nulls(len(payloads), SCHEMA.field(name).type) for name in COLUMNS}
    whole |= {"topic": pa.array(["t"] * len(payloads)), "payload": pa.array(payloads, pa.binary())}
    batch = pa.RecordBatch.from_arrays([whole[name] for name in columns.needed], names=list(columns.needed))
    rows: list[dict[str, Any]] = columns.shape(batch).to_pylist()
    return rows


def test_json_values_that_do_not_fit_become_null_and_mark_the_row() -> None:
    wanted = schema(topic=StringType(), device=StringType(), temp=DoubleType(), _corrupt=StringType())
    good = [b'{"device": "d%d", "temp": %d.5, "more": [1]}' % (number, number) for number in range(40)]
    bad = [b"", b"{", b"[]", b"12", b'{"temp": "hot", "device": "x"}', b"\xff", b'{"temp": 1}{"temp": 2}']
    bad += [b'{"temp": NaN}', b'{"temp": 1} {', b"null"]
    rows = decode(wanted, "json", good[:20] + bad + good[20:])
    assert len(rows) == len(good) + len(bad)
    fine = rows[:20] + rows[20 + len(bad) :]
    assert fine == [
        {"topic": "t", "device": f"d{number}", "temp": number + 0.5, "_corrupt": None} for number in range(40)
    ]
    wrong = rows[20 : 20 + len(bad)]
    assert [row["_corrupt"] for row in wrong] == [one.decode(errors="replace") for one in bad]
    assert wrong[4]["device"] == "x", "what fits is kept"
    assert all(row["temp"] is None for row in wrong)


def test_missing_and_null_fields_are_null_and_not_bad() -> None:
    wanted = schema(a=IntegerType(), b=StringType(), _corrupt=BinaryType())
    rows = decode(wanted, "json", [b"{}", b'{"a": null}', b'{"b": 5.10}', b'{"b": {"c":[1,"x",null]}}'] * 10)
    texts = [None, None, "5.10", '{"c":[1,"x",null]}']
    assert rows[:4] == [{"a": None, "b": text, "_corrupt": None} for text in texts]
    assert rows[4:] == rows[:4] * 9


def test_json_of_every_type_is_decoded() -> None:
    wanted = schema(
        byte=ByteType(),
        long=LongType(),
        money=DecimalType(6, 2),
        time=TimestampType(),
        list=ArrayType(LongType()),
        inner=StructType([StructField("at", TimestampType()), StructField("x", FloatType())]),
        map=MapType(StringType(), DoubleType()),
        _corrupt=StringType(),
    )
    value = {
        "byte": -128,
        "long": 2**63 - 1,
        "money": 1234.56,
        "time": "2026-11-15T21:06:24.5+01:00",
        "list": [1, None],
        "inner": {"at": "2026-11-15 20:06:24", "x": 0.5},
        "map": {"a": 1},
    }
    time = datetime(2026, 11, 15, 20, 6, 24, tzinfo=UTC)
    (row,) = decode(wanted, "json", [json.dumps(value).encode()])
    assert row == {
        "byte": -128,
        "long": 2**63 - 1,
        "money": Decimal("1234.56"),
        "time": time.replace(microsecond=500_000),
        "list": [1, None],
        "inner": {"at": time, "x": 0.5},
        "map": [("a", 1.0)],
        "_corrupt": None,
    }
    for name, wrong in [("byte", 128), ("long", 1.5), ("money", 12345.6), ("time", "soon"), ("list", [""])]:
        (row,) = decode(wanted, "json", [json.dumps(value | {name: wrong}).encode()])
        assert row[name] is None
        assert row["_corrupt"] is not None


def test_times_with_and_without_a_zone_are_decoded() -> None:
    wanted = schema(at=TimestampType(), _corrupt=StringType())
    texts = ["2026-11-15T20:06:24Z", "2026-11-15 20:06:24", "2026-11-15", "soon"] * 10
    rows = decode(wanted, "json", [json.dumps({"at": text}).encode() for text in texts])
    time = datetime(2026, 11, 15, 20, 6, 24, tzinfo=UTC)
    assert [row["at"] for row in rows[:4]] == [time, time, datetime(2026, 11, 15, tzinfo=UTC), None]
    assert [row["_corrupt"] is None for row in rows] == [True, True, True, False] * 10
    assert decode(wanted, "text", [text.encode() for text in texts[:3]])[1]["at"] == time


def test_a_deeply_nested_object_is_decoded() -> None:
    lists, objects = b"[" * 600 + b"]" * 600, b'{"x":' * 450 + b"1" + b"}" * 450
    payloads = [b'{"b": %s, "a": 1}' % lists, b'{"b": %s, "a": 1}' % objects, b'{"b": "x", "a": 1}']
    wanted = schema(a=LongType(), b=StringType(), _corrupt=BinaryType())
    rows = decode(wanted, "json", payloads)
    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (1, None), (1, "x")]
    assert [row["_corrupt"] for row in rows] == [*payloads[:2], None]
    unread = b'{"a": 1, "z": %s}' % (b"[" * 10_000 + b"]" * 10_000)
    assert [row["a"] for row in decode(wanted, "json", [unread])] == [1], "no one asks for what is deep"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TimestampType(), "0000-01-01 00:00:00"),
        (TimestampType(), "0000-12-31T23:59:59Z"),
        (TimestampType(), "9999-12-31T23:59:59-05:00"),
        (DateType(), "0000-01-01"),
        (StringType(), "\ud800"),
        (TimestampType(), "\ud800"),
        (DecimalType(6, 2), "\ud800"),
        (MapType(StringType(), LongType()), {"\ud800": 1}),
        (MapType(StringType(), StringType()), {"x": "\udc00"}),
    ],
)
def test_values_that_no_column_can_hold_are_bad_even_when_nested(kind: DataType, text: Any) -> None:
    inner = StructType([StructField("x", kind), StructField("y", LongType())])
    wanted = schema(a=kind, b=inner, c=ArrayType(kind), d=LongType(), _corrupt=StringType())
    for value in ({"a": text}, {"b": {"x": text, "y": 1}}, {"c": [text]}):
        payload = json.dumps(value | {"d": 1})
        fine, bad = decode(wanted, "json", [b'{"d": 1}', payload.encode()])
        nothing = {"a": None, "b": None, "c": None, "d": 1}
        assert fine == nothing | {"_corrupt": None}
        assert bad == nothing | {"_corrupt": payload}


def test_times_are_limited_to_the_years_1_to_9999() -> None:
    wanted = schema(at=TimestampType(), day=DateType(), _corrupt=StringType())
    for year in ("0001-01-01", "9999-12-31"):
        (row,) = decode(wanted, "json", [json.dumps({"at": f"{year}T12:00:00Z", "day": year}).encode()])
        assert (row["at"].isoformat(), row["day"].isoformat()) == (f"{year}T12:00:00+00:00", year)
    assert decode(schema(at=TimestampType()), "text", [b"0000-01-01"]) == [{"at": None}]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["2026-11-15T20:06:24Z", "2026-11-15", "0000-01-01 00:00:00", "9999-12-31T23:59:59-01"]),
).map(lambda value: json.dumps(value, ensure_ascii=False)) | st.one_of(
    st.text(
        st.characters(min_codepoint=0xD7FF, max_codepoint=0xE000, categories=("Cs", "Co")), max_size=3
    ).map(json.dumps),
    st.sampled_from([100, 600, 3_000]).map(lambda depth: "[" * depth + "]" * depth),
    st.sampled_from([100, 450, 3_000]).map(lambda depth: '{"a":' * depth + "1" + "}" * depth),
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e", "z"]), VALUES).map(
    lambda value: f"{{{','.join(f'{json.dumps(name)}:{each}' for name, each in value.items())}}}".encode()
)
PAYLOADS = st.lists(
    OBJECTS
    | st.binary(max_size=12)
    | st.sampled_from([b"{}", b" {} ", b"{}{}", b"{", b"}", b'{"a":', b"1}", b'{"a":1\n}', b'{"a":1,"a":2}']),
    max_size=80,
)
EVERY = schema(
    a=LongType(), b=StringType(), c=DoubleType(), d=TimestampType(), e=IntegerType(), _corrupt=BinaryType()
)


@settings(max_examples=200, deadline=None)
@given(PAYLOADS)
def test_arrow_and_python_decode_json_alike(payloads: list[bytes]) -> None:
    quick = decode(EVERY, "json", payloads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "MAX_ONE_BY_ONE", 2**60)
        assert quick == decode(EVERY, "json", payloads)
    assert len(quick) == len(payloads)
    assert all(row["_corrupt"] in (None, payload) for row, payload in zip(quick, payloads, strict=True))


def test_csv_lines_are_decoded() -> None:
    wanted = schema(device=StringType(), temp=DoubleType(), timestamp=TimestampType(), _corrupt=StringType())
    lines = [b"d1,21.5", b'"d,""2""",22\r\n', b",", b"d3", b"d4,hot", b"d5,1,2", b'"d6,1', b"\xff,1"]
    rows = decode(wanted, "csv", lines)
    assert [(row["device"], row["temp"]) for row in rows] == [
        ("d1", 21.5),
        ('d,"2"', 22.0),
        (None, None),
        (None, None),
        ("d4", None),
        (None, None),
        (None, None),
        (None, None),
    ]
    assert [row["_corrupt"] is not None for row in rows] == [False] * 3 + [True] * 5
    assert decode(wanted, "csv", []) == []


def test_a_csv_line_can_be_long() -> None:
    wanted = schema(device=StringType(), temp=DoubleType(), _corrupt=StringType())
    (row,) = decode(wanted, "csv", [b'"%s",1' % (b"x" * 200_000)])
    assert row == {"device": "x" * 200_000, "temp": 1.0, "_corrupt": None}


@pytest.mark.parametrize("payload_format", ["csv", "text"])
def test_without_payload_columns_every_payload_fits(payload_format: str) -> None:
    rows = decode(schema(topic=StringType(), _corrupt=StringType()), payload_format, [b"a,b", b"", b"\xff"])
    assert rows == [{"topic": "t", "_corrupt": None}] * 3


def test_text_payloads_are_decoded() -> None:
    rows = decode(schema(temp=DoubleType(), _corrupt=BinaryType()), "text", [b"21.5", b"hot", b"\xff", b"-1"])
    assert [row["temp"] for row in rows] == [21.5, None, None, -1.0]
    assert [row["_corrupt"] for row in rows] == [None, b"hot", b"\xff", None]
    rows = decode(schema(value=StringType(), _corrupt=BinaryType()), "text", ["grün".encode(), b"\xff"])
    assert [row["value"] for row in rows] == ["grün", None]
    assert decode(schema(value=BinaryType()), "text", [b"\xff"]) == [{"value": b"\xff"}]


@pytest.mark.parametrize(
    ("wanted", "payload_format", "said"),
    [
        (schema(temp=DoubleType()), None, "a column 'temp', which the log does not have"),
        (schema(a=StringType(), b=StringType()), "text", "text is one column"),
        (schema(offset=StringType()), None, "the column offset of the log has type bigint, not string"),
        (schema(a=StringType(), _corrupt=LongType()), "json", "_corrupt must have type string or binary"),
        (schema(a=ArrayType(LongType())), "csv", "cannot be read from csv"),
        (schema(a=BinaryType()), "json", "cannot be read from JSON"),
        (StructType([StructField("a", LongType(), False)]), "json", "must not be NOT NULL"),
        (StructType([StructField("client_id", StringType(), False)]), None, "must not be NOT NULL"),
    ],
)
def test_an_unsupported_schema_is_refused(wanted: StructType, payload_format: str | None, said: str) -> None:
    with pytest.raises(OptionError) as wrong:
        Columns(wanted, payload_format)
    assert said in str(wrong.value)


def test_only_requested_columns_are_read() -> None:
    assert Columns(schema(topic=StringType(), offset=LongType()), None).needed == ("offset", "topic")
    assert Columns(schema(temp=DoubleType()), "text").needed == ("payload",)
    assert Columns(StructType(), None).needed == ("offset",)
