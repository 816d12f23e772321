"""Messages out of the log's files: no more than was asked for, in bounded time and memory. In a thread."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyrite.http.requests import put_payload
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import SCHEMA, Query
from pyrite.storage.stream import chosen

TIME = 5.0
"""Seconds after which a search is broken off; the answer says where to go on."""
LAST_STEP = 1_048_576
"""Offsets that are read through at a time, at most; at first as many as messages are wanted."""
CLOSE = 1_000
"""Offsets that may lie between two messages for them to be read together."""


class Found(NamedTuple):
    """Messages of a stream."""

    batches: list[pa.RecordBatch]
    next: int | None
    """From where on there may be more; None if there are not."""
    skipped: list[str]
    """What was left out, as it is damaged or not kept any longer."""


class Log:
    """The log of one data folder."""

    def __init__(self, data: Path) -> None:
        self._folder = LogFolder(data)
        self._data = data

    def sizes(self, stream: str) -> dict[str, int]:
        """Return how many bytes and segments a stream has."""
        size = 0
        paths = list((self._data / "streams" / stream).iterdir())
        for path in paths:
            try:
                size += path.stat().st_size
            except FileNotFoundError:
                pass  # it has become Parquet, or was dropped
        return {"bytes": size, "segments": len(chosen(path.name for path in paths))}

    def find(self, stream: str, topic_filter: str, position: str, limit: int, size: int) -> Found:
        """Return messages from a position on: at most `limit`, and of `size` bytes (but the first of any)."""
        deadline = time.monotonic() + TIME
        start = self._folder.offset(stream, position)
        first, end = self._folder.bounds(stream)
        found = Found([], None, [])
        if start < first:  # at once, for there may be many steps to the first that is kept
            found.skipped.append(f"stream {stream}: offsets {start} to {first - 1} are not kept any longer")
            start = first
        topics = () if topic_filter == "#" else (topic_filter,)
        step = limit
        while start < end:
            stop = min(end, start + step)
            step = min(step * 2, LAST_STEP)
            query = Query(stream, start, stop, topics, lost="skip")
            for batch in self._folder.read(query, found.skipped.append):
                rows = _fitting(batch, limit, size)
                if rows:
                    found.batches.append(batch.slice(0, rows))
                    limit -= rows
                    size -= batch.slice(0, rows).nbytes
                if rows < batch.num_rows or not limit:
                    after = batch.column(0)[rows - 1].as_py() + 1 if rows else batch.column(0)[0].as_py()
                    return found._replace(next=after if after < end else None)
            start = stop
            if time.monotonic() > deadline:
                return found._replace(next=start if start < end else None)
        return found

    def fetch(self, places: Sequence[tuple[str, int]], size: int) -> list[dict[str, Any]]:
        """Return single messages, with the stream of each; what is not there any longer is left out.

        But for the first, they have at most `size` bytes; the rest is left out too.
        """
        messages: list[dict[str, Any]] = []
        for stream in dict.fromkeys(stream for stream, _ in places):
            offsets = np.array(sorted(offset for one, offset in places if one == stream), np.int64)
            # Those that lie close together are read together.
            for part in np.split(offsets, np.flatnonzero(np.diff(offsets) > CLOSE) + 1):
                query = Query(stream, int(part[0]), int(part[-1]) + 1, lost="skip")
                for batch in self._folder.read(query):
                    wanted = batch.filter(pa.array(np.isin(batch.column(0).to_numpy(), part)))
                    rows = _fitting(wanted, wanted.num_rows, size)
                    size -= wanted.nbytes
                    messages += ({"stream": stream, **one} for one in objects(wanted.slice(0, rows)))
                    if size <= 0:
                        return messages
        return messages


def _fitting(batch: pa.RecordBatch, limit: int, size: int) -> int:
    """Return how many messages, from the first, there is room for; `size` is what they may have in bytes."""
    rows: int = min(limit, batch.num_rows)
    if batch.nbytes <= size:
        return rows
    room: int = int(np.searchsorted(np.cumsum(_lengths(batch.slice(0, rows))), size, "right"))
    return min(rows, max(1, room))


def _lengths(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return how many bytes each message has in its texts: topics may be as long as payloads."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_list(column.type):
            pairs = column.flatten()
            ends = np.cumsum([0, *_of(pairs.field(0)) + _of(pairs.field(1))])
            counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
            total += np.diff(ends[np.cumsum([0, *counts])])
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            total += _of(column)
    return total


def _of(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    found = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.int64)


def arrow_stream(found: Found) -> bytes:
    """Return messages as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for batch in found.batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def objects(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield each message as an object with what it has; a payload that is not UTF-8 is in base64."""
    columns = [(name, batch.column(name).to_pylist()) for name in SCHEMA.names if name != "timestamp"]
    times = batch.column("timestamp").view(pa.int64()).to_pylist()
    for at, moment in enumerate(times):
        message: dict[str, Any] = {}
        for name, values in columns:
            value = values[at]
            if name == "topic":
                message["timestamp"] = f"{np.datetime64(moment, 'us')}Z"
            if value is None:
                continue
            if name == "payload":
                put_payload(message, value)
            elif name == "correlation_data":
                message["correlation_data_base64"] = base64.b64encode(value).decode()
            elif name == "user_properties":
                message[name] = [[pair["key"], pair["value"]] for pair in value]
            else:
                message[name] = value
        yield message
