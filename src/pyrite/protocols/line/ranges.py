"""Ranges of message numbers, as an Ack names them: merged, and never expanded beyond the numbers in use."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

MAX_PIECE = 64
"""Numbers that are looked up in one step."""


def merge(ranges: Iterable[range]) -> list[range]:
    """Return the same numbers as disjoint ranges in ascending order."""
    merged: list[range] = []
    for one in sorted(ranges, key=lambda each: each.start):
        if merged and one.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(one.stop, merged[-1].stop))
        elif one:
            merged.append(one)
    return merged


def within(ranges: Sequence[range], first: int, stop: int) -> list[range]:
    """Return the parts of ranges that lie from `first` to before `stop`."""
    return [
        range(max(one.start, first), min(one.stop, stop))
        for one in ranges
        if one.start < stop and one.stop > first
    ]


def among(ranges: Sequence[range], known: Collection[int]) -> Iterator[list[int]]:
    """Yield, in pieces, the numbers of merged ranges that are in `known`.

    The work is that of the ranges or of `known`, whichever holds fewer numbers. Numbers may be removed from
    `known` between two pieces. A piece may be empty.
    """
    if sum(one.stop - one.start for one in ranges) <= len(known):
        numbers = chain.from_iterable(ranges)
        while piece := list(islice(numbers, MAX_PIECE)):
            yield [number for number in piece if number in known]
        return
    starts = [one.start for one in ranges]
    left = iter(list(known))
    while piece := list(islice(left, MAX_PIECE)):
        yield [number for number in piece if number in ranges[bisect(starts, number) - 1] and number in known]
