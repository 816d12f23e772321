"""The segments that a stream should have, so that one that someone else removes is missed.

Retention drops the oldest segments and announces it; a merged segment covers those that it replaces. Any
other segment that was there before and is not there now was removed by someone: its messages are lost, which
is reported as damage.
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
    """A segment by its name: where it begins, and where it ends if the name states it."""

    base: int
    end: int
    name: str


def spans(names: Iterable[str]) -> list[Span]:
    """Return the spans of segments by their names, the oldest first."""
    found = []
    for name in names:
        base, _, end = name.split(".")[0].partition("-")
        found.append(Span(int(base), int(end or base), name))
    return found


class Roster:
    """The sealed segments of one stream, and which of them are missing. Safe to use from several threads."""

    def __init__(self, folder: Path, chosen: Callable[[Iterable[str]], list[str]]) -> None:
        self._folder = folder
        self._chosen = chosen
        """Picks the segments that count among the names in the folder."""
        self._lock = threading.Lock()
        self._expected: dict[int, Span] = {}
        """By base: each segment with the base of the next one, which is where it ends."""
        self._kept = 0
        """Offset before which retention has dropped segments."""
        self._missing: dict[int, Damage] = {}

    @property
    def missing(self) -> list[Damage]:
        """The missing segments, in the order of their offsets."""
        return [self._missing[base] for base in sorted(self._missing)]

    def look(self) -> None:
        """Compare the segments in the folder with those of the last call."""
        with self._lock:
            found = self._list()
            if any(base not in self._missing for base in self._absent(found)):
                # A listing made while one name replaces another may lack both.
                found = self._list()
            absent = self._absent(found)
            self._missing = {base: self._missing.get(base) or self._damage(absent[base]) for base in absent}
            # Where the last segment ends is not known: it is being written, or the next one has not begun.
            known = {one.base: Span(one.base, following.base, one.name) for one, following in pairwise(found)}
            self._expected = absent | known

    def _list(self) -> list[Span]:
        return spans(self._chosen(os.listdir(self._folder)))

    def _absent(self, found: Sequence[Span]) -> dict[int, Span]:
        """Return the expected segments that are neither there nor covered by a merged segment."""
        there = {one.base for one in found}
        return {
            base: span
            for base, span in self._expected.items()
            if base >= self._kept
            and base not in there
            and not any(one.base < base < one.end for one in found)
        }

    def drop_before(self, offset: int) -> None:
        """Record that retention drops all segments that begin before an offset."""
        with self._lock:
            self._kept = max(self._kept, offset)

    def lost(self, name: str, base: int, end: int) -> None:
        """Record that the active segment was removed."""
        with self._lock:
            if end > base:
                span = self._expected[base] = Span(base, end, name)
                self._missing[base] = self._damage(span)

    def _damage(self, span: Span) -> Damage:
        return Damage(self._folder.name, span.name, span.base, span.end - 1, "the file is missing")
