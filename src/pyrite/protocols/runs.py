"""Runs of alike packets: how many follow one another, found for all of them at once. HOT.

The packets of one publisher mostly have the same size and the same bytes in the same places, except the
payload. Comparing one packet after the other takes Python 130 to 220 ns each. numpy takes 14, or 45 where 80
bytes are the same: it compares eight bytes of every packet, then the next eight.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from numpy import ndarray

MIN_COUNTED_RUN = 32
"""Packets from which on `count_alike` is faster than a loop."""

Word = tuple[str, int, int]
"""Bytes as a number: its numpy type, its place in a packet, and its value."""


def words(expected: bytes, at: int) -> Iterator[Word]:
    """Yield the bytes expected at a place in every packet, as numbers of eight bytes where possible."""
    if len(expected) < 8:
        for where, byte in enumerate(expected):
            yield "u1", at + where, byte
        return
    for where in (*range(0, len(expected) - 8, 8), len(expected) - 8):  # the last may overlap
        yield "<u8", at + where, int.from_bytes(expected[where : where + 8], "little")


def count_alike(data: bytes, at: int, size: int, expected: Iterable[Word], most: int = sys.maxsize) -> int:
    """Return how many packets of `size` bytes, from `at` on and at most `most`, have the expected words."""
    count = min(most, (len(data) - at) // size)
    for kind, where, value in expected:
        same = ndarray(count, kind, data, at + where, size) == value
        if not same.all():
            count = int(same.argmin())
    return count
