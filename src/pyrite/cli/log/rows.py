"""Messages of the log as lines of text, JSON lines, or CSV fields."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

BYTES = ("payload", "correlation_data")


def times_of(batch: pa.RecordBatch) -> list[str]:
    """Return the timestamps as text."""
    return [text_of(time) for time in batch.column(1).view(pa.int64()).to_pylist()]


def text_of(microseconds: int) -> str:
    """Format a timestamp, in UTC."""
    return f"{np.datetime64(microseconds, 'us')}Z"


def lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield a line per message: time, topic, payload."""
    topics, payloads = batch.column(2).to_pylist(), batch.column(3).to_pylist()
    for time, topic, payload in zip(times_of(batch), topics, payloads, strict=True):
        yield b"%s %s %s\n" % (time.encode(), topic.encode(), payload)


def objects(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield a dictionary per message, without null columns; bytes that are not UTF-8 are base64."""
    names = [name for name in batch.schema.names if batch.column(name).null_count < batch.num_rows]
    columns = [times_of(batch) if name == "timestamp" else batch.column(name).to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        message: dict[str, Any] = {}
        for name, value in zip(names, values, strict=True):
            if value is None:
                continue
            if name in BYTES:
                try:
                    message[name] = value.decode()
                except UnicodeDecodeError:
                    message[f"{name}_base64"] = base64.b64encode(value).decode()
            elif name == "user_properties":
                message[name] = [[pair["key"], pair["value"]] for pair in value]
            else:
                message[name] = value
        yield message


def json_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield a line of JSON per message."""
    for message in objects(batch):
        yield json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
