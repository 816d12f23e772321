"""Payloads that are compressed as they come, and put together in one LZ4 frame, as Arrow wants them. HOT.

LZ4's frame format is a header, blocks that can each be decompressed by itself, and an end. So payloads can be
compressed a batch at a time, while they are in the processor's cache, and before it is known what else their
record batch will hold. What is the same for many messages needs no compressing: how LZ4 says that something
is repeated is plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh32_intdigest

from pyrite.broker.message import Batch, Properties
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
_BYTES = [bytes([number]) for number in range(256)]
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


def pack(batch: Batch, time: int) -> Block | None:
    """Make a block of a batch that is not mixed, if it can be one."""
    count = batch.count
    each = batch.stride - batch.payload_at
    size = each * count
    if not 0 < size <= MOST or batch.retain:
        return None
    place = _places.pop() if _places else np.empty(MOST, np.uint8)
    payloads = place[:size]
    payloads.view(columns.item(each))[:] = columns.spaced(batch)
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
    pieces = [sum(block.size for block in blocks).to_bytes(8, "little"), _HEADER]
    for data, size, *_ in blocks:
        length = len(data)
        pieces += ((length if length < size else length | _AS_IT_IS).to_bytes(4, "little"), data)
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
    for _, _, number, time, _ in blocks:
        pieces += _repeated(time.to_bytes(8, "little"), 8 * number)
    pieces.append(_END)
    return b"".join(pieces)


def zeros(size: int) -> bytes:
    """Return a buffer of zeros."""
    return b"".join([size.to_bytes(8, "little"), _HEADER, *_repeated(bytes(8), size), _END])


def plain(data: bytes | memoryview) -> bytes:
    """Return a buffer that is not compressed."""
    return b"".join([_NOT_COMPRESSED, data])


def _repeated(value: bytes, size: int) -> list[bytes]:
    """Return blocks of 8 bytes that are repeated up to a size, each after its length.

    A block is those bytes as they are; what lies 8 bytes back, again and again; and, as a block has to end
    with bytes as they are, those once more.
    """
    if size > MOST:
        return _repeated(value, MOST) + _repeated(value, size - MOST)
    if size < _SHORT:
        return [(size | _AS_IT_IS).to_bytes(4, "little"), (value * _SHORT)[:size]]
    end = (value + value)[size % 8 : size % 8 + 8]
    more, rest = divmod(size - 16 - 4 - 15, 255)
    block = b"".join((b"\x8f", value, b"\x08\x00", b"\xff" * more, _BYTES[rest], b"\x80", end))
    return [len(block).to_bytes(4, "little"), block]
