"""Runs of packets that look alike: how many there are, found out for all of them at once. HOT.

A publisher's packets mostly have the same size and the same bytes in the same places: all but the payload. To
look at one after the other takes Python 130 to 220 ns each. numpy takes 14, and 45 where 80 bytes are the
same: it compares eight bytes of all of them, and then the next eight.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from numpy import ndarray

MANY = 32
"""Packets that there must be for this to be faster."""

Word = tuple[str, int, int]
"""Bytes as a number: its type, where in a packet it is, and what it is."""


def words(expected: bytes, at: int) -> Iterator[Word]:
    """Yield bytes that are expected at a place in packets as numbers: eight each, if there are so many."""
    if len(expected) < 8:
        yield from (("u1", at + where, byte) for where, byte in enumerate(expected))
        return
    for where in (*range(0, len(expected) - 8, 8), len(expected) - 8):  # the last may overlap
        yield "<u8", at + where, int.from_bytes(expected[where : where + 8], "little")


def count_alike(data: bytes, at: int, size: int, expected: Iterable[Word], most: int = sys.maxsize) -> int:
    """Return how many packets of `size` bytes, at most `most`, follow from `at` on that are as expected."""
    count = min(most, (len(data) - at) // size)
    for kind, where, value in expected:
        same = ndarray(count, kind, data, at + where, size) == value
        if not same.all():
            count = int(same.argmin())
    return count
