"""Payloads that are compressed as they come, and put together in one LZ4 frame, as Arrow wants them. HOT.

LZ4's frame format is a header, blocks that can each be decompressed by itself, and an end. So payloads can be
compressed a batch at a time, while they are in the processor's cache, and before it is known what else their
record batch will hold. What is the same for many messages needs no compressing: how LZ4 says that something
is repeated is plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh32_intdigest

from pyrite.broker.message import Batch
from pyrite.log import columns

MOST = 256 * 1024
"""Bytes in a block."""

_CODEC = pa.Codec("lz4_raw")
_DESCRIPTOR = b"\x60\x50"
"""Version 1, independent blocks of at most 256 KiB, no checksums: a frame of the log has its own."""
_HEADER = b"\x04\x22\x4d\x18" + _DESCRIPTOR + bytes([xxh32_intdigest(_DESCRIPTOR) >> 8 & 0xFF])
_END = bytes(4)
_AS_IT_IS = 0x8000_0000
_NOT_COMPRESSED = b"\xff" * 8
_SHORT = 64
_places: list[np.ndarray[Any, Any]] = []
"""Where payloads are put side by side for a moment; what is here is not in use."""


class Block(NamedTuple):
    """Payloads of one size, one after the other, compressed if that makes them smaller."""

    data: bytes | pa.Buffer
    size: int
    """Bytes of all of them."""
    number: int
    time: int
    """When they came, in microseconds since 1970."""


def fits(batch: Batch) -> bool:
    """Tell whether the payloads of a batch can be a block."""
    return not batch.mixed and 0 < batch.count * (batch.stride - batch.payload_at) <= MOST


def pack(batch: Batch, time: int) -> Block:
    """Compress the payloads of a batch."""
    each = batch.stride - batch.payload_at
    size = each * batch.count
    place = _places.pop() if _places else np.empty(MOST, np.uint8)
    payloads = place[:size]
    payloads.view(f"V{each}")[:] = columns.spaced(batch)
    data = _CODEC.compress(payloads)
    block = Block(data if data.size < size else payloads.tobytes(), size, batch.count, time)
    _places.append(place)
    return block


def unpack(block: Block) -> bytes:
    """Return payloads as they were."""
    data = block.data
    return data if isinstance(data, bytes) else _CODEC.decompress(data, block.size, asbytes=True)


# Buffers as Arrow stores them: their size, and a frame; or that they are not compressed, and their bytes.


def values(blocks: Sequence[Block]) -> bytes:
    """Return the buffer of payloads."""
    pieces = [sum(block.size for block in blocks).to_bytes(8, "little"), _HEADER]
    for block in blocks:
        data = block.data
        kind = _AS_IT_IS if isinstance(data, bytes) else 0
        pieces += ((len(data) | kind).to_bytes(4, "little"), data)
    pieces.append(_END)
    return b"".join(pieces)


def ends(blocks: Sequence[Block]) -> bytes:
    """Return the buffer of where payloads begin and end. LZ4 could do little with it."""
    counts = [block.number for block in blocks]
    sizes = [block.size // block.number for block in blocks]
    if len(set(sizes)) == 1:
        return plain(columns.ends(sizes[:1], [sum(counts)]).data)
    return plain(columns.ends(sizes, counts).data)


def times(blocks: Sequence[Block]) -> bytes:
    """Return the buffer of when messages came."""
    pieces = [(8 * sum(block.number for block in blocks)).to_bytes(8, "little"), _HEADER]
    for block in blocks:
        pieces += _repeated(block.time.to_bytes(8, "little"), 8 * block.number)
    pieces.append(_END)
    return b"".join(pieces)


def zeros(size: int) -> bytes:
    """Return a buffer of zeros."""
    return b"".join([size.to_bytes(8, "little"), _HEADER, *_repeated(bytes(8), size), _END])


def plain(data: bytes | memoryview) -> bytes:
    """Return a buffer that is not compressed."""
    return b"".join([_NOT_COMPRESSED, data])


def _repeated(value: bytes, size: int) -> Iterator[bytes]:
    """Yield blocks of 8 bytes that are repeated up to a size.

    A block is those bytes as they are; what lies 8 bytes back, again and again; and, as a block has to end
    with bytes as they are, those once more.
    """
    while size > MOST:
        yield from _repeated(value, MOST)
        size -= MOST
    if size < _SHORT:
        yield (size | _AS_IT_IS).to_bytes(4, "little") + (value * _SHORT)[:size]
        return
    end = (value + value)[size % 8 : size % 8 + 8]
    more, rest = divmod(size - 16 - 4 - 15, 255)
    block = b"".join([b"\x8f", value, b"\x08\x00", b"\xff" * more, bytes([rest]), b"\x80", end])
    yield len(block).to_bytes(4, "little")
    yield block
