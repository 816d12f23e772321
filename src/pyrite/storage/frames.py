"""The bytes of an Arrow segment: Arrow's stream format, with a checksum in every message.

Any Arrow library reads a segment as a stream: the schema, then record batches. Arrow allows padding between
a message's metadata and its body. A segment's padding is 24 bytes longer than Arrow needs, and holds a mark,
the length of the whole message, and a checksum over everything else in the message:

    ff ff ff ff | size | metadata ... | mark (8) | length (8) | checksum (8) | body ...
                         <------------------- size ------------------------>

Such a message is called a frame. A segment can be checked without its index.
"""

from __future__ import annotations

from collections.abc import Sequence
from mmap import mmap
from typing import NamedTuple

import pyarrow as pa
from xxhash import xxh3_64

from pyrite.errors import PyriteError
from pyrite.storage.schema import STORED, plain
from pyrite.storage.wanted import Topics

HEADER = STORED.serialize().to_pybytes()
"""The first bytes of every segment: the schema."""
BEGIN = b"\xff\xff\xff\xff"
END = BEGIN + bytes(4)
"""Arrow's end of a stream, with which a sealed segment ends."""
MARK = b"PYRITE\0\1"
SEAL = 24
"""Bytes of mark, length and checksum."""

_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
_TOPIC_ALONE = pa.ipc.IpcReadOptions(use_threads=False, included_fields=[STORED.get_field_index("topic")])


class Damaged(PyriteError):
    """Bytes on disk are not what was written."""


class Frame(NamedTuple):
    """A record batch as the bytes that go into a segment."""

    pieces: list[bytes | memoryview]
    size: int
    checksum: int


class Encoded(NamedTuple):
    """A frame, and what its index record says."""

    frame: Frame
    first: int
    """Offset of the first message."""
    messages: int
    """How many there are."""
    earliest: int
    latest: int
    """Times of the oldest and the newest message, in microseconds since 1970."""


def encode(batch: pa.RecordBatch) -> Frame:
    """Encode a record batch with the schema STORED."""
    return encode_all([batch])[0]


def encode_all(batches: Sequence[pa.RecordBatch]) -> list[Frame]:
    """Encode record batches with the schema STORED, each as a frame.

    This takes few calls into Arrow, however many record batches: every call may lose the interpreter lock to
    another thread.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, STORED, options=_LZ4) as writer:
        writer.write_table(pa.Table.from_batches(batches, STORED))
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema, with which the segment begins
    return [seal(memoryview(one.metadata), memoryview(one.body)) for one in messages]


def seal(metadata: bytes | memoryview, *body: bytes | memoryview) -> Frame:
    """Join metadata and body of an Arrow message to a frame, with mark, length and checksum in between."""
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


def length_at(data: memoryview, at: int) -> int:
    """Return the length of the frame at `at` as its head states it; 0 if no frame begins there."""
    if data[at : at + 4] != BEGIN or len(data) - at < 8:
        return 0
    body = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little", signed=True)
    if body - SEAL < at + 8 or data[body - SEAL : body - 16] != MARK or len(data) < body:
        return 0
    return int.from_bytes(data[body - 16 : body - 8], "little")


def check(frame: memoryview) -> int:
    """Return the checksum of a frame; raise Damaged if the frame is cut off or changed."""
    if length_at(frame, 0) != len(frame):
        raise Damaged("the head of a record batch is damaged")
    body = 8 + int.from_bytes(frame[4:8], "little")
    checksum = int.from_bytes(frame[body - 8 : body], "little")
    if _checksum(frame[: body - 8], frame[body:]) != checksum:
        raise Damaged("the checksum of a record batch is wrong")
    return checksum


def decode(frame: memoryview) -> pa.RecordBatch:
    """Return the messages in a frame, one a row; raise Damaged if its checksum does not match."""
    check(frame)
    try:
        return plain(_stored(frame))
    except (pa.ArrowInvalid, OSError) as error:  # the checksum matches by chance
        raise Damaged(str(error)) from None


def select(frame: memoryview, topics: Topics) -> pa.RecordBatch | None:
    """Decode a frame if one of its messages has one of these topics, else return None.

    The topics are decoded first, and the other columns only if they are needed.
    """
    check(frame)
    try:
        rows = _stored(frame, _TOPIC_ALONE)
        if not topics.any_of(rows.column("topic").values):
            return None
        return plain(_stored(frame))
    except (pa.ArrowInvalid, OSError) as error:
        raise Damaged(str(error)) from None


def _stored(frame: memoryview, options: pa.ipc.IpcReadOptions = _ONE_THREAD) -> pa.RecordBatch:
    """Return the record batch in a frame as it is stored."""
    # read_record_batch would decompress in threads, which takes three times as long for most batches.
    with pa.ipc.open_stream(b"".join([HEADER, frame]), options=options) as stream:
        return stream.read_next_batch()


def is_frame(data: memoryview, at: int) -> bool:
    """Return whether an undamaged frame begins at `at`."""
    length = length_at(data, at)
    try:
        check(data[at : at + length])
    except Damaged:
        return False
    return length > 0


def next_frame(data: memoryview, at: int) -> int:
    """Return where the next undamaged frame begins, from `at` on; the end of the data if none does."""
    raw = data.obj
    assert isinstance(raw, bytes | mmap)
    at = raw.find(BEGIN, at)
    while at >= 0 and not is_frame(data, at):
        at = raw.find(BEGIN, at + 1)
    return at if at >= 0 else len(data)
