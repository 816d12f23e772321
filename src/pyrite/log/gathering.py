"""What gathers for a stream until it is written: batches, and the record batches that they become. HOT.

Payloads are copied to where they will lie, and columns are built, in the event loop's thread: while the bytes
are still in the processor's cache. They are compressed and written in the writing thread, with few calls into
Arrow for many messages: with each of them threads of Python hand over the interpreter, and that holds the
event loop up for longer than the work itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from pyrite.broker.message import Batch
from pyrite.log import columns, frames
from pyrite.log.columns import Entry
from pyrite.log.segment import Encoded
from pyrite.log.single import encode_single

logger = logging.getLogger(__name__)

MANY = 32_768
LARGE = 2 * 1024 * 1024
"""Messages, and bytes, from which on they become a record batch."""
TOO_LARGE = 2 * LARGE
"""Bytes whose columns are built where they are written: it takes too long for the event loop."""
WORTH_IT = 256
"""Messages from which on the payloads of a batch are copied by themselves."""
MAX_FREE = 16

Found = tuple[Batch, int, int]
"""A batch, the offset of its first message, and its time."""
Bytes = np.ndarray[Any, Any]

_free: list[Bytes] = []
"""Memory for payloads that is not in use: the system takes its time to hand out new memory."""


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
        "_buffer",
        "_buffers",
        "_copied",
        "_count",
        "_decoded",
        "_entries",
        "_filled",
        "_later",
        "_run",
        "_size",
        "_waited",
        "end",
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
        self._buffer: Bytes | None = None
        """Where payloads are copied to."""
        self._filled = 0
        """How much of it is full."""
        self._copied = 0
        """How many messages' payloads it holds."""
        self._buffers: list[Bytes] = []
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
            elif batch.count >= WORTH_IT and not batch.mixed:
                self._begin(self._copy(Entry(batch, now, None)))
            else:
                self._begin(Entry(batch, now, None))
        self._count += batch.count
        self._size += len(batch.data)
        if self._count >= MANY or self._size >= LARGE:
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

    def _copy(self, entry: Entry) -> Entry:
        """Copy the payloads of a batch to where those of others are, so that its own bytes are free again."""
        batch = entry.batch
        each = batch.stride - batch.payload_at
        size = each * batch.count
        if not 0 < size <= LARGE:
            return entry
        if self._buffer is None or self._filled + size > LARGE:
            self.cut()
            self._buffer = _free.pop() if _free else np.empty(LARGE, np.uint8)
            self._buffers.append(self._buffer)
        target = self._buffer[self._filled : self._filled + size]
        target.view(f"V{each}")[:] = columns.spaced(batch)
        self._filled += size
        self._copied += batch.count
        return Entry(_with_payloads(batch, cast(bytes, target.data)), entry.timestamp, None)

    def cut(self) -> None:
        """Make a record batch of what was not yet made one."""
        self._end_run()
        entries = self._entries
        if not entries:
            return
        payloads = None
        if self._buffer is not None and self._copied == self._count:
            payloads = self._buffer[: self._filled]
        large = self._size >= TOO_LARGE
        self._entries = []
        self._buffer = None
        self._count = self._size = self._filled = self._copied = 0
        try:
            self.pieces.append(entries if large else _gather(entries, payloads))
        except Exception as error:  # it is tried again where it is written, and who waits for it is told
            logger.warning("columns of messages could not be made, and are tried again: %r", error)
            self.pieces.append(entries)

    def release(self) -> None:
        """Let go of everything: it was written, or could not be."""
        self.pieces = []
        self._decoded = {}
        _free.extend(self._buffers[: MAX_FREE - len(_free)])
        self._buffers = []

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
                    rows = columns.plain(piece.rows)
                else:
                    rows = frames.decode(memoryview(b"".join(piece.frame.pieces)))
                self._decoded[number] = [one for one in columns.runs(rows) if not one[0].qos]
            found.extend(self._decoded[number])
        return [one for one in found + _found(self._entries) if one[1] not in self._waited]


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
    return [
        (_with_own_bytes(entry.batch), entry.batch.offset, entry.timestamp)
        for entry in entries
        if not entry.batch.qos
    ]


def _with_own_bytes(batch: Batch) -> Batch:
    """Return a batch that does not share the memory for payloads, which is used again."""
    return batch if isinstance(batch.data, bytes) else _with_payloads(batch, bytes(batch.data))


def _with_payloads(batch: Batch, payloads: bytes) -> Batch:
    """Return the messages of a QoS 0 batch with their payloads elsewhere, one after the other."""
    return _with_data(batch, payloads, batch.count, batch.stride - batch.payload_at, 0)


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


def _gather(entries: Sequence[Entry], payloads: Bytes | None = None) -> Encoded | Rows:
    """Make a record batch of batches that follow one another; that of a single message is encoded at once.

    `payloads` are theirs one after the other, if they lie so.
    """
    first = entries[0].batch.offset
    count = entries[-1].batch.offset + entries[-1].batch.count - first
    times = entries[0].timestamp, entries[-1].latest
    frame = encode_single(entries[0], first) if len(entries) == 1 else None
    if frame is not None:
        return Encoded(frame, first, count, *times)
    return Rows(columns.build(entries, first, payloads), first, count, *times)


def encode(pieces: Sequence[Encoded | Rows | list[Entry]]) -> list[Encoded]:
    """Make the bytes that are written."""
    gathered = [_gather(piece) if isinstance(piece, list) else piece for piece in pieces]
    waiting = [piece for piece in gathered if isinstance(piece, Rows)]
    made = iter(frames.encode_all([piece.rows for piece in waiting]) if waiting else ())
    return [piece if isinstance(piece, Encoded) else Encoded(next(made), *piece[1:]) for piece in gathered]
