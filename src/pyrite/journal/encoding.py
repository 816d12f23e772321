"""Build the columns of a stored record batch from the broker's batches. HOT.

Columns are built from whole batches, not message by message: values that a batch's messages share are stored
once (run-end encoding), and payloads, which lie at a fixed stride, are copied in one strided operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyrite.broker.message import Batch, MixedBatch, Properties
from pyrite.storage.schema import MAX_SHARED_ROWS, PROPERTIES, PROPERTY_FIELDS, SCHEMA, STORED, null_column
from pyrite.storage.tail import Row

Values = tuple[Any, ...]
"""A message's properties, in the order of their columns."""
_get_values = attrgetter(*PROPERTIES)
_NO_VALUES: Values = (None,) * len(PROPERTIES)
_TIMESTAMP = SCHEMA.field("timestamp").type
_ZEROS = pa.py_buffer(bytes(MAX_SHARED_ROWS))
_MIN_CACHED_ENDS = 64
_MAX_CACHED_ENDS_SIZE = 32_768
"""Payload ends are cached for this many payloads or more, each of at most so many bytes."""
_MAX_CACHED = 32
"""Payload sizes, and property values, whose columns are cached."""


class Entry(NamedTuple):
    """A batch on its way into a stream."""

    batch: Batch
    timestamp: int
    """When it arrived, in microseconds since 1970."""
    packet_ids: Sequence[int] | None
    """The packet ids of QoS 2 messages of a durable session."""
    later: Sequence[int] = ()
    """When each message after the first arrived, if they did not arrive together."""

    @property
    def latest(self) -> int:
        """When its last message arrived."""
        return self.later[-1] if self.later else self.timestamp


def build(entries: Sequence[Entry], first_offset: int) -> pa.RecordBatch:
    """Return the record batch to store for entries, whose messages have consecutive offsets."""
    counts = [entry.batch.count for entry in entries]
    total = sum(counts)
    batches = [entry.batch for entry in entries]
    runs = _Runs(counts, total)
    payload, topic = _payloads_and_topics(batches, runs)
    qos = {batch.qos for batch in batches}
    columns: list[pa.Array] = [
        runs.one(0, pa.array([first_offset])),
        pa.Array.from_buffers(_TIMESTAMP, total, [None, _times(entries, counts, total)]),
        topic,
        payload,
        pa.Array.from_buffers(
            pa.int8(),
            total,
            [
                None,
                _ZEROS.slice(0, total)
                if qos == {0} and total <= MAX_SHARED_ROWS
                else _spread([batch.qos for batch in batches], counts, total, np.int8),
            ],
        ),
        _flags([batch.retain for batch in batches], counts, total),
        _origins(batches, runs),
        _packet_ids(entries, total),
        _properties(batches, runs),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STORED)


def rows_of(entries: Sequence[Entry]) -> list[Row]:
    """Return the messages of a few entries as rows of the tail."""
    rows: list[Row] = []
    for batch, timestamp, packet_ids, later in entries:
        if batch.mixed:
            assert isinstance(batch, MixedBatch)
            topics = batch.topics
        else:
            topics = [batch.topic] * batch.count
        payloads = batch.payloads()
        ids: Sequence[int | None] = packet_ids or [None] * batch.count
        times = [timestamp, *later] if later else [timestamp] * batch.count
        values = None if batch.properties is None else _get_values(batch.properties)
        qos, retain = batch.qos, batch.retain
        origins = [batch.origin] * batch.count if batch.origins is None else batch.origins
        columns = zip(times, topics, payloads, ids, origins, strict=True)
        for time, topic, payload, packet_id, origin in columns:
            rows.append(Row(time, topic, payload, qos, retain, origin, packet_id, values))
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


def _times(entries: Sequence[Entry], counts: list[int], total: int) -> pa.Buffer:
    if not any(entry.later for entry in entries):
        return _spread([entry.timestamp for entry in entries], counts, total, np.int64)
    times: list[int] = []
    for entry in entries:
        if entry.later:
            times.append(entry.timestamp)
            times += entry.later
        else:
            times += [entry.timestamp] * entry.batch.count
    return pa.py_buffer(np.array(times, np.int64))


def _spread(values: list[int], counts: list[int], total: int, kind: type[np.generic]) -> pa.Buffer:
    """Repeat each value as often as its batch has messages."""
    if len(values) == 1:
        return pa.py_buffer(np.full(total, values[0], kind))
    if total == len(values):
        return pa.py_buffer(np.array(values, kind))
    return pa.py_buffer(np.repeat(np.array(values, kind), counts))


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


def _topics(names: list[bytes], runs: _Runs) -> pa.Array:
    if len(set(names)) == 1:
        return runs.one(2, _names(names[:1]))
    return runs.each(2, _names(names))


def _names(topics: list[bytes]) -> pa.Array:
    return pa.array(topics, pa.binary()).view(pa.string())  # checked to be UTF-8


