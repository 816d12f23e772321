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
from pyrite.storage.segment import Damage, Passed
from pyrite.storage.stream import StreamReader
from pyrite.storage.wanted import Topics

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


class _Filter(NamedTuple):
    """What is prepared for a `Wanted`."""

    topics: Topics
    selecting: Topics | None
    """The same topics; None if every record batch holds one of them."""


def _filter_of(wanted: Wanted) -> _Filter:
    if wanted.prepared is None:
        topics = Topics(wanted.filters)
        wanted.prepared = _Filter(topics, None if b"#" in wanted.filters else topics)
    prepared: _Filter = wanted.prepared
    return prepared


def read_piece(
    reader: StreamReader, offset: int, stop: int, wanted: Wanted, report: Callable[[Damage], object]
) -> RawPiece:
    """Read some wanted messages from `offset` up to `stop`; damage is reported and skipped."""
    prepared = _filter_of(wanted)
    found: list[Found] = []
    gathered: list[pa.RecordBatch] = []
    messages = size = scanned = count = weight = 0
    until = time.monotonic() + MAX_READ_TIME
    for piece in reader.select(offset, stop, topics=prepared.selecting):
        if isinstance(piece, Damage):
            report(piece)
            continue
        if isinstance(piece, Passed):
            end = piece.last + 1
            scanned += end - piece.first
        else:
            gathered.append(piece)
            end = piece.column(0)[-1].as_py() + 1
            count += piece.num_rows
            weight += piece.column(3).nbytes
        over = scanned + count >= MAX_SCANNED or time.monotonic() > until
        if count < MIN_EXAMINED and weight < MAX_PIECE_BYTES and not over:
            continue
        if gathered:
            examined = _examine(gathered, prepared.topics, wanted.least_qos, MAX_PIECE_MESSAGES - messages)
            found += examined.found
            messages += examined.messages
            size += examined.size
            scanned += count
            if examined.left_at is not None:
                return RawPiece(found, examined.left_at)
            gathered, count, weight = [], 0, 0
        if over or messages >= MAX_PIECE_MESSAGES or size >= MAX_PIECE_BYTES:
            return RawPiece(found, end)
    if gathered:
        examined = _examine(gathered, prepared.topics, wanted.least_qos, MAX_PIECE_MESSAGES - messages)
        found += examined.found
        if examined.left_at is not None:
            return RawPiece(found, examined.left_at)
    return RawPiece(found, stop)


class _Examined(NamedTuple):
    """What was found in record batches."""

    found: list[Found]
    messages: int
    size: int
    left_at: int | None
    """The offset of the first wanted message for which there was no room; None if there was room for all."""


def _examine(gathered: list[pa.RecordBatch], topics: Topics, least_qos: int, most: int) -> _Examined:
    """Return at most `most` wanted messages of record batches."""
    rows = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
    keep = topics.mask(rows)
    if least_qos:
        keep &= rows.column(4).to_numpy() >= least_qos
    chosen = np.flatnonzero(keep)
    left_at = None
    if len(chosen) > most:
        limit = int(chosen[most])
        left_at = rows.column(0)[limit].as_py()
        rows, keep, chosen = rows.slice(0, limit), keep[:limit], chosen[:most]
    if not len(chosen):
        return _Examined([], 0, 0, left_at)
    found = list(batches_in(rows, None if len(chosen) == rows.num_rows else keep))
    return _Examined(found, len(chosen), sum(len(batch.data) for batch, _, _ in found), left_at)


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
