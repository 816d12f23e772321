"""Ranges of message numbers in an Ack, evaluated without expanding them beyond the numbers in use."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

MAX_NUMBERS_IN_STEP = 64
"""Numbers looked up in one step."""


def merge(ranges: Iterable[range]) -> list[range]:
    """Return the same numbers as disjoint, ascending ranges."""
    merged: list[range] = []
    for numbers in sorted(ranges, key=lambda each: each.start):
        if merged and numbers.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(numbers.stop, merged[-1].stop))
        elif numbers:
            merged.append(numbers)
    return merged


def within(ranges: Sequence[range], first: int, stop: int) -> list[range]:
    """Return the ranges cut to `first` and above, below `stop`."""
    return [
        range(max(numbers.start, first), min(numbers.stop, stop))
        for numbers in ranges
        if numbers.start < stop and numbers.stop > first
    ]


def among(ranges: Sequence[range], known: Collection[int]) -> Iterator[list[int]]:
    """Yield the numbers of merged ranges that are in `known`, in lists of bounded length.

    The work is proportional to the size of the ranges or of `known`, whichever is smaller. The caller may
    remove numbers from `known` between two lists. A list may be empty.
    """
    if sum(numbers.stop - numbers.start for numbers in ranges) <= len(known):
        all_numbers = chain.from_iterable(ranges)
        while piece := list(islice(all_numbers, MAX_NUMBERS_IN_STEP)):
            yield [number for number in piece if number in known]
        return
    starts = [numbers.start for numbers in ranges]
    left = iter(list(known))
    while piece := list(islice(left, MAX_NUMBERS_IN_STEP)):
        yield [number for number in piece if number in ranges[bisect(starts, number) - 1] and number in known]
