"""Cast columns of text to other types; a value that Arrow cannot cast becomes null."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = np.ndarray[Any, np.dtype[np.bool_]]

SPLIT_PIECES = 8
"""Number of pieces into which a rejected batch is split."""


def cast(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return the cast column, with null for what cannot be cast, and a mask of those rows."""
    try:
        return cast_all(array, kind), np.zeros(len(array), np.bool_)
    except pa.ArrowInvalid:
        if len(array) == 1:
            return pa.nulls(1, kind), np.ones(1, np.bool_)
    step = -(-len(array) // SPLIT_PIECES)
    pieces = [cast(array.slice(at, step), kind) for at in range(0, len(array), step)]
    return pa.concat_arrays([good for good, _ in pieces]), np.concatenate([bad for _, bad in pieces])


def cast_all(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast, or raise ArrowInvalid. A time without a time zone is UTC."""
    if pa.types.is_timestamp(kind):
        return _within(_times(array, kind), datetime.min, datetime.max)
    if pa.types.is_date(kind):
        return _within(array.cast(kind), date.min, date.max)
    return array.cast(kind)


def _times(array: pa.Array, kind: pa.TimestampType) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        if kind.tz is None:
            raise
        return array.cast(pa.timestamp(kind.unit)).cast(kind)


def _within(array: pa.Array, least: date, most: date) -> pa.Array:
    """Reject times outside the years 1 to 9999, the range of Spark's and Python's types."""
    kind = array.type
    plain = pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind
    low, high = (pa.scalar(limit, plain).cast(kind) for limit in (least, most))
    found = pc.min_max(array)
    if found["min"].is_valid and (found["min"].value < low.value or found["max"].value > high.value):
        raise pa.ArrowInvalid("time outside the years 1 to 9999")
    return array
