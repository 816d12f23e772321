"""Columns that Spark asks for: those of the log, and fields of the payload."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructType

from pyrite.spark.decoding import DECODERS, Decoder, readable
from pyrite.spark.options import FORMATS, OptionError
from pyrite.storage.query import COLUMNS, SCHEMA

CORRUPT = "_corrupt"
"""Column for payloads that do not fit the schema."""


class Columns:
    """Turn record batches of the log into the columns that Spark asked for.

    A column named like one of the log's is that column. `_corrupt` is the payload if it does not fit the
    schema. Every other column is a field of the payload.
    """

    def __init__(self, schema: StructType, payload_format: str | None) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        fields = [field for field in self._schema if field.name not in (*COLUMNS, CORRUPT)]
        _check(schema, [field.name for field in fields], payload_format)
        self._decoder: Decoder | None = None
        if payload_format is not None and (fields or CORRUPT in schema.names):
            self._decoder = DECODERS[payload_format](fields)
        wanted = {name for name in schema.names if name in COLUMNS}
        if self._decoder is not None:
            wanted.add("payload")
        # A DataFrame may have no columns; a query needs one.
        self.needed = tuple(name for name in COLUMNS if name in wanted or (not wanted and name == "offset"))
        """Columns to read from the log."""

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return these messages as Spark asked for them, one row each."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._decoder is not None:
            payload = columns["payload"]
            decoded, bad = self._decoder(payload)
            columns |= decoded
            if CORRUPT in self._schema.names:
                kept = payload.filter(bad)
                if pa.types.is_string(self._schema.field(CORRUPT).type):
                    kept = readable(kept)
                nothing = pa.nulls(len(payload), kept.type)
                columns[CORRUPT] = pc.replace_with_mask(nothing, bad, kept)
        wanted = [columns[name] for name in self._schema.names]
        if not wanted:
            return batch.select([])
        return pa.RecordBatch.from_arrays(wanted, schema=self._schema)


def _check(schema: StructType, fields: list[str], payload_format: str | None) -> None:
    """Raise an OptionError for a schema that cannot be read."""
    if fields and payload_format is None:
        raise OptionError(
            f"the schema has a column {fields[0]!r}, which the log does not have "
            f"({', '.join(COLUMNS)}); to read it from the payload, set the option payloadFormat: "
            f"{', '.join(FORMATS)}"
        )
    if payload_format == "text" and len(fields) > 1:
        raise OptionError(f"option payloadFormat: text is one column, the schema has {', '.join(fields)}")
    for field in schema.fields:
        if field.name == CORRUPT:
            if not isinstance(field.dataType, StringType | BinaryType):
                raise OptionError(f"the column {CORRUPT} must have type string or binary")
        elif field.name in COLUMNS:
            expected = from_arrow_type(SCHEMA.field(field.name).type)
            if field.dataType != expected:
                raise OptionError(
                    f"the column {field.name} of the log has type {expected.simpleString()}, "
                    f"not {field.dataType.simpleString()}"
                )
        if not field.nullable and (field.name not in COLUMNS or SCHEMA.field(field.name).nullable):
            raise OptionError(f"the column {field.name} can be null, so it must not be NOT NULL")
