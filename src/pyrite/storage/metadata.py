"""Where the fields of a record batch's Arrow metadata, a flatbuffer, are.

A flatbuffer begins with the place of its outermost table. A table begins with the distance to the list of its
fields, which lies before it: two bytes a field, counted from the table. A vector is its length, in four
bytes, and then its items.
"""

from __future__ import annotations

Metadata = bytes | bytearray | memoryview


def body_size_at(metadata: Metadata) -> int:
    """Return where the size of the message's body is."""
    return _field_at(metadata, _follow(metadata, 0), 3)


def rows_at(metadata: Metadata) -> int:
    """Return where the number of rows is."""
    return _field_at(metadata, _record_batch(metadata), 0)


def nodes_at(metadata: Metadata) -> int:
    """Return where the numbers of rows and nulls are: of a column, then of its children."""
    return _follow(metadata, _field_at(metadata, _record_batch(metadata), 1)) + 4


def buffers_at(metadata: Metadata) -> int:
    """Return where the places and sizes of the buffers are."""
    return _follow(metadata, _field_at(metadata, _record_batch(metadata), 2)) + 4


def _record_batch(metadata: Metadata) -> int:
    return _follow(metadata, _field_at(metadata, _follow(metadata, 0), 2))


def _field_at(metadata: Metadata, table: int, number: int) -> int:
    """Return where a field of a table is; the table must have the field."""
    places = table - int.from_bytes(metadata[table : table + 4], "little", signed=True)
    at = places + 4 + 2 * number
    return table + int.from_bytes(metadata[at : at + 2], "little")


def _follow(metadata: Metadata, at: int) -> int:
    """Return the place that a relative reference at `at` leads to."""
    return at + int.from_bytes(metadata[at : at + 4], "little")
