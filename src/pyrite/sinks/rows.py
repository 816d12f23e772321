"""Validation of staged rows: each must be a valid message.

Rows are checked before they are staged, so that the writer gets the error. A commit with an invalid row could
never finish.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyrite.storage.query import SCHEMA, QueryError

ACCEPTED = tuple(name for name in SCHEMA.names if name not in ("offset", "timestamp", "client_id"))
"""The columns that a part may have; topic and payload are required."""
MAX_TEXT = 65_535
"""Maximum bytes of a text, or of correlation data: MQTT encodes the length in two bytes."""
MAX_MESSAGE = 268_000_000
"""Maximum bytes of a message: an MQTT packet has at most 268,435,455, including its headers."""
SHOWN = 40
"""Characters of a value that an error shows."""

_RANGES = {
    "qos": (0, 2, "0, 1 or 2"),
    "payload_format": (0, 1, "0 or 1"),
    "message_expiry": (0, 2**32 - 1, "0 to 4294967295 seconds"),
}
_TOPICS = ("topic", "response_topic")
_TEXTS = (*_TOPICS, "content_type")


def check_schema(schema: pa.Schema) -> None:
    """Raise QueryError for missing, unknown or duplicate columns, and wrong types."""
    for name in ("topic", "payload"):
        if name not in schema.names:
            raise QueryError(f"column {name!r} is missing")
    for field in schema:
        if field.name not in ACCEPTED:
            raise QueryError(f"a message has no column {field.name!r}; expected {', '.join(ACCEPTED)}")
        if schema.names.count(field.name) > 1:
            raise QueryError(f"duplicate column {field.name!r}")
        if field.type != SCHEMA.field(field.name).type:
            raise QueryError(
                f"column {field.name!r}: expected {SCHEMA.field(field.name).type}, not {field.type}"
            )


def check_rows(rows: pa.RecordBatch) -> None:
    """Raise QueryError if a row is not a valid message."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            column.validate(full=True)  # also checks that texts are UTF-8
        except pa.ArrowInvalid as wrong:
            raise QueryError(f"column {name!r}: {wrong}") from None
        if name in ("topic", "payload") and column.null_count:
            raise QueryError(f"column {name!r} has a row without a value")
        if name in _RANGES:
            least, most, expected = _RANGES[name]
            outside = pc.or_(pc.less(column, least), pc.greater(column, most))
            _refuse(name, column, outside, expected)
        elif name in _TEXTS:
            _check_text(name, pc.unique(column))  # few distinct topics
        elif name == "correlation_data":
            _check_size(name, column)
        elif name == "user_properties":
            _check_pairs(name, column)
    if rows.nbytes > MAX_MESSAGE:
        sizes = _sizes(rows)
        if sizes.max() > MAX_MESSAGE:
            raise QueryError(f"expected at most {MAX_MESSAGE} bytes in a message, not {sizes.max()}")


def _check_text(name: str, column: pa.Array) -> None:
    _check_size(name, column)
    if name in _TOPICS:
        _refuse(name, column, pc.equal(pc.binary_length(column), 0), "a nonempty topic name")
        wildcards = pc.or_(pc.match_substring(column, "+"), pc.match_substring(column, "#"))
        _refuse(name, column, wildcards, "a topic name without wildcards")
    _refuse(name, column, pc.match_substring(column, "\0"), "a text without null characters")


def _check_size(name: str, column: pa.Array) -> None:
    _refuse(name, column, pc.greater(pc.binary_length(column), MAX_TEXT), f"at most {MAX_TEXT} bytes")


def _check_pairs(name: str, column: pa.Array) -> None:
    pairs = column.flatten()
    for part in pairs.flatten():
        _refuse(name, pairs, part.is_null(), "a key and a value in every pair")
        _check_text(name, part)


def _refuse(name: str, column: pa.Array, wrong: pa.Array, expected: str) -> None:
    """Raise QueryError for the first row that is marked as wrong."""
    at = pc.index(wrong, True).as_py()
    if at >= 0:
        raise QueryError(f"column {name!r}: expected {expected}, not {_shown(column[at].as_py())}")


def _shown(value: object) -> str:
    if isinstance(value, str | bytes) and len(value) > SHOWN:
        size = len(value.encode() if isinstance(value, str) else value)
        return f"{value[:SHOWN]!r}... ({size} bytes)"
    return repr(value)


def _sizes(rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the bytes of each row."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("payload", "correlation_data", *_TEXTS):
        if name in rows.schema.names:
            sizes += pc.binary_length(rows.column(name)).fill_null(0).to_numpy()
    if "user_properties" in rows.schema.names:
        column = rows.column("user_properties")
        rows_of = pc.list_parent_indices(column).to_numpy()
        for part in column.flatten().flatten():
            length = pc.binary_length(part).to_numpy() + 3
            sizes += np.bincount(rows_of, length, rows.num_rows).astype(np.int64)
    return sizes
