"""A record batch whose payloads are compressed already, with little of Arrow's help. HOT: for floods.

Arrow is asked for a record batch with one message of each kind. That is remembered, as floods are often of
one kind. What there is to say of every message is put behind what Arrow made, and the metadata are told of
it: where these buffers are, and how many rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyrite.broker.message import Batch
from pyrite.journal import blocks
from pyrite.journal.blocks import Block, Kind
from pyrite.journal.encoding import Entry, build
from pyrite.storage import metadata
from pyrite.storage.frames import Frame, compressed, seal
from pyrite.storage.schema import STORED

_INT64 = Struct("<q")
_INT64S = Struct("<qq")
_STEP = 4_096
"""Buffers of zeros are for a multiple of it: they may be longer than they need to be, and are made once."""
_FEW = 8
"""Kinds up to which what Arrow made of them is remembered."""


def _buffers(name: str, kind: pa.DataType) -> Iterator[str]:
    """Yield names of the buffers of a column, in their order."""
    if isinstance(kind, pa.RunEndEncodedType):
        yield from ("", f"{name} runs", *_buffers(name, kind.value_type))
    elif isinstance(kind, pa.StructType):
        yield ""
        for field in kind:
            yield from _buffers("", field.type)
    elif isinstance(kind, pa.ListType):
        yield from ("", "", *_buffers("", kind.value_type))
    elif kind in (pa.string(), pa.binary()):
        yield from ("", f"{name} ends", name)
    else:
        yield from (f"{name} nulls", name)


def _nodes(name: str, kind: pa.DataType) -> Iterator[str]:
    """Yield names of a column and its parts, in their order."""
    yield name
    if isinstance(kind, pa.RunEndEncodedType):
        yield from ("", *_nodes("", kind.value_type))
    elif isinstance(kind, pa.StructType):
        for field in kind:
            yield from _nodes("", field.type)
    elif isinstance(kind, pa.ListType):
        yield from _nodes("", kind.value_type)


_BUFFERS = [name for field in STORED for name in _buffers(field.name, field.type)]
_NODES = [name for field in STORED for name in _nodes(field.name, field.type)]
_COLUMNS = [_NODES.index(name) for name in STORED.names]
_IDS = _NODES.index("packet_id")
_EACH = ("timestamp", "payload ends", "payload", "qos", "retain", "packet_id nulls", "packet_id")
_FRESH = [
    _BUFFERS.index("first_offset"),
    *(number for number, name in enumerate(_BUFFERS) if name.endswith(" runs")),
    *map(_BUFFERS.index, _EACH),
]
"""Buffers that are not as Arrow made them of one message of each kind."""


class _Outline(NamedTuple):
    """What Arrow made of a record batch with one message of each kind."""

    metadata: bytes
    body: bytes
    rows: int
    nodes: int
    buffers: int
    body_size: int
    """Where these are in the metadata."""
    single: list[bool]
    """For each column that is stored run by run, whether it has one run."""


def encode(packed: Sequence[Block], first_offset: int) -> Frame:
    """Make the bytes of a record batch."""
    kinds: list[Kind] = []
    ends: list[int] = []
    total = 0
    for block in packed:
        total += block.number
        if kinds and block.kind == kinds[-1]:
            ends[-1] = total
        else:
            kinds.append(block.kind)
            ends.append(total)
    outline = _remembered(tuple(kinds)) if len(kinds) <= _FEW else _draw(tuple(kinds))
    head = bytearray(outline.metadata)
    for number in _COLUMNS:
        _INT64.pack_into(head, outline.nodes + 16 * number, total)
    _INT64.pack_into(head, outline.nodes + 16 * _IDS + 8, total)
    _INT64.pack_into(head, outline.rows, total)
    room = total + -total % _STEP
    bits = [blocks.zeros(room // 8)]
    one, each = ([blocks.NOT_COMPRESSED, np.array(places, np.int32).tobytes()] for places in ([total], ends))
    fresh: list[Sequence[bytes | memoryview]] = [
        [blocks.NOT_COMPRESSED, _INT64.pack(first_offset)],
        *(one if single else each for single in outline.single),
        [blocks.times(packed)],
        blocks.ends(packed),
        [blocks.values(packed)],
        [blocks.zeros(room)],
        bits,
        bits,
        [blocks.zeros(4 * room)],
    ]
    pieces: list[bytes | memoryview] = [outline.body]
    size = len(outline.body)
    for number, data in zip(_FRESH, fresh, strict=True):
        length = sum(map(len, data))
        _INT64S.pack_into(head, outline.buffers + 16 * number, size, length)
        padding = -length % 8
        pieces += data
        if padding:
            pieces.append(bytes(padding))
        size += length + padding
    _INT64.pack_into(head, outline.body_size, size)
    return seal(bytes(head), *pieces)


def _draw(kinds: tuple[Kind, ...]) -> _Outline:
    batches = [Batch(topic, b"", 0, False, properties, None, origin) for topic, origin, properties in kinds]
    rows = build([Entry(batch, 0, None) for batch in batches], 0)
    head, body = compressed(rows)
    single = [
        len(rows.column(name).run_ends) == 1
        for name in STORED.names
        if isinstance(STORED.field(name).type, pa.RunEndEncodedType)
    ]
    return _Outline(
        head,
        body,
        metadata.rows_at(head),
        metadata.nodes_at(head),
        metadata.buffers_at(head),
        metadata.body_size_at(head),
        single,
    )


_remembered = lru_cache(64)(_draw)
