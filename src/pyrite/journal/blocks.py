"""Payloads that are compressed as they come, and put together in one LZ4 frame, as Arrow wants them. HOT.

LZ4's frame format is a header, blocks that can each be decompressed by itself, and an end. So payloads can be
compressed a batch at a time, while they are in the processor's cache, and before it is known what else their
record batch will hold. What is the same for many messages needs no compressing: how LZ4 says that something
is repeated is plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh32_intdigest

from pyrite.broker.message import Batch, Properties
from pyrite.journal.encoding import ends as ends_of
from pyrite.journal.encoding import item, spaced

MOST = 256 * 1024
"""Bytes in a block."""

_CODEC = pa.Codec("lz4_raw")
_DESCRIPTOR = b"\x60\x50"
"""Version 1, independent blocks of at most 256 KiB, no checksums: a frame of the log has its own."""
_HEADER = b"\x04\x22\x4d\x18" + _DESCRIPTOR + bytes([xxh32_intdigest(_DESCRIPTOR) >> 8 & 0xFF])
_END = bytes(4)
_AS_IT_IS = 0x8000_0000
NOT_COMPRESSED = b"\xff" * 8
"""What stands in place of the size of a buffer that is not compressed."""
_SHORT = 64
_places: list[np.ndarray[Any, Any]] = []
"""Where payloads are put side by side for a moment; what is here is not in use."""


Kind = tuple[bytes, str | None, Properties | None]
"""A topic, who published, and with which properties."""


class Block(NamedTuple):
    """QoS 0 messages of one kind and size, not retained: their payloads, one after the other."""

    data: bytes
    """Compressed, if that makes them smaller."""
    size: int
    """Bytes of all of them; if there are as many here, they are not compressed."""
    number: int
    time: int
    """When they came, in microseconds since 1970."""
    kind: Kind


def may_pack(batch: Batch) -> bool:
    """Tell whether a batch of QoS 0 can become a block."""
    return (
        not batch.mixed and not batch.retain and 0 < (batch.stride - batch.payload_at) * batch.count <= MOST
    )


def pack(batch: Batch, time: int) -> Block:
    """Make a block of a batch that can be one."""
    count = batch.count
    each = batch.stride - batch.payload_at
    size = each * count
    place = _places.pop() if _places else np.empty(MOST, np.uint8)
    payloads = place[:size]
    payloads.view(item(each))[:] = spaced(batch)
    # Arrow has room for the worst of cases: were that kept, it would ask the system for more again and again,
    # which takes 5 ms.
    packed = _CODEC.compress(payloads)
    data = packed.to_pybytes() if packed.size < size else payloads.tobytes()
    _places.append(place)
    return Block(data, size, count, time, (batch.topic, batch.origin, batch.properties))


def unpack(block: Block) -> Batch:
    """Return the messages as they were, but for what was around their payloads."""
    data, size, number, _, (topic, origin, properties) = block
    if len(data) < size:
        data = _CODEC.decompress(data, size, asbytes=True)
    return Batch(topic, data, 0, False, properties, None, origin, number, size // number)


# Buffers as Arrow stores them: their size, and a frame; or that they are not compressed, and their bytes.


def values(blocks: Sequence[Block]) -> bytes:
    """Return the buffer of payloads."""
    pieces = [b"", _HEADER]
    total = 0
    for data, size, _, _, _ in blocks:
        total += size
        length = len(data)
        pieces += ((length if length < size else length | _AS_IT_IS).to_bytes(4, "little"), data)
    pieces[0] = total.to_bytes(8, "little")
    pieces.append(_END)
    return b"".join(pieces)


def ends(blocks: Sequence[Block]) -> list[bytes | memoryview]:
    """Return the buffer of where payloads begin and end, in pieces. LZ4 could do little with it."""
    counts = [number for _, _, number, _, _ in blocks]
    sizes = [size // number for _, size, number, _, _ in blocks]
    if len(set(sizes)) == 1:
        sizes, counts = sizes[:1], [sum(counts)]
    return [NOT_COMPRESSED, ends_of(sizes, counts).view(np.uint8).data]


def times(blocks: Sequence[Block]) -> bytes:
    """Return the buffer of when messages came."""
    pieces = [b"", _HEADER]
    total = 0
    for _, _, number, time, _ in blocks:
        total += number
        pieces += _repeated(time.to_bytes(8, "little"), 8 * number)
    pieces[0] = (8 * total).to_bytes(8, "little")
    pieces.append(_END)
    return b"".join(pieces)


@lru_cache(128)
def zeros(size: int) -> bytes:
    """Return a buffer of zeros."""
    return b"".join([size.to_bytes(8, "little"), _HEADER, *_repeated(bytes(8), size), _END])


def _repeated(value: bytes, size: int) -> Sequence[bytes]:
    """Return blocks of 8 bytes that are repeated up to a size, each after its length, in pieces.

    A block is those bytes as they are; what lies 8 bytes back, again and again; and, as a block has to end
    with bytes as they are, those once more.
    """
    if size > MOST:
        return (*_repeated(value, MOST), *_repeated(value, size - MOST))
    if size < _SHORT:
        return (size | _AS_IT_IS).to_bytes(4, "little"), (value * _SHORT)[:size]
    before, between = _repetition(size)
    shifted = size % 8
    return before, value, between, (value + value)[shifted : shifted + 8] if shifted else value


@lru_cache(8_192)
def _repetition(size: int) -> tuple[bytes, bytes]:
    """Return what is in front of, and behind, the bytes that a block repeats."""
    more, rest = divmod(size - 16 - 4 - 15, 255)
    between = b"".join((b"\x08\x00", b"\xff" * more, bytes([rest]), b"\x80"))
    return (1 + 8 + len(between) + 8).to_bytes(4, "little") + b"\x8f", between
