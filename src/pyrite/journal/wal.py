"""Reads SQLite's write-ahead log without SQLite, which would change files and does not report damage.

A frame is valid if its checksum, which continues that of the previous frame, is right. Frames take effect
with the one that ends their transaction. SQLite stops at the first invalid frame.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack, unpack
from typing import NamedTuple

HEADER = 32
FRAME_HEADER = 24


class WriteAheadLog(NamedTuple):
    """The changes that a write-ahead log makes to its database."""

    pages: dict[int, bytes]
    """The last committed version of each page, by number from 1."""
    size: int
    """Number of pages of the database after the last commit; 0 if there is none."""
    damaged_at: int
    """The byte at which damage begins that loses commits; -1 if there is none."""


_NOTHING = WriteAheadLog({}, 0, -1)


def log_of(path: Path) -> Path:
    """Return the path of a database's write-ahead log."""
    return path.with_name(path.name + "-wal")


def read_log(path: Path) -> WriteAheadLog:
    """Read a database's write-ahead log."""
    try:
        raw = log_of(path).read_bytes()
    except FileNotFoundError:
        return _NOTHING
    if len(raw) < HEADER:
        return _NOTHING  # nothing was ever committed to it
    if _checksum(raw[3], raw[:24], bytes(8)) != raw[24:HEADER]:
        return WriteAheadLog({}, 0, 0)
    size = FRAME_HEADER + int.from_bytes(raw[8:12], "big")
    pages: dict[int, bytes] = {}
    uncommitted: dict[int, bytes] = {}
    pages_in_all = 0
    at, before = HEADER, raw[24:HEADER]
    while at + size <= len(raw):
        head, page = raw[at : at + FRAME_HEADER], raw[at + FRAME_HEADER : at + size]
        if head[8:16] != raw[16:24] or _checksum(raw[3], head[:8] + page, before) != head[16:24]:
            break
        uncommitted[int.from_bytes(head[:4], "big")] = page
        if _ends_transaction(head):
            pages |= uncommitted
            uncommitted = {}
            pages_in_all = int.from_bytes(head[4:8], "big")
        at, before = at + size, head[16:24]
    return WriteAheadLog(pages, pages_in_all, at if _has_commit(raw, at, size) else -1)


def _has_commit(raw: bytes, at: int, size: int) -> bool:
    """Return whether the invalid frames from a byte on include a committed transaction.

    If not, an error or a crash left them behind, and nothing in them was acknowledged.
    """
    while at + size <= len(raw):
        head = raw[at : at + FRAME_HEADER]
        if head[8:12] != raw[16:20] and head[12:16] != raw[20:24]:
            return False  # from before the log was last restarted
        if _ends_transaction(head):
            return True
        at += size
    return False


def _ends_transaction(head: bytes) -> bool:
    return any(head[4:8])


def read_database(path: Path) -> tuple[bytearray, WriteAheadLog]:
    """Return a database that is not in use, with its write-ahead log applied; and the log."""
    image = bytearray(path.read_bytes())
    log = read_log(path)
    if log.size:
        page_size = len(next(iter(log.pages.values())))
        image[log.size * page_size :] = bytes(max(0, log.size * page_size - len(image)))
        for number, page in log.pages.items():
            if 0 < number <= log.size:
                image[(number - 1) * page_size : number * page_size] = page
    return image, log


def _checksum(magic: int, data: bytes, before: bytes) -> bytes:
    """Return SQLite's checksum of a part of a write-ahead log, continuing that of the previous part."""
    count = len(data) // 4
    words = unpack(f"{'>' if magic & 1 else '<'}{count}I", data)
    first, second = unpack(">2I", before)
    for at in range(0, count, 2):
        first = first + words[at] + second & 0xFFFF_FFFF
        second = second + words[at + 1] + first & 0xFFFF_FFFF
    return pack(">2I", first, second)
