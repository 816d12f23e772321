"""Messages as columns: batches of the broker's into an Arrow record batch, and back. HOT.

The columns of a batch are built from whole batches of messages, not message by message: what a batch's
messages have in common is repeated by numpy, and their payloads, which lie at a fixed stride, are copied
in one strided operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyrite import queries
from pyrite.broker.message import Batch, MixedBatch, Properties

SCHEMA = queries.SCHEMA.insert(7, pa.field("packet_id", pa.int32()))
"""One message a row. `packet_id` is there for QoS 2 only: with it an unfinished exchange survives a crash."""

_PROPERTIES = SCHEMA.names[8:]
Values = tuple[Any, ...]
"""A message's properties, in the order of their columns."""
_get_values = attrgetter(*_PROPERTIES)
_NO_VALUES: Values = (None,) * len(_PROPERTIES)
_TIMESTAMP = SCHEMA.field("timestamp").type
_LONG = 65_536
_ZEROS = pa.py_buffer(bytes(_LONG))
_OFTEN = 64
_SHORT = 256
_KEPT = 32
"""From how many messages on, up to which size, and for how many values what is repeated is kept."""
_kept_texts: dict[bytes, pa.Array] = {}
_kept_ends: dict[int, np.ndarray[Any, Any]] = {}
_kept_properties: dict[Values, list[pa.Array]] = {}


