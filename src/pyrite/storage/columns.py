"""Messages as columns: batches of the broker's into an Arrow record batch, and back. HOT.

The columns of a batch are built from whole batches of messages, not message by message: what a batch's
messages have in common is stored once, with the number of messages it holds for (Arrow's run-end encoding),
and their payloads, which lie at a fixed stride, are copied in one strided operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyrite.broker.message import Batch, MixedBatch, Properties
from pyrite.storage import query as queries

SCHEMA = queries.SCHEMA.insert(7, pa.field("packet_id", pa.int32()))
"""One message a row. `packet_id` is there for QoS 2 only: with it an unfinished exchange survives a crash."""

_PROPERTIES = SCHEMA.names[8:]
_CARRIED = [SCHEMA.field(name) for name in _PROPERTIES]


def _by_run(kind: pa.DataType) -> pa.DataType:
    return pa.run_end_encoded(pa.int32(), kind)


STORED = pa.schema(
    [
        pa.field("first_offset", _by_run(pa.int64()), nullable=False),
        SCHEMA.field("timestamp"),
        pa.field("topic", _by_run(pa.string()), nullable=False),
        SCHEMA.field("payload"),
        SCHEMA.field("qos"),
        SCHEMA.field("retain"),
        pa.field("client_id", _by_run(pa.string())),
        SCHEMA.field("packet_id"),
        pa.field("properties", _by_run(pa.struct(_CARRIED))),
    ]
)
"""What lies in a segment: what messages that follow one another have in common is there once. The offset of
a batch's first message stands for those of all."""

Values = tuple[Any, ...]
"""A message's properties, in the order of their columns."""
_get_values = attrgetter(*_PROPERTIES)
_NO_VALUES: Values = (None,) * len(_PROPERTIES)
_TIMESTAMP = SCHEMA.field("timestamp").type
_LONG = 98_304
_ZEROS = pa.py_buffer(bytes(_LONG))
_OFTEN = 64
_MANY = 32_768
_SHORT = 64
_KEPT = 32
"""From how many messages on and up to how many, up to which size, and for how many values what is repeated
is kept."""


class Entry(NamedTuple):
    """A batch on its way into a stream."""

    batch: Batch
    timestamp: int
    """When it came, in microseconds since 1970."""
    packet_ids: Sequence[int] | None
    """The ids of QoS 2 messages of a session that lasts."""
    later: Sequence[int] = ()
    """When each of the messages after the first came, if they did not come together."""

    @property
    def latest(self) -> int:
        """When the last of its messages came."""
        return self.later[-1] if self.later else self.timestamp


def build(entries: Sequence[Entry], first_offset: int) -> pa.RecordBatch:
    """Make a record batch, to be stored, of what came together; its messages get consecutive offsets."""
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
                if qos == {0} and total <= _LONG
                else _spread([batch.qos for batch in batches], counts, total, np.int8),
            ],
        ),
        _flags([batch.retain for batch in batches], counts, total),
        _origins([batch.origin for batch in batches], runs),
        _packet_ids(entries, total),
        _properties(batches, runs),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STORED)


