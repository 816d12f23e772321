"""Columns of text as columns of another type: as Arrow casts them, and null where it cannot."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = np.ndarray[Any, np.dtype[np.bool_]]

PIECES = 8
"""So many pieces are made of what is refused."""


def cast(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Cast what can be cast, and tell where something could not, and is null."""
    try:
        return cast_all(array, kind), np.zeros(len(array), np.bool_)
    except pa.ArrowInvalid:
        if len(array) == 1:
            return pa.nulls(1, kind), np.ones(1, np.bool_)
    step = -(-len(array) // PIECES)
    pieces = [cast(array.slice(at, step), kind) for at in range(0, len(array), step)]
    return pa.concat_arrays([good for good, _ in pieces]), np.concatenate([bad for _, bad in pieces])


def cast_all(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast, or raise ArrowInvalid. A time without a zone is UTC."""
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
    """Refuse what is not in the years 1 to 9999: neither Spark's types nor Python's go further."""
    kind = array.type
    plain = pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind
    low, high = (pa.scalar(limit, plain).cast(kind) for limit in (least, most))
    found = pc.min_max(array)
    if found["min"].is_valid and (found["min"].value < low.value or found["max"].value > high.value):
        raise pa.ArrowInvalid("it is not in the years 1 to 9999")
    return array
