"""The bytes of a segment: Arrow's stream format, with a checksum in every message; and of its index.

A segment is what any Arrow library reads as a stream: the schema, then record batches. Between a
message's metadata and its body Arrow allows padding. Ours is 24 bytes longer than it need be, and holds a
mark, the length of the whole message, and a checksum over all else of it:

    ff ff ff ff | size | metadata ... | mark (8) | length (8) | checksum (8) | body ...
                         <------------------- size ------------------------>

So a segment proves itself. The index beside it is a shortcut, made of records of 64 bytes with a checksum
each, and can be made again from the segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from mmap import mmap
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_intdigest

from pyrite.broker.message import Batch
from pyrite.storage.columns import STORED, Entry, build, plain
from pyrite.storage.metadata import body_size_at
from pyrite.storage.wanted import Topics

HEADER = STORED.serialize().to_pybytes()
"""How every segment begins."""
BEGIN = b"\xff\xff\xff\xff"
END = BEGIN + bytes(4)
"""How Arrow ends a stream; a sealed segment has it."""
MARK = b"PYRITE\0\1"
SEAL = 24
"""Bytes of mark, length and checksum."""
FEW = 64
SMALL = 8 * 1024
"""Messages, and bytes of their payloads, below which a record batch is not compressed: it is not worth it."""

_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
_TOPIC_ALONE = pa.ipc.IpcReadOptions(use_threads=False, included_fields=[STORED.get_field_index("topic")])

INDEX_HEADER = b"PYRITE index 1\n".ljust(64, b"\0")
RECORD = np.dtype(
    [
        ("first", "<i8"),
        ("count", "<i8"),
        ("earliest", "<i8"),
        ("latest", "<i8"),
        ("position", "<i8"),
        ("length", "<i8"),
        ("checksum", "<u8"),
        ("synced", "<u4"),
        ("proof", "<u4"),
    ]
)
"""A batch in an index: offsets, times, where it lies, its checksum; and the record's own."""


_RECORD = Struct("<qqqqqqQI")
Records = np.ndarray[Any, Any]


class Damaged(Exception):
    """Bytes on disk are not what was written."""


class Frame(NamedTuple):
    """A record batch in the bytes that go into a segment."""

    pieces: list[bytes | memoryview]
    size: int
    checksum: int


def encode(batch: pa.RecordBatch) -> Frame:
    """Make the bytes of a record batch that is to be stored, with its checksum."""
    return encode_all([batch])[0]


def encode_all(batches: Sequence[pa.RecordBatch]) -> list[Frame]:
    """Make the bytes of record batches, each with its checksum.

    Many are made with few calls into Arrow: with each of them another thread may take the interpreter.
    """
    if len(batches) == 1 and _is_small(batches[0]):
        return [seal(*_split(memoryview(batches[0].serialize())))]
    rest = _written(batches)
    frames = []
    while rest:
        metadata, body = _split(rest)
        size = _body_size(metadata)
        frames.append(seal(metadata, body[:size]))
        rest = body[size:]
    return frames


def _written(batches: Sequence[pa.RecordBatch]) -> memoryview:
    """Return Arrow's messages of record batches, compressed, one after the other."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, STORED, options=_LZ4) as writer:
        writer.write_table(pa.Table.from_batches(batches))
    return memoryview(sink.getvalue())[len(HEADER) : -len(END)]


def _is_small(batch: pa.RecordBatch) -> bool:
    payloads = batch.column(3).buffers()[2]
    return batch.num_rows < FEW and (payloads is None or payloads.size < SMALL)


def _body_size(metadata: memoryview) -> int:
    at = body_size_at(metadata)
    return int.from_bytes(metadata[at : at + 8], "little")


def _split(whole: memoryview) -> tuple[memoryview, memoryview]:
    """Split Arrow's message into metadata and body."""
    body = 8 + int.from_bytes(whole[4:8], "little")
    return whole[8:body], whole[body:]


def uncompressed(batch: pa.RecordBatch) -> tuple[bytes, bytes]:
    """Return Arrow's metadata and body of a record batch, uncompressed."""
    metadata, body = _split(memoryview(batch.serialize()))
    return bytes(metadata), bytes(body)


def compressed(batch: pa.RecordBatch) -> tuple[bytes, bytes]:
    """Return Arrow's metadata and body of a record batch, compressed."""
    metadata, body = _split(_written([batch]))
    return bytes(metadata), bytes(body)


def seal(metadata: bytes | memoryview, *body: bytes | memoryview) -> Frame:
    """Put metadata and body of a message together, with mark, length and checksum in between."""
    length = 8 + len(metadata) + SEAL + sum(map(len, body))
    head = BEGIN + (len(metadata) + SEAL).to_bytes(4, "little")
    start = MARK + length.to_bytes(8, "little")
    checksum = _checksum(head, metadata, start, *body)
    return Frame([head, metadata, start, checksum.to_bytes(8, "little"), *body], length, checksum)


