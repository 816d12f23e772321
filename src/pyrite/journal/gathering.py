"""Messages of a stream that wait to be written: batches, then columns, then the bytes of record batches. HOT.

Columns are built in the event loop, where the bytes are in the processor's cache, and compressed in the
writing thread, with few calls into Arrow: with each call, threads of Python hand over the interpreter, and
that blocks the event loop for longer than building the columns does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from pyrite.broker.message import Batch
from pyrite.journal.decoding import batches_in
from pyrite.journal.encoding import Entry, build, rows_of
from pyrite.storage import frames
from pyrite.storage.frames import Encoded
from pyrite.storage.schema import plain
from pyrite.storage.tail import Row

logger = logging.getLogger(__name__)

MAX_MESSAGES = 32_768
MAX_BYTES = 2 * 1024 * 1024
MAX_ENTRIES = 2_048
"""Messages, bytes and batches that become a record batch: more would block the event loop for too long."""
MAX_BUILT_BYTES = 2 * MAX_BYTES
"""Bytes above which columns are built in the writing thread."""
MAX_ROWS = 64
MAX_ROW_BYTES = 16 * 1024
"""Messages, and bytes, of a group up to which it is written to the tail, as rows."""

Found = tuple[Batch, int, int]
"""A batch, the offset of its first message, and its time."""


class Columns(NamedTuple):
    """A record batch that is not encoded yet, and what its index record will say."""

    rows: pa.RecordBatch
    first: int
    messages: int
    earliest: int
    latest: int


Piece = Columns | list[Entry]
"""Consecutive messages that become one record batch, or rows of the tail."""


class Gathering:
    """The messages of one group and stream. Used in the event loop, and, once cut, by the writing thread."""

    __slots__ = (
        "_count",
        "_decoded",
        "_entries",
        "_size",
        "_waited",
        "end",
        "pieces",
        "promised",
        "unpromised",
    )

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._entries: list[Entry] = []
        """Batches that are in no piece yet."""
        self._count = self._size = 0
        """Their messages and bytes."""
        self._decoded: dict[int, list[Found]] = {}
        """By the number of a piece, its QoS 0 messages."""
        self._waited: set[int] = set()
        """Offsets of QoS 0 messages that a publisher waits for."""
        self.end = 0
        """The offset after the last message."""
        self.promised = False
        """Whether a publisher waits for a message."""
        self.unpromised = 0
        """The number of messages that no publisher waits for."""

    def add(self, batch: Batch, now: int, packet_ids: Sequence[int] | None, waited: bool) -> None:
        """Add a batch; `waited` if its publisher is told when it is durable."""
        self.end = batch.offset + batch.count
        if waited:
            self.promised = True
            if not batch.qos:
                self._waited.update(range(batch.offset, self.end))
        else:
            self.unpromised += batch.count
        self._entries.append(Entry(batch, now, packet_ids))
        self._count += batch.count
        self._size += len(batch.data)
        if self._count >= MAX_MESSAGES or self._size >= MAX_BYTES or len(self._entries) >= MAX_ENTRIES:
            self.cut()

    def cut(self) -> None:
        """Make a piece of the batches that are in none."""
        entries, self._entries = self._entries, []
        few = self._count <= MAX_ROWS and self._size <= MAX_ROW_BYTES
        large = self._size >= MAX_BUILT_BYTES
        self._count = self._size = 0
        if not entries:
            return
        piece: Piece = entries
        if not few and not large:
            try:
                piece = _columns(entries)
            except Exception as error:  # tried again in the writing thread, and publishers are told
                logger.warning("columns of messages could not be built, and are tried again: %r", error)
        self.pieces.append(piece)

    def rows(self) -> list[Row] | None:
        """Return the messages as rows of the tail; None if there are too many."""
        if len(self.pieces) != 1:
            return None
        entries = self.pieces[0]
        if not isinstance(entries, list):
            return None
        count = sum(entry.batch.count for entry in entries)
        if count > MAX_ROWS or sum(len(entry.batch.data) for entry in entries) > MAX_ROW_BYTES:
            return None
        return rows_of(entries)

    def release(self) -> None:
        """Free the messages: they were written, or could not be."""
        self.pieces = []
        self._decoded = {}

    def unrouted(self) -> list[Found]:
        """Return the messages that were delivered before they are durable."""
        found: list[Found] = []
        for number, piece in enumerate(self.pieces):
            if isinstance(piece, list):
                found += _quiet(piece)
                continue
            if number not in self._decoded:
                self._decoded[number] = [one for one in batches_in(plain(piece.rows)) if not one[0].qos]
            found += self._decoded[number]
        found += _quiet(self._entries)
        return [one for one in found if one[1] not in self._waited]


def _quiet(entries: Sequence[Entry]) -> list[Found]:
    return [(entry.batch, entry.batch.offset, entry.timestamp) for entry in entries if not entry.batch.qos]


def _columns(entries: Sequence[Entry]) -> Columns:
    """Build the columns of consecutive batches."""
    first = entries[0].batch.offset
    count = entries[-1].batch.offset + entries[-1].batch.count - first
    return Columns(build(entries, first), first, count, entries[0].timestamp, entries[-1].timestamp)


def encode(pieces: Sequence[Piece]) -> list[Encoded]:
    """Return the bytes of the record batches."""
    columns = [_columns(piece) if isinstance(piece, list) else piece for piece in pieces]
    made = frames.encode_all([one.rows for one in columns])
    return [Encoded(frame, *one[1:]) for frame, one in zip(made, columns, strict=True)]


@cache
def warm_up() -> None:
    """Do what takes milliseconds the first time, before a client waits for it."""
    one = Gathering()
    batch = Batch(b"", bytes(64 * MAX_ROWS), 1, count=2 * MAX_ROWS, stride=32)
    batch.offset = 0
    one.add(batch, 0, None, True)
    one.cut()
    encode(one.pieces)
