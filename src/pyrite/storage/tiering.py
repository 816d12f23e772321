"""What becomes of sealed segments: they are rewritten as Parquet, and small ones are merged.

A segment's file is never changed once it has its name. Another takes its place: that is written, and safe,
before the old one goes, and `stream.chosen` takes only one of them for as long as both are there. So an
interruption, at any point, neither loses a message nor shows one twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pyrite.storage import parquet
from pyrite.storage.files import Files
from pyrite.storage.parquet import ParquetSegment, footer_of
from pyrite.storage.query import FOREVER
from pyrite.storage.segment import ArrowSegment, Damage, index_of, name_of, unfinished
from pyrite.storage.stream import SEGMENT, Segment, chosen

Report = Callable[[Damage], None]
"""Is told of what is damaged."""
DAMAGED = ".damaged"
"""How the name ends of a file that is kept because some of it could not be read."""


def to_parquet(files: Files, stream: str, path: Path, compression: str, report: Report) -> Path:
    """Rewrite a sealed segment as Parquet, and return the new file; an empty one is left as it is.

    Batches that are damaged are left out. Then the old file is kept under a name that ends in .damaged.
    """
    target = path.with_suffix(".parquet")
    segment = ArrowSegment(stream, path)
    segment.over = True
    if not len(segment.records()):
        return path
    # A batch that could not be promised may be there twice: here, and at the beginning of the next segment.
    bases = [int(name[:20]) for name in chosen(os.listdir(path.parent))]
    limit = min((base for base in bases if base > segment.base), default=FOREVER)
    damages: list[Damage] = []

    def good() -> Iterator[pa.RecordBatch]:
        for piece in segment.read(segment.base, limit):
            if isinstance(piece, Damage):
                damages.append(piece)
            else:
                yield piece

    if target.exists():  # an earlier try ended before the old file was gone
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
    """Return the damage, if there is any, after the last batch that is known."""
    records = segment.records()
    rest = unfinished(segment.path, int(records["position"][-1] + records["length"][-1]))
    if not rest:
        return []
    return [Damage(segment.stream, segment.path.name, -1, -1, f"its last {rest} bytes are damaged")]


def _retire(files: Files, path: Path, damages: Sequence[Damage]) -> None:
    """Take a segment in Arrow's format away, once it is there as Parquet."""
    if damages:
        kept = path.with_name(path.name + DAMAGED)
        files.rename(path, kept)
        if index_of(path).exists():
            files.rename(index_of(path), index_of(kept))
    else:
        remove(files, path)
    files.sync_folder(path.parent)


def remove(files: Files, path: Path) -> None:
    """Remove a segment and what lies beside it; the segment first, as the rest is of no use without it."""
    files.remove(path)
    files.remove(index_of(path))
    if path.suffix == ".parquet":
        files.remove(footer_of(path))


def mergeable(
    segments: Sequence[Segment], most_bytes: int, most_seconds: float = 0.0, eager: bool = False
) -> list[list[ParquetSegment]]:
    """Find neighbours in Parquet that together have at most `most_bytes`.

    They span at most `most_seconds`, if that is not 0: what is merged is dropped together, and late.
    Unless `eager`, a segment waits until its neighbours are together as large as itself. So no message is
    rewritten more often than the logarithm of how many segments there were.
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
    """Return how long it took from the first message to the last."""
    begin, end = first.records(), last.records()
    return float(end["latest"][-1] - begin["earliest"][0]) / 1e6 if len(begin) and len(end) else 0.0


def merge(files: Files, segments: Sequence[ParquetSegment], compression: str, report: Report) -> Path | None:
    """Merge neighbouring segments into one; return the new file.

    If one of them is damaged, all are left as they are, and what they hold can be read as before.
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
    """Remove what an interruption left behind. To be called while nothing is rewritten in the folder."""
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
        elif path.suffix in (".index", ".footer") and path.stem not in names:
            if path.stem + DAMAGED in names:
                files.rename(path, folder / f"{path.stem}{DAMAGED}.index")
            else:
                files.remove(path)
    files.sync_folder(folder)
