"""What gathers for a stream until it is written: batches, and the record batches that they become. HOT.

Payloads of large batches that no one waits for are compressed in the event loop's thread (blocks.py), while
they are in the processor's cache: it takes hardly longer than to copy them to where another thread would do
it, and a thread that has much to do takes a core from whoever sends. They are sent before that, so that those
who get them are at work meanwhile. Columns of others are built there too, and compressed in the writing
thread, with few calls into Arrow for many messages: with each of them threads of Python hand over the
interpreter, and that holds the event loop up for longer than the work itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from pyrite.broker.message import Batch
from pyrite.journal import blocks
from pyrite.journal.blocks import Block
from pyrite.journal.decoding import batches_in
from pyrite.journal.encoding import Entry, build, rows_of
from pyrite.journal.packed import encode as encode_packed
from pyrite.storage import frames
from pyrite.storage.frames import Encoded
from pyrite.storage.schema import plain
from pyrite.storage.tail import Row

logger = logging.getLogger(__name__)

MANY = 32_768
LARGE = 2 * 1024 * 1024
"""Messages, and bytes, from which on they become a record batch."""
TOO_LARGE = 2 * LARGE
"""Bytes whose columns are built where they are written: it takes too long for the event loop."""
WORTH_IT = 256
"""Messages from which on the payloads of a batch are compressed by themselves."""
FRESH = 8
"""Such batches that may wait until they were sent; more would take the event loop too long at a time."""
MAX_ROWS = 64
MAX_ROW_BYTES = 16 * 1024
"""Messages, and bytes, of a group up to which it is written to the tail, as rows."""
MANY_PACKED = 2 * MANY
LARGE_PACKED = 4 * LARGE
"""Messages, and bytes, of such batches from which on they become a record batch."""
ENOUGH = MANY // 4
"""Messages that become a record batch rather than share one with others that are kept in another way."""

Found = tuple[Batch, int, int]
"""A batch, the offset of its first message, and its time."""


class Rows(NamedTuple):
    """A record batch that is yet to be encoded, and what the index will say of it."""

    rows: pa.RecordBatch
    first: int
    number: int
    earliest: int
    latest: int


class Gathering:
    """What is written to one stream together. Used in the event loop's thread, but for `pieces`."""

    __slots__ = (
        "_blocks",
        "_count",
        "_decoded",
        "_entries",
        "_first",
        "_later",
        "_run",
        "_size",
        "_waited",
        "end",
        "fresh",
        "pieces",
        "promised",
        "unpromised",
    )

    def __init__(self) -> None:
        self.pieces: list[Encoded | Rows | list[Entry]] = []
        """What was cut off, in order."""
        self._entries: list[Entry] = []
        self._count = self._size = 0
        self._run: list[bytes] = []
        """Single messages like that of the last entry which follow it."""
        self._later: list[int] = []
        """When they came."""
        self._blocks: list[Block] = []
        """What came in place of entries: there are never both."""
        self.fresh: list[Entry] = []
        """What is to become more blocks when it was sent."""
        self._first = 0
        """The offset of the first message of blocks, or of what is to become one."""
        self._decoded: dict[int, list[Found]] = {}
        self._waited: set[int] = set()
        """Offsets of QoS 0 messages that someone waits for."""
        self.end = 0
        """The offset after the last message."""
        self.promised = False
        """Whether there are messages that someone waits for."""
        self.unpromised = 0
        """How many messages there are that no one waits for."""

    def add(self, batch: Batch, now: int, packet_ids: Sequence[int] | None, waited: bool) -> None:
        """Take a batch; `waited` if someone is to be told when it is safe."""
        self.end = batch.offset + batch.count
        if not waited and batch.count >= WORTH_IT and blocks.may_pack(batch) and self._may_pack():
            if not self._blocks and not self.fresh:
                self._first = batch.offset
            self.fresh.append(Entry(batch, now, None))
            self.unpromised += batch.count
            self._count += batch.count
            self._size += len(batch.data)
            if len(self.fresh) >= FRESH:
                self.pack()
            return
        if self._blocks or self.fresh:
            self._unpack()
        if waited:
            self.promised = True
            if not batch.qos:
                self._waited.update(range(batch.offset, self.end))
            self._begin(Entry(batch, now, packet_ids))
        else:
            self.unpromised += batch.count
            if batch.count == 1 and self._entries and _alike(batch, self._entries[-1].batch):
                self._run.append(batch.data)
                self._later.append(now)
            else:
                self._begin(Entry(batch, now, None))
        self._count += batch.count
        self._size += len(batch.data)
        if self._count >= MANY or self._size >= LARGE:
            self.cut()

    def pack(self) -> None:
        """Compress what is fresh."""
        fresh, self.fresh = self.fresh, []
        try:
            self._blocks += [blocks.pack(batch, now) for batch, now, _, _ in fresh]
        except Exception as error:  # it is written in the other way
            logger.warning("messages could not be compressed as they came: %r", error)
            self._entries = [*_unpacked(self._blocks, self._first), *fresh]
            self._blocks = []
        if self._count >= MANY_PACKED or self._size >= LARGE_PACKED:
            self.cut()

    def _begin(self, entry: Entry) -> None:
        self._end_run()
        self._entries.append(entry)

    def _end_run(self) -> None:
        """Make the last entry, and the single messages like it, one, if there are any."""
        if not self._run:
            return
        first, timestamp, _, _ = self._entries[-1]
        data = b"".join([first.data, *self._run])
        batch = _with_data(first, data, 1 + len(self._run), first.stride, first.payload_at)
        self._entries[-1] = Entry(batch, timestamp, None, self._later)
        self._run, self._later = [], []

    def _may_pack(self) -> bool:
        """Tell whether a batch may become a block; not beside a few that did not."""
        if self._entries:
            if self._count < ENOUGH:
                return False
            self.cut()
        return True

    def _unpack(self) -> None:
        """Have no blocks, for what follows will not be one."""
        if self._count >= ENOUGH:
            self.cut()
        else:
            self._entries = [*_unpacked(self._blocks, self._first), *self.fresh]
            self._blocks, self.fresh = [], []

    def cut(self) -> None:
        """Make a record batch of what was not yet made one."""
        if self.fresh:
            self.pack()
        self._end_run()
        entries, packed = self._entries, self._blocks
        later = self._size >= TOO_LARGE or self._is_small()
        self._entries, self._blocks = [], []
        self._count = self._size = 0
        try:
            if packed:
                self.pieces.append(_encode_blocks(packed, self._first))
            elif entries:
                self.pieces.append(entries if later else _gather(entries))
        except Exception as error:  # it is tried again where it is written, and who waits for it is told
            logger.warning("columns of messages could not be made, and are tried again: %r", error)
            self.pieces.append(entries or _unpacked(packed, self._first))

    def _is_small(self) -> bool:
        return self._count <= MAX_ROWS and self._size <= MAX_ROW_BYTES

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
        """Let go of everything: it was written, or could not be."""
        self.pieces = []
        self._decoded = {}

    def unrouted(self) -> list[Found]:
        """Return the messages that no one waited for to be safe."""
        self._end_run()
        found: list[Found] = []
        for number, piece in enumerate(self.pieces):
            if isinstance(piece, list):
                found.extend(_found(piece))
                continue
            if number not in self._decoded:
                if isinstance(piece, Rows):
                    rows = plain(piece.rows)
                else:
                    rows = frames.decode(memoryview(b"".join(piece.frame.pieces)))
                self._decoded[number] = [one for one in batches_in(rows) if not one[0].qos]
            found.extend(self._decoded[number])
        found += _found(self._entries or [*_unpacked(self._blocks, self._first), *self.fresh])
        return [one for one in found if one[1] not in self._waited]


