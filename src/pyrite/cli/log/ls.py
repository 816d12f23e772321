"""`pyrite log ls`: list the streams of a data folder and their segments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from pyrite.cli.log.rows import text_of
from pyrite.cli.log.running import folders
from pyrite.storage.stream import Segment, StreamReader

_STREAM = ("stream", "segments", "first", "end", "messages", "earliest", "latest", "bytes")
_SEGMENT = ("stream", "file", "form", "first", "last", "messages", "earliest", "latest", "bytes")
_TEXTS = ("stream", "file", "form", "table", "metadata")

Row = list[str | int]


def run(args: argparse.Namespace) -> int:
    readers = [StreamReader(folder) for folder in folders(args)]
    if args.stream is None and not args.long:
        show(_STREAM, [reader.look(partial(_stream, reader)) for reader in readers])
    else:
        show(_SEGMENT, [row for reader in readers for row in reader.look(partial(_segments, reader))])
    return 0


def _stream(reader: StreamReader) -> Row:
    rows = _segments(reader)
    return [
        reader.name,
        len(rows),
        reader.first,
        reader.end,
        sum(int(row[5]) for row in rows),
        next((row[6] for row in rows if row[6]), ""),
        next((row[7] for row in reversed(rows) if row[7]), ""),
        sum(path.stat().st_size for path in reader.folder.iterdir()),
    ]


def _segments(reader: StreamReader) -> list[Row]:
    return [_segment(segment) for segment in reader.segments()]


def _segment(segment: Segment) -> Row:
    records = segment.records()
    some = len(records) > 0
    return [
        segment.stream,
        segment.path.name,
        segment.path.suffix[1:],
        segment.base,
        segment.end() - 1,
        int(records["count"].sum()),
        text_of(int(records["earliest"][0])) if some else "",
        text_of(int(records["latest"][-1])) if some else "",
        segment.path.stat().st_size,
    ]


def show(heads: Sequence[str], rows: Sequence[Row]) -> None:
    """Print rows: as a table on a terminal, else separated by tabs."""
    if not sys.stdout.isatty():
        for row in rows:
            print(*row, sep="\t")
        return
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in _TEXTS else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            *(
                decimal(int(value)) if head == "bytes" else f"{value:,}" if isinstance(value, int) else value
                for head, value in zip(heads, row, strict=True)
            )
        )
    Console().print(table)