def _checksum(*pieces: bytes | memoryview) -> int:
    digest = xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return digest.intdigest()


@cache
def _uncompressed_head() -> int:
    """Return the size of what comes before the body in a frame that is not compressed."""
    return 8 + len(uncompressed(build([Entry(Batch(b"", b""), 0, None)], 0))[0]) + SEAL


def length_at(data: memoryview, at: int) -> int:
    """Return the length of the frame that begins at `at`, as far as it can be told; 0 if there is none."""
    if data[at : at + 4] != BEGIN or len(data) - at < 8:
        return 0
    body = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little", signed=True)
    if body - SEAL < at + 8 or data[body - SEAL : body - 16] != MARK or len(data) < body:
        return 0
    return int.from_bytes(data[body - 16 : body - 8], "little")


def check(frame: memoryview) -> int:
    """Check that a frame is whole and unchanged, and return its checksum."""
    if length_at(frame, 0) != len(frame):
        raise Damaged("the head of a record batch is damaged")
    body = 8 + int.from_bytes(frame[4:8], "little")
    checksum = int.from_bytes(frame[body - 8 : body], "little")
    if _checksum(frame[: body - 8], frame[body:]) != checksum:
        raise Damaged("the checksum of a record batch is wrong")
    return checksum


def decode(frame: memoryview) -> pa.RecordBatch:
    """Return the record batch in a frame, once it has proved itself."""
    check(frame)
    try:
        return plain(_stored(frame))
    except (pa.ArrowInvalid, OSError) as error:  # a checksum that holds by chance
        raise Damaged(str(error)) from None


def select(frame: memoryview, topics: Topics) -> pa.RecordBatch | None:
    """Do the same, if it has a message with one of these topics; only they are decoded to find out."""
    check(frame)
    try:
        rows = _stored(frame, _TOPIC_ALONE)
        if not topics.any_of(rows.column("topic").values):
            return None
        return plain(rows if rows.num_columns == len(STORED) else _stored(frame))
    except (pa.ArrowInvalid, OSError) as error:
        raise Damaged(str(error)) from None


def _stored(frame: memoryview, options: pa.ipc.IpcReadOptions = _ONE_THREAD) -> pa.RecordBatch:
    """Return what is in a frame as it is stored; if it is not compressed all of it, as that costs nothing."""
    if len(frame) - _body_size(frame[8:]) == _uncompressed_head():
        return pa.ipc.read_record_batch(pa.py_buffer(frame), STORED)
    # That would have threads for each buffer, which take three times as long for most batches.
    with pa.ipc.open_stream(b"".join([HEADER, frame]), options=options) as stream:
        return stream.read_next_batch()


def is_frame(data: memoryview, at: int) -> bool:
    """Tell whether a whole frame lies at a place."""
    length = length_at(data, at)
    try:
        check(data[at : at + length])
    except Damaged:
        return False
    return length > 0


def next_frame(data: memoryview, at: int) -> int:
    """Find the next place from `at` on where a whole frame lies; the end of the data if there is none."""
    raw = data.obj
    assert isinstance(raw, bytes | mmap)
    at = raw.find(BEGIN, at)
    while at >= 0 and not is_frame(data, at):
        at = raw.find(BEGIN, at + 1)
    return at if at >= 0 else len(data)


def record(batch: pa.RecordBatch, position: int, frame: Frame, synced: bool) -> Records:
    """Make the index record of a batch."""
    first, count = batch.column(0)[0].as_py(), batch.num_rows
    times = batch.column(1).view(pa.int64()).to_numpy()
    earliest, latest = int(times.min()), int(times.max())  # a clock may have been set back between them
    return np.frombuffer(pack_record(first, count, earliest, latest, position, frame, synced), RECORD)


def pack_record(
    first: int, count: int, earliest: int, latest: int, position: int, frame: Frame, synced: bool
) -> bytes:
    """Make the bytes of an index record."""
    head = _RECORD.pack(first, count, earliest, latest, position, frame.size, frame.checksum, synced)
    return head + (xxh3_64_intdigest(head) & 0xFFFF_FFFF).to_bytes(4, "little")


def prove(records: Records) -> None:
    """Write each record's own checksum into it."""
    records["proof"] = proofs(records)


def proofs(records: Records) -> Sequence[int]:
    """Return the checksum that each record should have."""
    raw = memoryview(records.tobytes())
    return [xxh3_64_intdigest(raw[at : at + 60]) & 0xFFFF_FFFF for at in range(0, len(raw), 64)]
