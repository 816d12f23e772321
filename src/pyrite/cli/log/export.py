"""`pyrite log export`: write messages of a stream to a Parquet, CSV or JSON file."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from pyrite.cli.errors import CommandError, UsageError
from pyrite.cli.log import rows, running
from pyrite.storage import parquet
from pyrite.storage.bulk import matching, resolve
from pyrite.storage.schema import SCHEMA
from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader

_EXTENSIONS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_COLUMNS = [
    each for name in SCHEMA.names for each in ((name, f"{name}_base64") if name in rows.BYTES else (name,))
]


def run(args: argparse.Namespace) -> int:
    """Write the file; return 1 if any of the selected messages are damaged."""
    form = args.format or _EXTENSIONS.get(Path(args.file).suffix.lower())
    if form is None:
        raise UsageError(
            f"{args.file}: unknown file extension; expected one of {', '.join(_EXTENSIONS)}, or pass --format"
        )
    export = _Export(StreamReader(running.folders(args)[0]), args)
    write = {"parquet": _parquet, "csv": _csv, "json": _json}[form]
    if args.file == "-":
        if form == "parquet" and sys.stdout.isatty():
            raise UsageError("Parquet cannot be written to a terminal: give a file name")
        write(sys.stdout.buffer, export.batches())
    else:
        _to_file(Path(args.file), args.force, lambda file: write(file, export.batches()))
    where = "standard output" if args.file == "-" else args.file
    print(f"{export.written:,} messages written to {where}", file=sys.stderr)
    return 1 if export.damaged else 0


class _Export:
    """The selected messages."""

    def __init__(self, reader: StreamReader, args: argparse.Namespace) -> None:
        self._reader = reader
        self._filters: list[bytes] = [args.filter] if args.filter else []
        self._start = max(reader.first, resolve(args.start, reader))
        self._stop = min(reader.end, resolve(args.stop, reader))
        self.written = 0
        self.damaged = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        total = max(0, self._stop - self._start)
        with running.progress("exporting") as show:
            for piece in self._reader.read(self._start, self._stop):
                if isinstance(piece, Damage):
                    running.report(piece)
                    self.damaged = True
                    continue
                batch = matching(piece, self._filters)
                self.written += batch.num_rows
                yield batch
                show(piece.column(0)[-1].as_py() + 1 - self._start, total)


def _to_file(path: Path, force: bool, write: Callable[[BinaryIO], None]) -> None:
    """Write to a temporary file, sync it, and rename it when it is complete."""
    if path.exists() and not path.is_file():  # replacing a device by a file would be a surprise
        raise CommandError(f"{path} is not a regular file: give another name, or - for standard output")
    if path.exists() and not force:
        raise CommandError(f"{path} already exists: pass --force to replace it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists() and not force:
            raise CommandError(f"{path} was created in the meantime: pass --force to replace it")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _parquet(file: BinaryIO, batches: Iterator[pa.RecordBatch]) -> None:
    with parquet.writer(file, "zstd") as writer:
        for batch in parquet.row_groups(batches, gaps=True):
            writer.write_batch(batch, batch.num_rows)


def _json(file: BinaryIO, batches: Iterator[pa.RecordBatch]) -> None:
    for batch in batches:
        file.writelines(rows.json_lines(batch))


def _csv(file: BinaryIO, batches: Iterator[pa.RecordBatch]) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    try:
        writer = csv.DictWriter(text, _COLUMNS)
        writer.writeheader()
        for batch in batches:
            for message in rows.objects(batch):
                for name in ("retain", "user_properties"):
                    if name in message:
                        message[name] = json.dumps(message[name], ensure_ascii=False)
                writer.writerow(message)
        text.flush()
    finally:
        text.detach()
