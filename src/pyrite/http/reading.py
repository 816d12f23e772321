"""Reads messages from the log's files, in bounded time and memory. Runs in a thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from pyrite.ipc.api.log import StoredMessage
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import SCHEMA, Query

SEARCH_TIME = 5.0
"""Seconds after which a search ends early; the answer says where to continue."""
MAX_STEP = 1_048_576
"""Maximum offsets searched in one step; the first step is as large as the limit."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Found(NamedTuple):
    """Messages of a stream."""

    batches: list[pa.RecordBatch]
    next: int | None
    """The offset to continue from; None if there are no more messages."""
    skipped: list[str]
    """Descriptions of messages that are damaged or were removed."""


class MessageSearch:
    """Searches the log of one data folder."""

    def __init__(self, data: Path) -> None:
        self._folder = LogFolder(data)

    def find(self, stream: str, topic_filter: str, position: str, limit: int, size: int) -> Found:
        """Return up to `limit` messages from a position, and up to `size` bytes, but at least one message."""
        deadline = time.monotonic() + SEARCH_TIME
        start = self._folder.offset(stream, position)
        first, end = self._folder.bounds(stream)
        found = Found([], None, [])
        if start < first:  # in one step, because the first message may be far away
            found.skipped.append(f"stream {stream}: offsets {start} to {first - 1} are not kept any longer")
            start = first
        topics = () if topic_filter == "#" else (topic_filter,)
        step = limit
        while start < end:
            stop = min(end, start + step)
            step = min(step * 2, MAX_STEP)
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


def _fitting(batch: pa.RecordBatch, limit: int, size: int) -> int:
    """Return the number of messages that fit into `size` bytes."""
    rows: int = min(limit, batch.num_rows)
    if batch.nbytes <= size:
        return rows
    room: int = int(np.searchsorted(np.cumsum(_lengths(batch.slice(0, rows))), size, "right"))
    return min(rows, max(1, room))


def _lengths(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes of each message in all columns."""
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


def messages(batch: pa.RecordBatch) -> Iterator[StoredMessage]:
    """Yield the messages of a batch as structures of the API."""
    columns = {name: batch.column(name).to_pylist() for name in SCHEMA.names if name != "timestamp"}
    times = batch.column("timestamp").view(pa.int64()).to_pylist()
    for at, microseconds in enumerate(times):
        row = {name: values[at] for name, values in columns.items() if values[at] is not None}
        message = StoredMessage(
            offset=row["offset"],
            timestamp=EPOCH + timedelta(microseconds=microseconds),
            topic=row["topic"],
            payload_base64=row["payload"],
            qos=row["qos"],
            retain=row["retain"],
            client_id=row.get("client_id", UNSET),
            payload_format=row.get("payload_format", UNSET),
            message_expiry=row.get("message_expiry", UNSET),
            content_type=row.get("content_type", UNSET),
            response_topic=row.get("response_topic", UNSET),
            correlation_data_base64=row.get("correlation_data", UNSET),
        )
        if "user_properties" in row:
            message.user_properties = [(pair["key"], pair["value"]) for pair in row["user_properties"]]
        message.show_text()
        yield message
