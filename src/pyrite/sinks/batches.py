"""Convert staged rows to batches of the broker."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyrite.broker.message import Batch, MixedBatch
from pyrite.journal.decoding import batches_in
from pyrite.sinks.rows import ACCEPTED
from pyrite.storage.schema import SCHEMA

MAX_MIXED_REST = 16_383
"""Maximum bytes after the fixed header of a message in a mixed batch."""
MIN_ALIKE = 4
"""Consecutive messages of one topic and size, on average, below which a mixed batch is made."""


def batches_of(rows: pa.RecordBatch, origin: str) -> list[Batch]:
    """Return rows as the smallest possible number of batches."""
    levels = pc.unique(qos_of(rows)).to_pylist()
    plain = not any(_has_value(rows, name) for name in ACCEPTED if name not in ("topic", "payload", "qos"))
    if plain and len(levels) == 1 and _changes(rows) * MIN_ALIKE > rows.num_rows:
        mixed = _mixed(rows, levels[0], origin)
        if mixed is not None:
            return [mixed]
    return [batch for batch, _, _ in batches_in(_completed(rows, origin))]


def qos_of(rows: pa.RecordBatch) -> pa.Array:
    """Return the QoS of each row: 1 unless it says another."""
    if "qos" not in rows.schema.names:
        return pa.repeat(pa.scalar(1, pa.int8()), rows.num_rows)
    return rows.column("qos").fill_null(1)


def _has_value(rows: pa.RecordBatch, name: str) -> bool:
    if name not in rows.schema.names:
        return False
    column = rows.column(name)
    return bool(pc.any(column).as_py()) if name == "retain" else column.null_count < rows.num_rows


def _changes(rows: pa.RecordBatch) -> int:
    """Count the messages whose topic or size differs from the previous one."""
    topics = rows.column("topic").dictionary_encode().indices.to_numpy()
    sizes = pc.binary_length(rows.column("payload")).to_numpy()
    return int(np.count_nonzero((np.diff(topics) != 0) | (np.diff(sizes) != 0)))


def _completed(rows: pa.RecordBatch, origin: str) -> pa.RecordBatch:
    """Return rows with all columns of the log; offsets and times are placeholders."""
    count = rows.num_rows
    defaults = {"qos": 1, "retain": False, "offset": 0, "timestamp": 0, "client_id": origin}
    made = []
    for field in SCHEMA:
        default = pa.scalar(defaults.get(field.name), field.type)
        if field.name == "offset":
            column = pa.array(np.arange(count))
        elif field.name in rows.schema.names:
            column = rows.column(field.name)
            if field.name in defaults:
                column = column.fill_null(default)
        else:
            column = pa.repeat(default, count) if default.is_valid else pa.nulls(count, field.type)
        made.append(column)
    return pa.RecordBatch.from_arrays(made, schema=SCHEMA)


def _mixed(rows: pa.RecordBatch, qos: int, origin: str) -> MixedBatch | None:
    """Return rows without properties as one mixed batch; None if a row is too large."""
    topics = rows.column("topic").dictionary_encode()
    sizes = pc.binary_length(rows.column("topic")).to_numpy()
    gap = 2 if qos else 0
    rest = 2 + sizes + gap + pc.binary_length(rows.column("payload")).to_numpy()
    if rest.max() > MAX_MIXED_REST:
        return None
    heads = np.empty((rows.num_rows, 5), np.uint8)
    heads[:, 0] = 0x30 | qos << 1
    long = rest > 127
    heads[:, 1] = np.where(long, rest & 127 | 128, rest)
    heads[:, 2] = rest >> 7
    heads[:, 3] = sizes >> 8
    heads[:, 4] = sizes & 255
    used = np.ones((rows.num_rows, 5), np.bool_)
    used[:, 2] = long
    ends = np.zeros(rows.num_rows + 1, np.int32)
    np.cumsum(4 + long, out=ends[1:])
    head = pa.Array.from_buffers(
        pa.binary(), rows.num_rows, [None, pa.py_buffer(ends), pa.py_buffer(heads[used])]
    )
    whole = pc.binary_join_element_wise(
        head, rows.column("topic").cast(pa.binary()), bytes(gap), rows.column("payload"), b""
    )
    starts = np.frombuffer(whole.buffers()[1], np.int32, rows.num_rows, whole.offset * 4)
    names = [name.encode() for name in topics.dictionary.to_pylist()]
    return MixedBatch(
        whole.buffers()[2].to_pybytes()[: int(starts[-1] + 5 + rest[-1])],
        starts.tolist(),
        [names[code] for code in topics.indices.to_pylist()],
        (starts + 4 + long + sizes).tolist(),
        gap,
        qos,
        origin,
        -1,
    )
