"""How messages look as Arrow columns: one row a message when read, run-end encoded when stored."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyrite.storage import query

SCHEMA = query.SCHEMA.insert(7, pa.field("packet_id", pa.int32()))
"""One row a message. `packet_id` is set for QoS 2 only: with it an unfinished exchange survives a crash."""

PROPERTIES = SCHEMA.names[8:]
"""The columns with MQTT 5 properties."""
PROPERTY_FIELDS = [SCHEMA.field(name) for name in PROPERTIES]


def _run_end_encoded(kind: pa.DataType) -> pa.DataType:
    return pa.run_end_encoded(pa.int32(), kind)


STORED = pa.schema(
    [
        pa.field("first_offset", _run_end_encoded(pa.int64()), nullable=False),
        SCHEMA.field("timestamp"),
        pa.field("topic", _run_end_encoded(pa.string()), nullable=False),
        SCHEMA.field("payload"),
        SCHEMA.field("qos"),
        SCHEMA.field("retain"),
        pa.field("client_id", _run_end_encoded(pa.string())),
        SCHEMA.field("packet_id"),
        pa.field("properties", _run_end_encoded(pa.struct(PROPERTY_FIELDS))),
    ]
)
"""What an Arrow segment holds: values that consecutive messages share are stored once (run-end encoding). The
offset of a record batch's first message is stored for all of them, as offsets are consecutive."""

MAX_SHARED_ROWS = 98_304
"""Rows up to which a column of nulls or zeros is a slice of a shared one."""
_MAX_REPEATED_ROWS = 32_768
_MAX_REPEATED_TEXT = 64
_MAX_REPEATED_TEXTS = 32
"""Rows, characters and number of cached text columns: slicing one is faster than repeating a text."""


def plain(stored: pa.RecordBatch) -> pa.RecordBatch:
    """Expand a stored record batch (STORED) to one row a message (SCHEMA)."""
    total = stored.num_rows
    first, time, topic, payload, qos, retain, origin, packet_id, properties = stored.columns
    offset = first.values[0].as_py()
    columns = [
        pa.array(np.arange(offset, offset + total)),
        time,
        _expanded_text(2, topic, total),
        payload,
        qos,
        retain,
        _expanded_text(6, origin, total),
        packet_id,
    ]
    carried = properties.values
    if carried.null_count == len(carried):
        columns += [null_column(number, total) for number in range(8, len(SCHEMA))]
    else:
        lengths = np.diff(properties.run_ends.to_numpy(), prepend=0)
        indices = pa.array(np.repeat(np.arange(len(carried)), lengths))
        for number in range(len(PROPERTY_FIELDS)):
            values = carried.field(number)
            empty = values.null_count == len(values)
            columns.append(null_column(8 + number, total) if empty else values.take(indices))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def stored(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages with consecutive offsets (SCHEMA) as they are stored (STORED)."""
    total = rows.num_rows
    carried = rows.columns[8:]
    if all(column.null_count == total for column in carried):
        properties = pa.RunEndEncodedArray.from_arrays(
            pa.array([total], pa.int32()), pa.nulls(1, pa.struct(PROPERTY_FIELDS))
        )
    else:
        values = pa.StructArray.from_arrays(carried, fields=PROPERTY_FIELDS)
        properties = pa.RunEndEncodedArray.from_arrays(pa.array(range(1, total + 1), pa.int32()), values)
    first = pa.RunEndEncodedArray.from_arrays(pa.array([total], pa.int32()), rows.column(0)[:1])
    columns = [
        first,
        rows.column(1),
        pc.run_end_encode(rows.column(2)),
        rows.column(3),
        rows.column(4),
        rows.column(5),
        pc.run_end_encode(rows.column(6)),
        rows.column(7),
        properties,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STORED)


def null_column(number: int, total: int) -> pa.Array:
    """Return column `number` of SCHEMA, all null: most messages have no properties."""
    if total > MAX_SHARED_ROWS:
        return pa.nulls(total, SCHEMA.field(number).type)
    return _shared_nulls(number).slice(0, total)


@cache
def _shared_nulls(number: int) -> pa.Array:
    kind = SCHEMA.field(number).type
    if not pa.types.is_list(kind):
        return pa.nulls(MAX_SHARED_ROWS, kind)
    # pa.nulls would make as many items as lists.
    buffers = [pa.py_buffer(bytes(MAX_SHARED_ROWS // 8)), pa.py_buffer(bytes(4 * MAX_SHARED_ROWS + 4))]
    items = [pa.array([], kind.value_type)]
    return pa.Array.from_buffers(kind, MAX_SHARED_ROWS, buffers, MAX_SHARED_ROWS, 0, items)


def _expanded_text(number: int, column: pa.RunEndEncodedArray, total: int) -> pa.Array:
    values = column.values
    if len(values) == total:
        return values
    if len(values) > 1 or total > _MAX_REPEATED_ROWS:
        return pc.run_end_decode(column)
    text = values[0].as_py()
    if text is None:
        return null_column(number, total)
    if len(text) > _MAX_REPEATED_TEXT:
        return pc.run_end_decode(column)
    return _repeated(text).slice(0, total)


@lru_cache(_MAX_REPEATED_TEXTS)
def _repeated(text: str) -> pa.Array:
    return pa.repeat(pa.scalar(text), _MAX_REPEATED_ROWS)