def _long_nothing(kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(kind):
        return pa.nulls(_LONG, kind)
    # Arrow's own has as many items as lists, and writes them all.
    buffers = [pa.py_buffer(bytes(_LONG // 8)), pa.py_buffer(bytes(4 * _LONG + 4))]
    return pa.Array.from_buffers(kind, _LONG, buffers, _LONG, 0, [pa.array([], kind.value_type)])


_NULLS = [_long_nothing(field.type) for field in SCHEMA]
"""Columns of nothing, for parts of them to be used: most messages have no properties."""


class Entry(NamedTuple):
    """A batch on its way into a stream."""

    batch: Batch
    timestamp: int
    """When it came, in microseconds since 1970."""
    packet_ids: Sequence[int] | None
    """The ids of QoS 2 messages of a session that lasts."""


def build(
    entries: Sequence[Entry], first_offset: int, payloads: np.ndarray[Any, Any] | None = None
) -> pa.RecordBatch:
    """Make a record batch of what came together; its messages get consecutive offsets.

    `payloads` are theirs one after the other, if they lie so already.
    """
    counts = [entry.batch.count for entry in entries]
    total = sum(counts)
    batches = [entry.batch for entry in entries]
    times = [entry.timestamp for entry in entries]
    payload, topic = _payloads_and_topics(batches, total, payloads)
    qos = {batch.qos for batch in batches}
    columns: list[pa.Array] = [
        pa.Array.from_buffers(
            pa.int64(), total, [None, pa.py_buffer(np.arange(first_offset, first_offset + total))]
        ),
        pa.Array.from_buffers(_TIMESTAMP, total, [None, _spread(times, counts, total, np.int64)]),
        topic,
        payload,
        pa.Array.from_buffers(
            pa.int8(),
            total,
            [
                None,
                _ZEROS.slice(0, total)
                if qos == {0} and total <= _LONG
                else _spread([batch.qos for batch in batches], counts, total, np.int8),
            ],
        ),
        _flags([batch.retain for batch in batches], counts, total),
        _texts([batch.origin for batch in batches], counts, total),
        _packet_ids(entries, total),
        *_properties(batches, counts, total),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _nothing(number: int, total: int) -> pa.Array:
    """Return column `number` for messages that have none of it."""
    return _NULLS[number].slice(0, total) if total <= _LONG else pa.nulls(total, SCHEMA.field(number).type)


def _spread(values: list[int], counts: list[int], total: int, kind: type[np.generic]) -> pa.Buffer:
    """Repeat each value as often as its batch has messages."""
    if len(values) == 1:
        return pa.py_buffer(np.full(total, values[0], kind))
    if total == len(values):
        return pa.py_buffer(np.array(values, kind))
    return pa.py_buffer(np.repeat(np.array(values, kind), counts))


def _flags(values: list[bool], counts: list[int], total: int) -> pa.Array:
    if not any(values):
        zeros = _ZEROS.slice(0, (total + 7) // 8) if total <= _LONG else pa.py_buffer(bytes(total))
        return pa.Array.from_buffers(pa.bool_(), total, [None, zeros])
    return pa.array(np.repeat(np.array(values, np.bool_), counts))


def _texts(values: Sequence[str | None], counts: list[int], total: int) -> pa.Array:
    distinct = dict.fromkeys(values)
    if len(distinct) == 1:
        return _repeated(values[0], total)
    if total == len(values):
        return pa.array(values, pa.string())
    return pa.array(values, pa.string()).take(pa.array(np.repeat(np.arange(len(values)), counts)))


def _repeated(value: str | bytes | None, total: int) -> pa.Array:
    """Repeat one text; what is repeated often is kept, for parts of it to be used."""
    if value is None:
        return pa.nulls(total, pa.string())
    data = value.encode() if isinstance(value, str) else value
    if not _OFTEN <= total <= _LONG or len(data) > _SHORT:
        return _repeat(data, total)
    kept = _kept_texts.get(data)
    if kept is None:
        if len(_kept_texts) >= _KEPT:
            _kept_texts.clear()
        kept = _kept_texts[data] = _repeat(data, _LONG)
    return kept.slice(0, total)


def _repeat(data: bytes, total: int) -> pa.Array:
    return pa.StringArray.from_buffers(
        total, pa.py_buffer(_ends(len(data), total)), pa.py_buffer(data * total)
    )


def _ends(size: int, total: int) -> np.ndarray[Any, Any]:
    """Return where values of one size begin and end."""
    if not _OFTEN <= total <= _LONG or size > _SHORT:
        return np.arange(total + 1, dtype=np.int32) * np.int32(size)
    kept = _kept_ends.get(size)
    if kept is None:
        if len(_kept_ends) >= _KEPT:
            _kept_ends.clear()
        kept = _kept_ends[size] = np.arange(_LONG + 1, dtype=np.int32) * np.int32(size)
    return kept[: total + 1]


def _payloads_and_topics(
    batches: list[Batch], total: int, payloads: np.ndarray[Any, Any] | None = None
) -> tuple[pa.Array, pa.Array]:
    """Cut the payloads out of the bytes that came over the wire, and name the topic of each."""
    if any(batch.mixed for batch in batches):
        columns = [_cut_alike(list(alike)) for _, alike in groupby(batches, _mixed_gap)]
        return pa.concat_arrays([one[0] for one in columns]), pa.concat_arrays([one[1] for one in columns])
    if len(batches) == 1 and payloads is None:
        return _strided(batches[0]), _repeated(batches[0].topic, total)
    counts = [batch.count for batch in batches]
    names = [batch.topic for batch in batches]
    sizes = [batch.stride - batch.payload_at for batch in batches]
    if len(set(sizes)) == 1 and total > len(batches):
        if payloads is None:
            payloads = _together(batches, sizes[0], total)
        payload = _binary(_ends(sizes[0], total), payloads)
    else:
        ends = np.zeros(total + 1, np.int32)
        np.cumsum(np.repeat(np.array(sizes, np.int64), counts), out=ends[1:])
        if payloads is None:
            payloads = np.frombuffer(b"".join([_cut_out(batch) for batch in batches]), np.uint8)
        payload = _binary(ends, payloads)
    if len(set(names)) == 1:
        return payload, _repeated(names[0], total)
    topic = pa.array(names, pa.binary()).view(pa.string())  # checked to be UTF-8
    if total != len(names):
        topic = topic.take(pa.array(np.repeat(np.arange(len(names)), counts)))
    return payload, topic


def _together(batches: list[Batch], size: int, total: int) -> np.ndarray[Any, Any]:
    """Copy payloads of one size from several batches to one place: many small ones at once, if possible."""
    first = batches[0]
    stride, payload_at = first.stride, first.payload_at
    if len(batches) > 32 and all(b.stride == stride and b.payload_at == payload_at for b in batches):
        rows = np.frombuffer(b"".join([batch.data for batch in batches]), np.uint8).reshape(total, stride)
        return np.ascontiguousarray(rows[:, payload_at:]).reshape(-1)
    out = np.empty((total, size), np.uint8)
    at = 0
    for batch in batches:
        rows = np.frombuffer(batch.data, np.uint8).reshape(batch.count, batch.stride)
        out[at : at + batch.count] = rows[:, batch.payload_at :]
        at += batch.count
    return out.reshape(-1)


def _cut_out(batch: Batch) -> bytes | memoryview:
    """Return the payloads of a batch, one after the other."""
    if batch.count == 1:
        return batch.data[batch.payload_at :] if batch.payload_at else batch.data
    return _packed(batch).data


def _binary(ends: np.ndarray[Any, Any], data: np.ndarray[Any, Any] | bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _packed(batch: Batch) -> np.ndarray[Any, Any]:
    """Copy the payloads of a batch together, without what lies between them."""
    rows = np.frombuffer(batch.data, np.uint8).reshape(batch.count, batch.stride)
    return np.ascontiguousarray(rows[:, batch.payload_at :]).reshape(-1)


def _strided(batch: Batch) -> pa.Array:
    size = batch.stride - batch.payload_at
    return _binary(_ends(size, batch.count), _packed(batch) if size else b"")


def _mixed_gap(batch: Batch) -> int:
    return batch.payload_at if batch.mixed else -1


def _cut_alike(batches: list[Batch]) -> tuple[pa.Array, pa.Array]:
    """Return the payloads and the topics of batches that are mixed, with one gap, or not mixed."""
    if not batches[0].mixed:
        return _payloads_and_topics(batches, sum(batch.count for batch in batches))
    # All of them are seen as one column of binary values, four for each message: head, topic, gap, payload.
    data = np.frombuffer(b"".join([batch.data for batch in batches]), np.uint8)
    pieces, at = [], 0
    for batch in batches:
        assert isinstance(batch, MixedBatch)
        pieces.append(np.fromiter(batch.starts, np.int32, batch.count))
        pieces[-1] += at
        at += len(batch.data)
    starts = np.concatenate(pieces)
    sizes = np.diff(starts, append=np.int32(len(data)))
    topics = starts + np.where(sizes < 130, np.int32(4), np.int32(5))
    cuts = np.empty(4 * len(starts) + 1, np.int32)
    cuts[0:-1:4] = starts
    cuts[1::4] = topics
    cuts[2::4] = topics + (data[topics - 2].astype(np.int32) << 8) + data[topics - 1]
    cuts[3::4] = cuts[2::4] + batches[0].payload_at
    cuts[-1] = len(data)
    values = _binary(cuts, data)
    places = np.arange(0, 4 * len(starts), 4)
    return values.take(pa.array(places + 3)), values.take(pa.array(places + 1)).view(pa.string())


def _packet_ids(entries: Sequence[Entry], total: int) -> pa.Array:
    if all(entry.packet_ids is None for entry in entries):
        return _nothing(7, total)
    ids: list[int | None] = []
    for entry in entries:
        ids.extend([None] * entry.batch.count if entry.packet_ids is None else entry.packet_ids)
    return pa.array(ids, pa.int32())


def _properties(batches: list[Batch], counts: list[int], total: int) -> list[pa.Array]:
    if all(batch.properties is None for batch in batches):
        return [_nothing(number, total) for number in range(8, len(SCHEMA))]
    carried = [_values(batch.properties) for batch in batches]
    distinct = dict.fromkeys(carried)
    if len(distinct) == 1:
        return _repeated_properties(carried[0], total)
    rows = pa.array(np.repeat(np.arange(len(batches)), counts))
    return [
        column.take(rows) if column.null_count < len(batches) else _nothing(8 + number, total)
        for number, column in enumerate(_property_columns(carried))
    ]


def _values(properties: Properties | None) -> Values:
    return _NO_VALUES if properties is None else _get_values(properties)


def _property_columns(carried: Sequence[Values]) -> list[pa.Array]:
    columns = []
    for number, values in enumerate(zip(*carried, strict=True)):
        if number == len(_PROPERTIES) - 1:
            values = tuple(
                [{"key": key, "value": value} for key, value in pairs] if pairs else None for pairs in values
            )
        columns.append(pa.array(values, SCHEMA.field(8 + number).type))
    return columns


def _repeated_properties(values: Values, total: int) -> list[pa.Array]:
    """Repeat the properties of one message; those of many messages are kept, for parts of them to be used."""
    if not _OFTEN <= total <= _LONG or len(str(values)) > _SHORT:
        return [
            column.take(pa.nulls(total, pa.int8()).fill_null(0)) for column in _property_columns([values])
        ]
    kept = _kept_properties.get(values)
    if kept is None:
        if len(_kept_properties) >= _KEPT:
            _kept_properties.clear()
        rows = pa.nulls(_LONG, pa.int8()).fill_null(0)
        kept = _kept_properties[values] = [
            column.take(rows) if column.null_count == 0 else _NULLS[8 + number]
            for number, column in enumerate(_property_columns([values]))
        ]
    return [column.slice(0, total) for column in kept]


# And back


def runs(rows: pa.RecordBatch, keep: np.ndarray[Any, Any] | None = None) -> Iterator[tuple[Batch, int, int]]:
    """Yield a record batch's messages as batches of the broker's, each with its first offset and its time.

    `keep` says which rows are wanted. Messages that follow one another and are alike become one batch.
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
    values = {name: rows.column(8 + number)[at].as_py() for number, name in enumerate(_PROPERTIES)}
    pairs = values.pop("user_properties")
    return Properties(**values, user_properties=tuple((pair["key"], pair["value"]) for pair in pairs or ()))