def ends(sizes: Sequence[int], counts: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the ends of values, of which there are `counts` of each of `sizes`."""
    total = sum(counts)
    if len(sizes) > 1:
        found = np.zeros(total + 1, np.int32)
        np.cumsum(np.repeat(np.array(sizes, np.int64), counts), out=found[1:])
        return found
    size = sizes[0]
    if not _MIN_CACHED_ENDS <= total <= MAX_SHARED_ROWS or size > _MAX_CACHED_ENDS_SIZE:
        return np.arange(total + 1, dtype=np.int32) * np.int32(size)
    return _long_ends(size)[: total + 1]


@lru_cache(_MAX_CACHED)
def _long_ends(size: int) -> np.ndarray[Any, Any]:
    return np.arange(MAX_SHARED_ROWS + 1, dtype=np.int32) * np.int32(size)


def _payloads_and_topics(batches: list[Batch], runs: _Runs) -> tuple[pa.Array, pa.Array]:
    """Return the columns of payloads and topics."""
    if not any(batch.mixed for batch in batches):
        return _payloads(batches, runs), _topics([batch.topic for batch in batches], runs)
    columns = [_cut_alike(list(alike)) for _, alike in groupby(batches, _mixed_gap)]
    topic = pa.concat_arrays([one[1] for one in columns])
    ends = pa.array(np.arange(1, runs.total + 1, dtype=np.int32))
    return pa.concat_arrays([one[0] for one in columns]), _run_ends(2, ends, topic, runs.total)


def _payloads(batches: list[Batch], runs: _Runs) -> pa.Array:
    """Return the payloads of unmixed batches."""
    if len(batches) == 1:
        return _strided(batches[0])
    total = runs.total
    sizes = [batch.stride - batch.payload_at for batch in batches]
    if len(set(sizes)) == 1 and total > len(batches):
        return _binary(ends(sizes[:1], [total]), _together(batches, sizes[0], total))
    return _binary(ends(sizes, runs.counts), b"".join([_cut_out(batch) for batch in batches]))


def _together(batches: list[Batch], size: int, total: int) -> np.ndarray[Any, Any]:
    """Copy payloads of one size from several batches into one array."""
    if not size:
        return np.empty(0, np.uint8)
    first = batches[0]
    stride, payload_at = first.stride, first.payload_at
    if len(batches) > 32 and all(b.stride == stride and b.payload_at == payload_at for b in batches):
        rows = np.frombuffer(b"".join([batch.data for batch in batches]), np.uint8).reshape(total, stride)
        return np.ascontiguousarray(rows[:, payload_at:]).reshape(-1)
    out = np.empty((total, size), np.uint8)
    at = 0
    for batch in batches:
        out[at : at + batch.count].view(item(size))[:, 0] = spaced(batch)
        at += batch.count
    return out.reshape(-1)


def _cut_out(batch: Batch) -> bytes | memoryview:
    """Return the payloads of a batch, joined."""
    if batch.count == 1:
        return batch.data[batch.payload_at :] if batch.payload_at else batch.data
    return _packed(batch).data


def _binary(ends: np.ndarray[Any, Any], data: np.ndarray[Any, Any] | bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def spaced(batch: Batch) -> np.ndarray[Any, Any]:
    """Return a view of the payloads, which must not be empty, each as one item: faster to copy than rows."""
    at, stride = batch.payload_at, batch.stride
    return np.ndarray((batch.count,), item(stride - at), batch.data, at, (stride,))


@lru_cache(1_024)
def item(size: int) -> np.dtype[np.void]:
    """Return the type of items of a size, which numpy takes long to make."""
    return np.dtype(f"V{size}")


def _packed(batch: Batch) -> np.ndarray[Any, Any]:
    """Copy the payloads of a batch, without the bytes between them."""
    if batch.stride == batch.payload_at:
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(spaced(batch)).view(np.uint8)


def _strided(batch: Batch) -> pa.Array:
    return _binary(ends([batch.stride - batch.payload_at], [batch.count]), _packed(batch))


def _mixed_gap(batch: Batch) -> int:
    return batch.payload_at if batch.mixed else -1


def _cut_alike(batches: list[Batch]) -> tuple[pa.Array, pa.Array]:
    """Return the payloads and topics of batches that are all mixed, with the same gap, or all unmixed."""
    if not batches[0].mixed:
        counts = [batch.count for batch in batches]
        names = _names([batch.topic for batch in batches])
        topics = names.take(pa.array(np.repeat(np.arange(len(batches)), counts)))
        return _payloads(batches, _Runs(counts, sum(counts))), topics
    # View the bytes as a column of four binary values per message: head, topic, gap, payload.
    data = np.frombuffer(b"".join([batch.data for batch in batches]), np.uint8)
    pieces, at = [], 0
    for batch in batches:
        assert isinstance(batch, MixedBatch)
        pieces.append(np.fromiter(batch.starts, np.int32, batch.count))
        pieces[-1] += at
        at += len(batch.data)
    starts = np.concatenate(pieces)
    sizes = np.diff(starts, append=np.int32(len(data)))
    begins = starts + np.where(sizes < 130, np.int32(4), np.int32(5))
    cuts = np.empty(4 * len(starts) + 1, np.int32)
    cuts[0:-1:4] = starts
    cuts[1::4] = begins
    cuts[2::4] = begins + (data[begins - 2].astype(np.int32) << 8) + data[begins - 1]
    cuts[3::4] = cuts[2::4] + batches[0].payload_at
    cuts[-1] = len(data)
    values = _binary(cuts, data)
    places = np.arange(0, 4 * len(starts), 4)
    return values.take(pa.array(places + 3)), values.take(pa.array(places + 1)).view(pa.string())


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
