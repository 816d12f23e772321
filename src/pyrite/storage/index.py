"""The index of a segment: a record of 64 bytes a record batch or row group, each with a checksum of its own.

It says where a batch lies, and which offsets and times it has. It is a shortcut: an index that is missing or
damaged is made again from the segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from pyrite.storage.files import Files, write_whole
from pyrite.storage.frames import HEADER, Encoded

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
"""`first` and `count` are offsets; `earliest` and `latest` are times; `position`, `length` and `checksum` are
those of the batch's bytes; `synced`: these were forced to disk first; `proof` is the record's checksum."""

Records = np.ndarray[Any, Any]
"""An array of RECORD."""
NO_RECORDS: Records = np.zeros(0, RECORD)
_RECORD = Struct("<qqqqqqQI")


def index_of(path: Path) -> Path:
    """Return the path of a segment's index."""
    return path.with_name(path.name + ".index")


def record_of(batch: pa.RecordBatch, position: int, length: int, checksum: int, synced: bool) -> Records:
    """Make the record of a batch, with the checksum of its bytes."""
    first, count = batch.column(0)[0].as_py(), batch.num_rows
    times = batch.column(1).view(pa.int64()).to_numpy()
    earliest, latest = int(times.min()), int(times.max())  # a clock may be set back in between
    packed = _pack(first, count, earliest, latest, position, length, checksum, synced)
    return np.frombuffer(packed, RECORD)


def pack_record(batch: Encoded, position: int, synced: bool) -> bytes:
    """Return the bytes of the record of an encoded batch."""
    frame, first, count, earliest, latest = batch
    return _pack(first, count, earliest, latest, position, frame.size, frame.checksum, synced)


def _pack(
    first: int,
    count: int,
    earliest: int,
    latest: int,
    position: int,
    length: int,
    checksum: int,
    synced: bool,
) -> bytes:
    head = _RECORD.pack(first, count, earliest, latest, position, length, checksum, synced)
    return head + (xxh3_64_intdigest(head) & 0xFFFF_FFFF).to_bytes(4, "little")


def prove(records: Records) -> None:
    """Write each record's own checksum into it."""
    records["proof"] = _proofs(records)


def _proofs(records: Records) -> Sequence[int]:
    raw = memoryview(records.tobytes())
    return [xxh3_64_intdigest(raw[at : at + 60]) & 0xFFFF_FFFF for at in range(0, len(raw), 64)]


def read_index(path: Path) -> tuple[Records, int]:
    """Read an index file; return its undamaged records, and the number of damaged places."""
    try:
        return proven(path.read_bytes())
    except FileNotFoundError:
        return NO_RECORDS, 0


def proven(raw: bytes) -> tuple[Records, int]:
    """Parse an index; return its undamaged records, and the number of damaged places."""
    records = np.frombuffer(raw[64 : len(raw) - len(raw) % 64], RECORD)
    bad = int(raw[:64] != INDEX_HEADER)
    if not len(records):
        return records, bad
    good = np.array(_proofs(records)) == records["proof"]
    if good.all():
        return records, bad
    return records[good], bad + int((~good).sum())


def write_index(files: Files, path: Path, records: Records) -> None:
    """Replace an index file atomically."""
    write_whole(files, path, [INDEX_HEADER, records.tobytes()])


def count_contiguous(records: Records) -> int:
    """Return how many records, from the first, belong to batches that lie one after the other."""
    if not len(records):
        return 0
    starts = np.concatenate([[len(HEADER)], (records["position"] + records["length"])[:-1]])
    wrong = np.flatnonzero(records["position"] != starts)
    return int(wrong[0]) if len(wrong) else len(records)


def end_of(records: Records, base: int) -> int:
    """Return the offset after the last record; `base` if there is none."""
    return int(records["first"][-1] + records["count"][-1]) if len(records) else base
