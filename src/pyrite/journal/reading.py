"""Reading the log for those who follow it: a piece at a time, through filters. In a thread of its own."""

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

PIECE_MESSAGES = 4_000
PIECE_BYTES = 1024 * 1024
"""How much a piece may hold: what is handled in the event loop at a time."""
SCANNED = 500_000
"""Messages that are looked at for one piece, even if none was wanted: others want to read too."""
GATHER = 4_000
"""Messages that are looked at together at least, however small the batches they are in."""
MAX_SPAN = 16_000
"""Offsets between the first and the last of the single messages that are read together."""
READ_TIME = 0.02
"""Seconds after which a piece ends, so that other readers have their turn."""

Found = tuple[Batch, int, int]
"""Messages, their first offset, and their time."""


class RawPiece(NamedTuple):
    """What was read: times are still those of the clock on the wall."""

    found: list[Found]
    next_offset: int


def read_piece(
    reader: StreamReader, offset: int, stop: int, wanted: Wanted, report: Callable[[Damage], object]
) -> RawPiece:
    """Read some of what is wanted from `offset` on and before `stop`; damage is reported and passed over."""
    found: list[Found] = []
    messages = size = scanned = 0
    gathered: list[pa.RecordBatch] = []
    count = weight = 0
    position = offset
    until = time.monotonic() + READ_TIME
    for piece in reader.read(offset, stop):
        if isinstance(piece, Damage):
            report(piece)
            continue
        gathered.append(piece)
        count += piece.num_rows
        weight += piece.column(3).nbytes
        if count < GATHER and weight < PIECE_BYTES:
            continue
        position, number, number_bytes, rows = _look(gathered, wanted, found, PIECE_MESSAGES - messages)
        messages += number
        size += number_bytes
        scanned += rows
        gathered, count, weight = [], 0, 0
        over = time.monotonic() > until
        if over or messages >= PIECE_MESSAGES or size >= PIECE_BYTES or scanned >= SCANNED:
            return RawPiece(found, position)
    if gathered:
        position, *_ = _look(gathered, wanted, found, PIECE_MESSAGES - messages)
        if position <= gathered[-1].column(0)[-1].as_py():
            return RawPiece(found, position)
    return RawPiece(found, stop)


def _look(
    gathered: list[pa.RecordBatch], wanted: Wanted, found: list[Found], most: int
) -> tuple[int, int, int, int]:
    """Pick what is wanted; return the next offset, and the messages, bytes and rows that were dealt with."""
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
    """Read single messages, with their times, for a while; return them, and the offsets that are left.

    What is no longer there is in neither. `offsets` are in order, each once.
    """
    found: dict[int, tuple[Batch, int]] = {}
    until = time.monotonic() + READ_TIME
    at = 0
    while at < len(offsets):
        last = at
        while (
            last + 1 < len(offsets)
            and offsets[last + 1] - offsets[last] < GATHER
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
