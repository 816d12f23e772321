"""Which segments of a stream there should be: so that one which someone else removed is missed.

Retention drops the oldest, and says so; a merge covers those that it replaces. Whatever else is there at one
look and not at the next has been taken away: what was in it is lost, and that is said, not passed over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pyrite.storage.segment import Damage


class Span(NamedTuple):
    """A segment by its name: where it begins, and where it ends if the name says so."""

    base: int
    end: int
    name: str


def spans(names: Iterable[str]) -> list[Span]:
    """Return the spans of segments, of which the oldest comes first."""
    found = []
    for name in names:
        base, _, end = name.split(".")[0].partition("-")
        found.append(Span(int(base), int(end or base), name))
    return found


class Roster:
    """The segments of one stream that are sealed, and those of them that are missing. For all threads."""

    def __init__(self, folder: Path, chosen: Callable[[Iterable[str]], list[str]]) -> None:
        self._folder = folder
        self._chosen = chosen
        """Picks the segments that count among the names in the folder."""
        self._lock = threading.Lock()
        self._expected: dict[int, Span] = {}
        """By base: each with where the next one begins, which is where it ends."""
        self._kept = 0
        """Offset before which retention has dropped what there was."""
        self._missing: dict[int, Damage] = {}

    @property
    def missing(self) -> list[Damage]:
        """Return what is missing, in the order of the offsets."""
        return [self._missing[base] for base in sorted(self._missing)]

    def look(self) -> None:
        """Compare what is there with what was there before."""
        with self._lock:
            found = self._list()
            if any(base not in self._missing for base in self._absent(found)):
                # A list that was made while one name took the place of another may lack both.
                found = self._list()
            absent = self._absent(found)
            self._missing = {base: self._missing.get(base) or self._damage(absent[base]) for base in absent}
            # The last is being written, or what follows it has not begun: where it ends is not known.
            known = {one.base: Span(one.base, following.base, one.name) for one, following in pairwise(found)}
            self._expected = absent | known

    def _list(self) -> list[Span]:
        return spans(self._chosen(os.listdir(self._folder)))

    def _absent(self, found: Sequence[Span]) -> dict[int, Span]:
        """Return what is expected and neither there nor part of what was merged."""
        there = {one.base for one in found}
        return {
            base: span
            for base, span in self._expected.items()
            if base >= self._kept
            and base not in there
            and not any(one.base < base < one.end for one in found)
        }

    def drop_before(self, offset: int) -> None:
        """Note that retention drops all segments that begin before an offset."""
        with self._lock:
            self._kept = max(self._kept, offset)

    def lost(self, name: str, base: int, end: int) -> None:
        """Note that a segment is gone which was being written."""
        with self._lock:
            if end > base:
                span = self._expected[base] = Span(base, end, name)
                self._missing[base] = self._damage(span)

    def _damage(self, span: Span) -> Damage:
        return Damage(self._folder.name, span.name, span.base, span.end - 1, "the file is missing")
