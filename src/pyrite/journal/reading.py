"""Filtered reads of a stream, a piece at a time. In the reading thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyrite.broker.journal import Wanted
from pyrite.broker.message import Batch
from pyrite.journal.decoding import batches_in
from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader

MAX_PIECE_MESSAGES = 4_000
MAX_PIECE_BYTES = 1024 * 1024
"""How much a piece may hold: the event loop handles it in one go."""
MAX_SCANNED = 500_000
"""Messages examined for one piece, even if none was wanted: other readers wait."""
MIN_EXAMINED = 4_000
"""Messages that are examined together, however small their record batches are."""
MAX_SPAN = 16_000
"""Offsets between the first and the last of single messages that are read together."""
MAX_READ_TIME = 0.02
"""Seconds after which a piece ends, because other readers wait."""

Found = tuple[Batch, int, int]
"""A batch, its first offset, and its time."""


class RawPiece(NamedTuple):
    """A piece whose times are still those of the wall clock."""

    found: list[Found]
    next_offset: int


def read_piece(
    reader: StreamReader, offset: int, stop: int, wanted: Wanted, report: Callable[[Damage], object]
) -> RawPiece:
    """Read some wanted messages from `offset` up to `stop`; damage is reported and skipped."""
    found: list[Found] = []
    messages = size = scanned = 0
    gathered: list[pa.RecordBatch] = []
    count = weight = 0
    position = offset
    until = time.monotonic() + MAX_READ_TIME
    for piece in reader.read(offset, stop):
        if isinstance(piece, Damage):
            report(piece)
            continue
        gathered.append(piece)
        count += piece.num_rows
        weight += piece.column(3).nbytes
        if count < MIN_EXAMINED and weight < MAX_PIECE_BYTES:
            continue
        position, number, number_bytes, rows = _examine(
            gathered, wanted, found, MAX_PIECE_MESSAGES - messages
        )
        messages += number
        size += number_bytes
        scanned += rows
        gathered, count, weight = [], 0, 0
        over = time.monotonic() > until
        if over or messages >= MAX_PIECE_MESSAGES or size >= MAX_PIECE_BYTES or scanned >= MAX_SCANNED:
            return RawPiece(found, position)
    if gathered:
        position, *_ = _examine(gathered, wanted, found, MAX_PIECE_MESSAGES - messages)
        if position <= gathered[-1].column(0)[-1].as_py():
            return RawPiece(found, position)
    return RawPiece(found, stop)


def _examine(
    gathered: list[pa.RecordBatch], wanted: Wanted, found: list[Found], most: int
) -> tuple[int, int, int, int]:
    """Add wanted messages to `found`; return the next offset, and how many messages, bytes and rows were
    examined.
    """
    rows = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
    topics = rows.column(2).dictionary_encode()
    names = [name.encode() for name in topics.dictionary.to_pylist()]
    good = np.array([wanted(name) for name in names], np.bool_)
    keep = good[topics.indices.to_numpy()]
    if wanted.least_qos:
        keep &= rows.column(4).to_numpy() >= wanted.least_qos
    chosen = np.flatnonzero(keep)
    if len(chosen) > most:
        limit = int(chosen[most])
        rows = rows.slice(0, limit)
        keep = keep[:limit]
        chosen = chosen[:most]
    size = 0
    if len(chosen):
        whole = len(chosen) == rows.num_rows
        for one in batches_in(rows, None if whole else keep):
            found.append(one)
            size += len(one[0].data)
    last: int = rows.column(0)[-1].as_py()
    return last + 1, len(chosen), size, rows.num_rows


def fetch(
    reader: StreamReader, offsets: Sequence[int], report: Callable[[Damage], object]
) -> tuple[dict[int, tuple[Batch, int]], list[int]]:
    """Read single messages, with their times, for one turn; return them and the offsets that are left.

    Messages that no longer exist are in neither. `offsets` are sorted and unique.
    """
    found: dict[int, tuple[Batch, int]] = {}
    until = time.monotonic() + MAX_READ_TIME
    at = 0
    while at < len(offsets):
        last = at
        while (
            last + 1 < len(offsets)
            and offsets[last + 1] - offsets[last] < MIN_EXAMINED
            and offsets[last + 1] - offsets[at] < MAX_SPAN
        ):
            last += 1
        ours = list(offsets[at : last + 1])
        for piece in reader.read(ours[0], ours[-1] + 1):
            if isinstance(piece, Damage):
                report(piece)
                continue
            keep = np.isin(piece.column(0).to_numpy(), ours)
            for batch, first, when in batches_in(piece, keep):
                for number in range(batch.count):
                    found[first + number] = (batch.part(number, number + 1), when)
        at = last + 1
        if time.monotonic() > until:
            break
    return found, list(offsets[at:])
