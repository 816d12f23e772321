"""The rows of a DataFrame as messages to publish: which columns they may have, and of which types."""

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

from pyrite.queries import SCHEMA
from pyrite.spark.options import OptionError

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
"""The columns that a message may have, and the types that each may be of."""

EXPECTED = {"user_properties": "map<string,string> or array<struct<key:string,value:string>>"}
"""How to name the types that are made of others."""

DEFAULTS = {"qos": 1, "retain": False}
"""What null stands for, and a column that is missing."""


class Messages:
    """Makes what the broker takes of what Spark gives."""

    def __init__(self, schema: StructType, topic: str | None) -> None:
        for field in schema.fields:
            kinds = KINDS.get(field.name)
            if kinds is None:
                raise OptionError(f"a message has no column {field.name!r}; it may have: {', '.join(KINDS)}")
            if not isinstance(field.dataType, kinds) or not _fits(field.dataType):
                expected = EXPECTED.get(field.name) or " or ".join(kind.typeName() for kind in kinds)
                raise OptionError(
                    f"the column {field.name} is of type {field.dataType.simpleString()}, not {expected}"
                )
        if "payload" not in schema.names:
            raise OptionError("there is no column payload to publish")
        if topic is not None and "topic" in schema.names:
            raise OptionError("there are both a column topic and the option topic: which is it to be?")
        if topic is None and "topic" not in schema.names:
            raise OptionError("there is neither a column topic nor the option topic")
        self._topic = topic
        names = [name for name in KINDS if name in schema.names or name == "topic"]
        self.schema = pa.schema([SCHEMA.field(name) for name in names])
        """The columns as they are staged."""

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as messages; ValueError if one cannot be published."""
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
    """Tell whether what a type is made of is what pairs of texts are made of."""
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
