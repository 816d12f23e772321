"""Build the columns of a stored record batch from the broker's batches. HOT.

Columns are built from whole batches, not message by message: values that a batch's messages share are stored
once (run-end encoding), and the payloads of all batches are copied in one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa

from pyrite.broker.message import Batch, MixedBatch, Properties
from pyrite.storage.schema import MAX_SHARED_ROWS, PROPERTIES, PROPERTY_FIELDS, SCHEMA, STORED, null_column
from pyrite.storage.tail import Row

Values = tuple[Any, ...]
"""A message's properties, in the order of their columns."""
Positions = np.ndarray[Any, Any]
_get_values = attrgetter(*PROPERTIES)
_NO_VALUES: Values = (None,) * len(PROPERTIES)
_TIMESTAMP = SCHEMA.field("timestamp").type
_ZEROS = pa.py_buffer(bytes(MAX_SHARED_ROWS))
_MAX_CACHED = 32
"""Property values whose columns are cached."""


class Entry(NamedTuple):
    """A batch on its way into a stream."""

    batch: Batch
    timestamp: int
    """When it arrived, in microseconds since 1970."""
    packet_ids: Sequence[int] | None
    """The packet ids of QoS 2 messages of a durable session."""


def _split_varied(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Replace batches whose messages have properties of their own by batches of one message."""
    if not any(entry.batch.varies for entry in entries):
        return entries
    found: list[Entry] = []
    for entry in entries:
        if not entry.batch.varies:
            found.append(entry)
            continue
        ids = entry.packet_ids
        for number, part in enumerate(entry.batch.parts()):
            found.append(Entry(part, entry.timestamp, None if ids is None else ids[number : number + 1]))
    return found


def build(entries: Sequence[Entry], first_offset: int) -> pa.RecordBatch:
    """Return the record batch to store for entries, whose messages have consecutive offsets."""
    entries = _split_varied(entries)
    counts = [entry.batch.count for entry in entries]
    total = sum(counts)
    batches = [entry.batch for entry in entries]
    runs = _Runs(counts, total)
    times = _spread([entry.timestamp for entry in entries], counts, total, np.int64)
    columns: list[pa.Array] = [
        runs.one(0, pa.array([first_offset])),
        pa.Array.from_buffers(_TIMESTAMP, total, [None, times]),
        _topics(batches, runs),
        _payloads(batches, counts),
        pa.Array.from_buffers(pa.int8(), total, [None, _qos(batches, counts, total)]),
        _flags([batch.retain for batch in batches], counts, total),
        _origins(batches, runs),
        _packet_ids(entries, total),
        _properties(batches, runs),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STORED)


def rows_of(entries: Sequence[Entry]) -> list[Row]:
    """Return the messages of a few entries as rows of the tail."""
    rows: list[Row] = []
    for batch, timestamp, packet_ids in _split_varied(entries):
        if batch.mixed:
            assert isinstance(batch, MixedBatch)
            topics = batch.topics
        else:
            topics = [batch.topic] * batch.count
        payloads = batch.payloads()
        ids: Sequence[int | None] = packet_ids or [None] * batch.count
        values = None if batch.properties is None else _get_values(batch.properties)
        qos, retain = batch.qos, batch.retain
        origins = [batch.origin] * batch.count if batch.origins is None else batch.origins
        for topic, payload, packet_id, origin in zip(topics, payloads, ids, origins, strict=True):
            rows.append(Row(timestamp, topic, payload, qos, retain, origin, packet_id, values))
    return rows


class _Runs:
    """Makes run-end encoded columns, with one run for all messages or one per batch."""

    def __init__(self, counts: list[int], total: int) -> None:
        self.total = total
        self.counts = counts
        self._all = pa.array([total], pa.int32())
        self._each: pa.Array | None = None

    def one(self, number: int, value: pa.Array) -> pa.Array:
        """Make column `number` of one value."""
        return _run_ends(number, self._all, value, self.total)

    def each(self, number: int, values: pa.Array) -> pa.Array:
        """Make column `number` of a value for each batch."""
        if self._each is None:
            self._each = pa.array(np.cumsum(self.counts, dtype=np.int32))
        return _run_ends(number, self._each, values, self.total)


def _run_ends(number: int, ends: pa.Array, values: pa.Array, total: int) -> pa.Array:
    return pa.Array.from_buffers(STORED.field(number).type, total, [None], children=[ends, values])


def _spread(values: list[int], counts: list[int], total: int, kind: type[np.generic]) -> pa.Buffer:
    """Repeat each value as often as its batch has messages."""
    if len(values) == 1:
        return pa.py_buffer(np.full(total, values[0], kind))
    if total == len(values):
        return pa.py_buffer(np.array(values, kind))
    return pa.py_buffer(np.repeat(np.array(values, kind), counts))


def _qos(batches: list[Batch], counts: list[int], total: int) -> pa.Buffer:
    values = [batch.qos for batch in batches]
    if not any(values) and total <= MAX_SHARED_ROWS:
        return _ZEROS.slice(0, total)
    return _spread(values, counts, total, np.int8)


def _flags(values: list[bool], counts: list[int], total: int) -> pa.Array:
    if not any(values):
        zeros = _ZEROS.slice(0, (total + 7) // 8) if total <= MAX_SHARED_ROWS else pa.py_buffer(bytes(total))
        return pa.Array.from_buffers(pa.bool_(), total, [None, zeros])
    return pa.array(np.repeat(np.array(values, np.bool_), counts))


def _origins(batches: list[Batch], runs: _Runs) -> pa.Array:
    values: list[str | None] = []
    counts: list[int] = []
    for batch in batches:
        if batch.origins is None:
            values.append(batch.origin)
            counts.append(batch.count)
        else:
            values += batch.origins
            counts += [1] * batch.count
    if len(counts) > len(batches):
        runs = _Runs(counts, runs.total)
    if len(set(values)) == 1:
        return runs.one(6, pa.array(values[:1], pa.string()))
    return runs.each(6, pa.array(values, pa.string()))


def _topics(batches: list[Batch], runs: _Runs) -> pa.Array:
    if any(batch.mixed for batch in batches):
        topics = list(chain.from_iterable(map(_topics_of, batches)))
        ends = pa.array(np.arange(1, runs.total + 1, dtype=np.int32))
        return _run_ends(2, ends, _names(topics), runs.total)
    topics = [batch.topic for batch in batches]
    return runs.one(2, _names(topics[:1])) if len(set(topics)) == 1 else runs.each(2, _names(topics))


def _topics_of(batch: Batch) -> Sequence[bytes]:
    return batch.topics if isinstance(batch, MixedBatch) else [batch.topic] * batch.count


def _names(topics: list[bytes]) -> pa.Array:
    return pa.array(topics, pa.binary()).view(pa.string())  # checked to be UTF-8


def _payloads(batches: list[Batch], counts: list[int]) -> pa.Array:
    """Return the column of payloads, which lie in the batches' bytes with gaps in between."""
    data = np.frombuffer(b"".join([batch.data for batch in batches]), np.uint8)
    sizes = {(-1, 0) if batch.mixed else (batch.stride, batch.payload_at) for batch in batches}
    if len(sizes) == 1:
        stride, payload_at = sizes.pop()
        if stride > payload_at:  # of one size: no need to look for each
            payloads = np.ascontiguousarray(data.reshape(-1, stride)[:, payload_at:]).reshape(-1)
            ends = np.arange(len(data) // stride + 1, dtype=np.int32) * np.int32(stride - payload_at)
            return _binary(ends, payloads)
    begins, ends = _bounds(batches, counts)
    # A column of a gap, a payload, a gap, a payload, ..., of which the payloads are taken.
    cuts = np.empty(2 * len(ends) + 1, np.int32)
    cuts[0] = 0
    cuts[1::2] = begins
    cuts[2::2] = ends
    return _binary(cuts, data).take(pa.array(np.arange(1, len(cuts), 2)))


def _bounds(batches: list[Batch], counts: list[int]) -> tuple[Positions, Positions]:
    """Return where each payload begins and ends in the joined bytes of the batches."""
    begins, ends = [], []
    at = done = 0
    for _, alike in groupby(batches, type):
        some = list(alike)
        number = counts[done : done + len(some)]
        done += len(some)
        if _all_mixed(some):
            first = np.repeat(np.cumsum([at, *(len(batch.data) for batch in some[:-1])]), number)
            gap = np.repeat([batch.payload_at for batch in some], number)
            starts = first + _joined([batch.starts for batch in some], len(first))
            at += sum(len(batch.data) for batch in some)
            begins.append(first + _joined([batch.ids_at for batch in some], len(first)) + gap)
            ends.append(np.append(starts[1:], at))
        else:
            ends.append(at + np.cumsum(np.repeat([batch.stride for batch in some], number)))
            begins.append(ends[-1] - np.repeat([batch.stride - batch.payload_at for batch in some], number))
            at = int(ends[-1][-1])
    return np.concatenate(begins), np.concatenate(ends)


def _all_mixed(batches: list[Batch]) -> TypeGuard[list[MixedBatch]]:
    return batches[0].mixed


def _joined(lists: Sequence[Sequence[int]], total: int) -> Positions:
    return np.fromiter(chain.from_iterable(lists), np.int64, total)


def _binary(ends: Positions, data: Positions) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _packet_ids(entries: Sequence[Entry], total: int) -> pa.Array:
    if all(entry.packet_ids is None for entry in entries):
        return null_column(7, total)
    ids: list[int | None] = []
    for entry in entries:
        ids.extend([None] * entry.batch.count if entry.packet_ids is None else entry.packet_ids)
    return pa.array(ids, pa.int32())


def _properties(batches: list[Batch], runs: _Runs) -> pa.Array:
    if all(batch.properties is None for batch in batches):
        return runs.one(8, _no_properties())
    carried = [_values(batch.properties) for batch in batches]
    if len(set(carried)) == 1:
        return runs.one(8, _one_row(carried[0]))
    return runs.each(8, _property_rows(carried))


@cache
def _no_properties() -> pa.Array:
    return pa.nulls(1, pa.struct(PROPERTY_FIELDS))


@lru_cache(_MAX_CACHED)
def _one_row(values: Values) -> pa.Array:
    return _property_rows([values])


def _values(properties: Properties | None) -> Values:
    return _NO_VALUES if properties is None else _get_values(properties)


def _property_rows(carried: Sequence[Values]) -> pa.Array:
    columns = []
    for field, values in zip(PROPERTY_FIELDS, zip(*carried, strict=True), strict=True):
        if field.name == "user_properties":
            values = tuple(
                [{"key": key, "value": value} for key, value in pairs] if pairs else None for pairs in values
            )
        columns.append(pa.array(values, field.type))
    return pa.StructArray.from_arrays(columns, fields=PROPERTY_FIELDS)