def _alike(batch: Batch, last: Batch) -> bool:
    """Tell whether a single QoS 0 message differs from another in its payload alone."""
    return (
        batch.stride == last.stride > 0
        and last.count == 1
        and batch.topic == last.topic
        and batch.origin == last.origin
        and batch.properties is last.properties
        and batch.payload_at == last.payload_at
        and batch.retain == last.retain
        and batch.expires_at is None
        and not last.qos
        and not batch.mixed
        and not last.mixed
    )


def _found(entries: Sequence[Entry]) -> list[Found]:
    return [(entry.batch, entry.batch.offset, entry.timestamp) for entry in entries if not entry.batch.qos]


def _unpacked(packed: Sequence[Block], first: int) -> list[Entry]:
    """Return what is in blocks, in the other form."""
    entries = []
    for block in packed:
        batch = blocks.unpack(block)
        batch.offset = first
        entries.append(Entry(batch, block.time, None))
        first += block.number
    return entries


def _with_data(batch: Batch, data: bytes, count: int, stride: int, payload_at: int) -> Batch:
    """Return a QoS 0 batch that is like another, and begins where it does, with these messages."""
    copy = Batch(
        batch.topic,
        data,
        0,
        batch.retain,
        batch.properties,
        batch.expires_at,
        batch.origin,
        count,
        stride,
        payload_at,
    )
    copy.offset = batch.offset
    return copy


def _encode_blocks(packed: Sequence[Block], first: int) -> Encoded:
    count = sum(block.number for block in packed)
    return Encoded(encode_packed(packed, first), first, count, packed[0].time, packed[-1].time)


def _gather(entries: Sequence[Entry]) -> Rows:
    """Make a record batch of batches that follow one another."""
    first = entries[0].batch.offset
    count = entries[-1].batch.offset + entries[-1].batch.count - first
    return Rows(build(entries, first), first, count, entries[0].timestamp, entries[-1].latest)


def encode(pieces: Sequence[Encoded | Rows | list[Entry]]) -> list[Encoded]:
    """Make the bytes that are written."""
    gathered = [_gather(piece) if isinstance(piece, list) else piece for piece in pieces]
    waiting = [piece for piece in gathered if isinstance(piece, Rows)]
    made = iter(frames.encode_all([piece.rows for piece in waiting]) if waiting else ())
    return [piece if isinstance(piece, Encoded) else Encoded(next(made), *piece[1:]) for piece in gathered]


@cache
def warm_up() -> None:
    """Do what takes milliseconds the first time, when no one waits for it yet."""
    for count, waited in ((blocks.MOST // 64, False), (2, True)):
        one = Gathering()
        for _ in range(2):
            batch = Batch(b"", bytes(64 * count), int(waited), count=count, stride=64)
            batch.offset = one.end
            one.add(batch, 0, None, waited)
        one.cut()
        encode(one.pieces)
