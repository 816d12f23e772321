"""Ranges of message numbers in an Ack. They are never expanded beyond the numbers in use."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

MAX_NUMBERS_IN_STEP = 64
"""Numbers that are looked up in one step."""


def merge(ranges: Iterable[range]) -> list[range]:
    """Return the same numbers as disjoint, ascending ranges."""
    merged: list[range] = []
    for one in sorted(ranges, key=lambda each: each.start):
        if merged and one.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(one.stop, merged[-1].stop))
        elif one:
            merged.append(one)
    return merged


def within(ranges: Sequence[range], first: int, stop: int) -> list[range]:
    """Return the parts of ranges from `first` to before `stop`."""
    return [
        range(max(one.start, first), min(one.stop, stop))
        for one in ranges
        if one.start < stop and one.stop > first
    ]


def among(ranges: Sequence[range], known: Collection[int]) -> Iterator[list[int]]:
    """Yield the numbers of merged ranges that are in `known`, in lists of bounded length.

    The work grows with the numbers of the ranges or of `known`, whichever are fewer. Numbers may be removed
    from `known` between two lists. A list may be empty.
    """
    if sum(one.stop - one.start for one in ranges) <= len(known):
        numbers = chain.from_iterable(ranges)
        while piece := list(islice(numbers, MAX_NUMBERS_IN_STEP)):
            yield [number for number in piece if number in known]
        return
    starts = [one.start for one in ranges]
    left = iter(list(known))
    while piece := list(islice(left, MAX_NUMBERS_IN_STEP)):
        yield [number for number in piece if number in ranges[bisect(starts, number) - 1] and number in known]
