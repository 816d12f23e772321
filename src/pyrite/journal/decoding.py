"""Record batches from the log become the broker's batches. HOT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pyrite.broker.message import Batch, Properties
from pyrite.storage.schema import PROPERTIES


def batches_in(
    rows: pa.RecordBatch, keep: np.ndarray[Any, Any] | None = None
) -> Iterator[tuple[Batch, int, int]]:
    """Yield the messages of a record batch as batches, each with its first offset and its time.

    `keep` selects rows. Consecutive messages that differ only in their payloads become one batch.
    """
    if keep is not None:
        rows = rows.filter(pa.array(keep))
    count = rows.num_rows
    if not count:
        return
    offsets = rows.column(0).to_numpy()
    times = rows.column(1).view(pa.int64()).to_numpy()
    topics: pa.DictionaryArray = rows.column(2).dictionary_encode()
    codes = topics.indices.to_numpy()
    payload = rows.column(3)
    _, ends_buffer, data_buffer = payload.buffers()
    ends = np.frombuffer(ends_buffer, np.int32, count + 1, payload.offset * 4)
    data = memoryview(data_buffer) if data_buffer is not None else memoryview(b"")
    sizes = np.diff(ends)
    qos = rows.column(4).to_numpy()
    retain = np.asarray(rows.column(5).to_numpy(zero_copy_only=False))
    origins: pa.DictionaryArray = rows.column(6).dictionary_encode()
    origin_codes = origins.indices.fill_null(-1).to_numpy()
    special = np.zeros(count, np.bool_)
    for column in rows.columns[8:]:
        if column.null_count != count:
            special |= np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    changes = (
        (np.diff(codes) != 0)
        | (np.diff(sizes) != 0)
        | (sizes[1:] == 0)  # a batch has no stride of 0
        | (np.diff(qos) != 0)
        | (retain[1:] != retain[:-1])
        | (np.diff(origin_codes) != 0)
        | (np.diff(offsets) != 1)
        | (np.diff(times) != 0)
        | special[1:]
        | special[:-1]
    )
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    stops = [*starts[1:], count]
    names = [name.encode() for name in topics.dictionary.to_pylist()]
    clients = origins.dictionary.to_pylist()
    begins = ends[starts].tolist()
    finishes = ends[stops].tolist()
    for at, stop, begin, finish, first, time, code, level, retained, client, marked in zip(
        starts,
        stops,
        begins,
        finishes,
        offsets[starts].tolist(),
        times[starts].tolist(),
        codes[starts].tolist(),
        qos[starts].tolist(),
        retain[starts].tolist(),
        origin_codes[starts].tolist(),
        special[starts].tolist(),
        strict=True,
    ):
        number = stop - at
        yield (
            Batch(
                names[code],
                bytes(data[begin:finish]),
                level,
                retained,
                _properties_of(rows, at) if marked else None,
                None,
                clients[client] if client >= 0 else None,
                number,
                (finish - begin) // number,
            ),
            first,
            time,
        )


def _properties_of(rows: pa.RecordBatch, at: int) -> Properties:
    values = {name: rows.column(8 + number)[at].as_py() for number, name in enumerate(PROPERTIES)}
    pairs = values.pop("user_properties")
    return Properties(**values, user_properties=tuple((pair["key"], pair["value"]) for pair in pairs or ()))