class _Runs:
    """Columns that are stored run by run, a run for all messages or one for each batch."""

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
        zeros = _ZEROS.slice(0, (total + 7) // 8) if total <= _LONG else pa.py_buffer(bytes(total))
        return pa.Array.from_buffers(pa.bool_(), total, [None, zeros])
    return pa.array(np.repeat(np.array(values, np.bool_), counts))


def _origins(values: list[str | None], runs: _Runs) -> pa.Array:
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
    """Return where values begin and end: so many of each size."""
    total = sum(counts)
    if len(sizes) > 1:
        found = np.zeros(total + 1, np.int32)
        np.cumsum(np.repeat(np.array(sizes, np.int64), counts), out=found[1:])
        return found
    size = sizes[0]
    if not _OFTEN <= total <= _LONG or size > _MANY:
        return np.arange(total + 1, dtype=np.int32) * np.int32(size)
    return _long_ends(size)[: total + 1]


@lru_cache(_KEPT)
def _long_ends(size: int) -> np.ndarray[Any, Any]:
    return np.arange(_LONG + 1, dtype=np.int32) * np.int32(size)


def _payloads_and_topics(batches: list[Batch], runs: _Runs) -> tuple[pa.Array, pa.Array]:
    """Cut the payloads out of the bytes that came over the wire, and name the topic of each."""
    if not any(batch.mixed for batch in batches):
        return _payloads(batches, runs), _topics([batch.topic for batch in batches], runs)
    columns = [_cut_alike(list(alike)) for _, alike in groupby(batches, _mixed_gap)]
    topic = pa.concat_arrays([one[1] for one in columns])
    ends = pa.array(np.arange(1, runs.total + 1, dtype=np.int32))
    return pa.concat_arrays([one[0] for one in columns]), _run_ends(2, ends, topic, runs.total)


def _payloads(batches: list[Batch], runs: _Runs) -> pa.Array:
    """Make the payloads of batches that are not mixed a column."""
    if len(batches) == 1:
        return _strided(batches[0])
    total = runs.total
    sizes = [batch.stride - batch.payload_at for batch in batches]
    if len(set(sizes)) == 1 and total > len(batches):
        return _binary(ends(sizes[:1], [total]), _together(batches, sizes[0], total))
    return _binary(ends(sizes, runs.counts), b"".join([_cut_out(batch) for batch in batches]))


def _together(batches: list[Batch], size: int, total: int) -> np.ndarray[Any, Any]:
    """Copy payloads of one size from several batches to one place: many small ones at once, if possible."""
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
    """Return the payloads of a batch, one after the other."""
    if batch.count == 1:
        return batch.data[batch.payload_at :] if batch.payload_at else batch.data
    return _packed(batch).data


def _binary(ends: np.ndarray[Any, Any], data: np.ndarray[Any, Any] | bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def spaced(batch: Batch) -> np.ndarray[Any, Any]:
    """Return the payloads, not empty ones, where they lie, each as one item: faster to copy than rows."""
    at, stride = batch.payload_at, batch.stride
    return np.ndarray((batch.count,), item(stride - at), batch.data, at, (stride,))


@lru_cache(1_024)
def item(size: int) -> np.dtype[np.void]:
    """Return the type of items of a size, which takes numpy a while to tell from its name."""
    return np.dtype(f"V{size}")


def _packed(batch: Batch) -> np.ndarray[Any, Any]:
    """Copy the payloads of a batch together, without what lies between them."""
    if batch.stride == batch.payload_at:
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(spaced(batch)).view(np.uint8)


def _strided(batch: Batch) -> pa.Array:
    return _binary(ends([batch.stride - batch.payload_at], [batch.count]), _packed(batch))


def _mixed_gap(batch: Batch) -> int:
    return batch.payload_at if batch.mixed else -1


def _cut_alike(batches: list[Batch]) -> tuple[pa.Array, pa.Array]:
    """Return the payloads and the topics of batches that are mixed, with one gap, or not mixed."""
    if not batches[0].mixed:
        counts = [batch.count for batch in batches]
        names = _names([batch.topic for batch in batches])
        topics = names.take(pa.array(np.repeat(np.arange(len(batches)), counts)))
        return _payloads(batches, _Runs(counts, sum(counts))), topics
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
        return _nothing(7, total)
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
    return pa.nulls(1, pa.struct(_CARRIED))


@lru_cache(_KEPT)
def _one_row(values: Values) -> pa.Array:
    return _property_rows([values])


def _values(properties: Properties | None) -> Values:
    return _NO_VALUES if properties is None else _get_values(properties)


def _property_rows(carried: Sequence[Values]) -> pa.Array:
    columns = []
    for field, values in zip(_CARRIED, zip(*carried, strict=True), strict=True):
        if field.name == "user_properties":
            values = tuple(
                [{"key": key, "value": value} for key, value in pairs] if pairs else None for pairs in values
            )
        columns.append(pa.array(values, field.type))
    return pa.StructArray.from_arrays(columns, fields=_CARRIED)


# And back


@cache
def _nulls(number: int) -> pa.Array:
    """Make column `number` of nothing, for parts of it to be used: most messages have no properties."""
    kind = SCHEMA.field(number).type
    if not pa.types.is_list(kind):
        return pa.nulls(_LONG, kind)
    # Arrow's own has as many items as lists.
    buffers = [pa.py_buffer(bytes(_LONG // 8)), pa.py_buffer(bytes(4 * _LONG + 4))]
    return pa.Array.from_buffers(kind, _LONG, buffers, _LONG, 0, [pa.array([], kind.value_type)])


def plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return what was stored as rows with a column for everything, and a value for each message."""
    total = rows.num_rows
    first, time, topic, payload, qos, retain, origin, packet_id, properties = rows.columns
    offset = first.values[0].as_py()
    columns = [
        pa.array(np.arange(offset, offset + total)),
        time,
        _texts(2, topic, total),
        payload,
        qos,
        retain,
        _texts(6, origin, total),
        packet_id,
    ]
    carried = properties.values
    if carried.null_count == len(carried):
        columns += [_nothing(number, total) for number in range(8, len(SCHEMA))]
    else:
        lengths = np.diff(properties.run_ends.to_numpy(), prepend=0)
        places = pa.array(np.repeat(np.arange(len(carried)), lengths))
        for number in range(len(_CARRIED)):
            values = carried.field(number)
            nothing = values.null_count == len(values)
            columns.append(_nothing(8 + number, total) if nothing else values.take(places))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _nothing(number: int, total: int) -> pa.Array:
    """Return column `number` for messages that have none of it."""
    return _nulls(number).slice(0, total) if total <= _LONG else pa.nulls(total, SCHEMA.field(number).type)


def _texts(number: int, column: pa.RunEndEncodedArray, total: int) -> pa.Array:
    values = column.values
    if len(values) == total:
        return values
    if len(values) > 1 or total > _MANY:
        return pc.run_end_decode(column)
    text = values[0].as_py()
    if text is None:
        return _nothing(number, total)
    return _repeated(text).slice(0, total) if len(text) <= _SHORT else pc.run_end_decode(column)


@lru_cache(_KEPT)
def _repeated(text: str) -> pa.Array:
    """Make a column of one text, for parts of it to be used: that is faster than to repeat it every time."""
    return pa.repeat(pa.scalar(text), _MANY)


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
