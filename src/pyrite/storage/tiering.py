"""Rewriting sealed segments: as Parquet, and small ones merged.

A segment file never changes once it has its name; another file replaces it. The new file is written and safe
before the old one is removed, and while both exist `stream.chosen` picks one of them. So an interruption, at
any point, neither loses nor duplicates a message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pyrite.storage import parquet
from pyrite.storage.arrow import ArrowSegment, unfinished
from pyrite.storage.files import Files
from pyrite.storage.index import index_of
from pyrite.storage.parquet import ParquetSegment, footer_of
from pyrite.storage.query import FOREVER
from pyrite.storage.segment import DAMAGED, Damage, name_of
from pyrite.storage.stream import SEGMENT, Segment, chosen
from pyrite.storage.tail import tail_of

Report = Callable[[Damage], None]
"""Called with each damage that is found."""


def to_parquet(files: Files, stream: str, path: Path, compression: str, report: Report) -> Path:
    """Rewrite a sealed Arrow segment as Parquet, and return the new file; an empty segment is left as it is.

    Damaged batches are left out, and the old file is kept with the suffix .damaged.
    """
    target = path.with_suffix(".parquet")
    segment = ArrowSegment(stream, path)
    segment.over = True
    if not len(segment.records()):
        return path
    # A batch that was refused may be here, and again at the beginning of the next segment.
    bases = [int(name[:20]) for name in chosen(os.listdir(path.parent))]
    limit = min((base for base in bases if base > segment.base), default=FOREVER)
    damages: list[Damage] = []

    def good() -> Iterator[pa.RecordBatch]:
        for piece in segment.read(segment.base, limit):
            if isinstance(piece, Damage):
                damages.append(piece)
            else:
                yield piece

    if target.exists():  # an earlier attempt ended before the old file was removed
        damages = _damages(segment)
    else:
        parquet.write(files, target, good(), min(segment.end(), limit), compression)
        damages += _unfinished(segment)
    for damage in damages:
        report(damage)
    _retire(files, path, damages)
    return target


def _damages(segment: ArrowSegment) -> list[Damage]:
    pieces = segment.read(segment.base, FOREVER)
    return [piece for piece in pieces if isinstance(piece, Damage)] + _unfinished(segment)


def _unfinished(segment: ArrowSegment) -> list[Damage]:
    """Return the damage after the last frame that is known, if any."""
    records = segment.indexed()
    if not len(records):
        return []
    rest = unfinished(segment.path, int(records["position"][-1] + records["length"][-1]))
    if not rest:
        return []
    return [Damage(segment.stream, segment.path.name, -1, -1, f"its last {rest} bytes are damaged")]


def _retire(files: Files, path: Path, damages: Sequence[Damage]) -> None:
    """Remove an Arrow segment that exists as Parquet now; keep it with another name if it is damaged."""
    if damages:
        kept = path.with_name(path.name + DAMAGED)
        files.rename(path, kept)
        for beside, renamed in ((index_of(path), index_of(kept)), (tail_of(path), tail_of(kept))):
            if beside.exists():
                files.rename(beside, renamed)
    else:
        remove(files, path)
    files.sync_folder(path.parent)


def remove(files: Files, path: Path) -> None:
    """Remove a segment and the files beside it; the segment first, as the others are useless without it."""
    files.remove(path)
    files.remove(index_of(path))
    if path.suffix == ".parquet":
        files.remove(footer_of(path))
    else:
        files.remove(tail_of(path))


def mergeable(
    segments: Sequence[Segment], most_bytes: int, most_seconds: float = 0.0, eager: bool = False
) -> list[list[ParquetSegment]]:
    """Return runs of neighbouring Parquet segments of at most `most_bytes` together.

    They span at most `most_seconds`, unless that is 0: a merged segment is dropped as a whole, when its last
    message is old enough. Unless `eager`, a segment waits until its neighbours together are as large as
    itself. So a message is rewritten at most as often as the logarithm of the number of segments.
    """
    runs: list[list[ParquetSegment]] = [[]]
    sizes: list[list[int]] = [[]]
    for segment in segments:
        if not isinstance(segment, ParquetSegment):
            runs.append([])
            sizes.append([])
            continue
        size = segment.path.stat().st_size
        run = runs[-1]
        too_long = bool(run) and 0 < most_seconds < _seconds(run[0], segment)
        if too_long or sum(sizes[-1]) + size > most_bytes:
            runs.append([])
            sizes.append([])
        runs[-1].append(segment)
        sizes[-1].append(size)
    for run, each in zip(runs, sizes, strict=True):
        while each and not eager and 2 * max(each) > sum(each):
            del run[0], each[0]
    return [run for run in runs if len(run) > 1]


def _seconds(first: ParquetSegment, last: ParquetSegment) -> float:
    """Return the seconds between the first message of one segment and the last of another."""
    begin, end = first.records(), last.records()
    return float(end["latest"][-1] - begin["earliest"][0]) / 1e6 if len(begin) and len(end) else 0.0


def merge(files: Files, segments: Sequence[ParquetSegment], compression: str, report: Report) -> Path | None:
    """Merge neighbouring segments, and return the new file.

    If one of them is damaged, all are left as they are, and can be read as before.
    """
    first, last = segments[0], segments[-1]
    target = first.path.with_name(f"{name_of(first.base)}-{name_of(last.end())}.parquet")
    try:
        parquet.write(files, target, _whole(segments), last.end(), compression)
    except _Found as found:
        report(found.damage)
        return None
    for segment in segments:
        remove(files, segment.path)
    files.sync_folder(target.parent)
    return target


class _Found(Exception):
    """A segment that was to be merged is damaged."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage


def _whole(segments: Sequence[ParquetSegment]) -> Iterator[pa.RecordBatch]:
    for segment in segments:
        for piece in segment.read(segment.base, FOREVER):
            if isinstance(piece, Damage):
                raise _Found(piece)
            yield piece


def tidy(files: Files, folder: Path, report: Report) -> None:
    """Remove what an interruption left behind. Nothing else may rewrite files in the folder meanwhile."""
    names = set(os.listdir(folder))
    counted = set(chosen(names))
    for name in sorted(names):
        path = folder / name
        if name.endswith(".tmp"):
            files.remove(path)
        elif SEGMENT.fullmatch(name) and name not in counted:
            if path.suffix == ".arrow" and path.with_suffix(".parquet").name in names:
                segment = ArrowSegment(folder.name, path)
                damages = _damages(segment) if len(segment.records()) else []
                for damage in damages:
                    report(damage)
                _retire(files, path, damages)
            else:
                remove(files, path)
        elif path.suffix in (".index", ".footer", ".tail") and path.stem not in names:
            if path.stem + DAMAGED in names:
                files.rename(path, folder / f"{path.stem}{DAMAGED}{path.suffix}")
            else:
                files.remove(path)
    files.sync_folder(folder)
