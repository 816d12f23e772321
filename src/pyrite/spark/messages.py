"""Rows of a DataFrame as messages to publish: allowed columns and their types."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
)

from pyrite.spark.options import OptionError
from pyrite.storage.query import SCHEMA

KINDS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "payload": (StringType, BinaryType),
    "qos": (IntegralType,),
    "retain": (BooleanType,),
    "payload_format": (IntegralType,),
    "message_expiry": (IntegralType,),
    "content_type": (StringType,),
    "response_topic": (StringType,),
    "correlation_data": (StringType, BinaryType),
    "user_properties": (ArrayType, MapType),
}
"""Columns of a message, and the types that each accepts."""

EXPECTED = {"user_properties": "map<string,string> or array<struct<key:string,value:string>>"}
"""Names of nested types in errors."""

DEFAULTS = {"qos": 1, "retain": False}
"""Values for null and for missing columns."""


class Messages:
    """Turn rows of Spark into rows that the broker accepts."""

    def __init__(self, schema: StructType, topic: str | None) -> None:
        for field in schema.fields:
            kinds = KINDS.get(field.name)
            if kinds is None:
                raise OptionError(f"a message has no column {field.name!r}; allowed: {', '.join(KINDS)}")
            if not isinstance(field.dataType, kinds) or not _fits(field.dataType):
                expected = EXPECTED.get(field.name) or " or ".join(kind.typeName() for kind in kinds)
                raise OptionError(
                    f"the column {field.name} has type {field.dataType.simpleString()}, expected {expected}"
                )
        if "payload" not in schema.names:
            raise OptionError("the column payload is missing")
        if topic is not None and "topic" in schema.names:
            raise OptionError("both a column topic and the option topic are given: use one")
        if topic is None and "topic" not in schema.names:
            raise OptionError("no topic: add a column topic or the option topic")
        self._topic = topic
        names = [name for name in KINDS if name in schema.names or name == "topic"]
        self.schema = pa.schema([SCHEMA.field(name) for name in names])
        """Schema of the staged rows."""

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as messages; raise ValueError for a row that cannot be published."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._topic is not None:
            columns["topic"] = pa.repeat(self._topic, batch.num_rows)
        arrays = []
        for field in self.schema:
            column = columns[field.name]
            if pa.types.is_map(column.type):
                column = _pairs(column)
            try:
                column = column.cast(field.type)
            except pa.ArrowInvalid as wrong:
                raise ValueError(f"the column {field.name}: {wrong}") from None
            if column.null_count and field.name in DEFAULTS:
                column = pc.fill_null(column, pa.scalar(DEFAULTS[field.name], field.type))
            if column.null_count and not field.nullable:
                raise ValueError(f"the column {field.name} is null in {column.null_count} rows")
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _fits(kind: DataType) -> bool:
    """True unless the type is a map or list of something other than pairs of strings."""
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    if isinstance(kind, ArrayType):
        pair = kind.elementType
        return (
            isinstance(pair, StructType)
            and pair.names == ["key", "value"]
            and all(isinstance(field.dataType, StringType) for field in pair.fields)
        )
    return True


def _pairs(column: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of pairs."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    return pa.ListArray.from_arrays(
        column.offsets, entries, mask=column.is_null() if column.null_count else None
    )
