"""Background work on a stream's sealed segments: conversion to Parquet, merging, retention."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

from pyrite.storage import tiering
from pyrite.storage.arrow import ArrowSegment, is_sealed, size_of
from pyrite.storage.files import Files
from pyrite.storage.folder import links_of
from pyrite.storage.options import StreamOptions
from pyrite.storage.parquet import ParquetSegment
from pyrite.storage.roster import Roster
from pyrite.storage.segment import Damage
from pyrite.storage.stream import Segment, StreamReader, chosen

logger = logging.getLogger(__name__)

MERGE_SPAN = 86_400.0
"""Seconds of messages up to which small segments are merged, unless retention asks for less."""

MAX_BACKLOG = 8
"""Sealed segments of a stream that are left for a quieter time."""


def be_nice() -> None:
    """Lower the priority of the calling thread."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    except (AttributeError, OSError):
        pass  # threads have no priority of their own on this system


class Upkeep:
    """Maintains one stream. Readers find every message once, whatever it does."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        options: StreamOptions,
        report: Callable[[Damage], None],
        roster: Roster | None = None,
    ) -> None:
        self._files = files
        self._roster = roster or Roster(folder, chosen)
        self._links = links_of(folder)
        self._ages = Ages()
        self._options = options
        self._report = report
        self._reader = StreamReader(folder, self._roster)
        self._failure = ""
        """Why the last attempt failed; empty if it did not."""

    def work(self, wall: float, uptime: float, busy: bool = False) -> None:
        """Do what is due, or only what cannot wait; a failed step is logged once and tried again."""
        try:
            self._retain(wall, uptime)
            # A table must not lag when much arrives: its readers see Parquet alone.
            self._convert(MAX_BACKLOG if busy and not self._options.table else 0)
            if not busy:
                self._merge()
        except Exception as error:  # other streams must go on
            self._failed(error)
        else:
            if self._failure and not busy:
                logger.warning("stream %s: upkeep works again (was: %s)", self._reader.name, self._failure)
                self._failure = ""
        self._reader.forget_unused()

    def _failed(self, error: Exception) -> None:
        expected = isinstance(error, OSError)
        failure = str(getattr(error, "strerror", None) or error) if expected else repr(error)
        if failure != self._failure:
            self._failure = failure
            logger.warning(
                "stream %s: upkeep: %s", self._reader.name, failure, exc_info=None if expected else error
            )

    def _sealed(self) -> list[Segment]:
        """Return the segments to which nothing more is written."""
        segments = self._reader.segments()
        last = segments[-1:] if segments and not _is_over(segments[-1]) else []
        return segments[: len(segments) - len(last)]

    def _convert(self, leave: int) -> None:
        """Rewrite sealed Arrow segments as Parquet, the oldest first; leave `leave` of them."""
        waiting = [segment for segment in self._sealed() if isinstance(segment, ArrowSegment)]
        for segment in waiting[: max(0, len(waiting) - leave)]:
            tiering.to_parquet(
                self._files, segment.stream, segment.path, self._options.compression, self._report
            )

    def _merge(self) -> None:
        options = self._options
        span = options.retention_age / 4 if options.retention_age else MERGE_SPAN
        segments = self._reader.segments()
        if options.table:
            segments = list(takewhile(self._is_in_table, segments))
        for run in tiering.mergeable(segments, options.segment_bytes, span):
            tiering.merge(self._files, run, options.compression, self._report)

    def _is_in_table(self, segment: Segment) -> bool:
        """Return whether the stream's table has linked a sealed segment: then its rows were appended, or will
        be, and a merge changes no row of the table.
        """
        return not isinstance(segment, ParquetSegment) or (self._links / segment.path.name).exists()

    def _retain(self, wall: float, uptime: float) -> None:
        """Drop the oldest segments while they are too old, or too large together."""
        options = self._options
        sealed = self._sealed()
        dropped: list[Segment] = []
        if options.retention_age:
            self._ages.look(self._reader.segments(), len(sealed), wall, uptime)
            while sealed and self._ages.age(sealed[0], uptime) > options.retention_age:
                dropped.append(sealed.pop(0))
        if options.retention_bytes:
            total = sum(size_of(segment.path) for segment in self._reader.segments()[len(dropped) :])
            while sealed and total > options.retention_bytes:
                total -= size_of(sealed[0].path)
                dropped.append(sealed.pop(0))
        if dropped:
            left = self._reader.segments()[len(dropped) :]
            self._roster.drop_before(left[0].base if left else dropped[-1].end())
        for segment in dropped:
            tiering.remove(self._files, segment.path)
        if dropped:
            last = dropped[-1].path.name
            logger.info("stream %s: retention dropped segments up to %s", self._reader.name, last)


class Ages:
    """The age of sealed segments, by a clock that nobody can set.

    The time of day tells how old a segment is when it is first seen. A segment that was still written while
    this process ran is not older than that, whatever the time of day has become.
    """

    def __init__(self) -> None:
        self._begun: dict[int, float] | None = None
        """By base, the uptime when a segment was first seen; None before the first call."""
        self._ended: dict[int, float] = {}
        """By base, the uptime at which the newest message of a sealed segment came."""

    def look(self, segments: Sequence[Segment], sealed: int, wall: float, uptime: float) -> None:
        """Record which segments exist; the first `sealed` of them are sealed."""
        begun = self._begun
        for number, segment in enumerate(segments):
            if number < sealed and segment.base not in self._ended:
                age = max(0.0, wall - _latest(segment) / 1e6)
                if begun is not None:
                    age = min(age, uptime - begun.get(segment.base, uptime))
                self._ended[segment.base] = uptime - age
        known = begun or {}
        self._begun = {one.base: known.get(one.base, uptime) for one in segments[sealed:]}
        first = segments[0].base if segments else 0
        self._ended = {base: at for base, at in self._ended.items() if base >= first}

    def age(self, segment: Segment, uptime: float) -> float:
        """Return the seconds since the newest message of a sealed segment, which may have been merged."""
        end = max(segment.end(), segment.base + 1)
        return uptime - max(at for base, at in self._ended.items() if segment.base <= base < end)


def boot_time() -> float:
    """Return the seconds since the machine was started, including those in which it slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _is_over(segment: Segment) -> bool:
    return not isinstance(segment, ArrowSegment) or is_sealed(segment.path)


def _latest(segment: Segment) -> int:
    records = segment.records()
    return int(records["latest"].max()) if len(records) else 0
