"""`pyrite log sql`: query streams with DuckDB, sealed segments and the newest messages alike."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from pyrite.cli.errors import CommandError
from pyrite.cli.log.running import folders
from pyrite.process.terminal import printable
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import COLUMNS, DataLoss, Query
from pyrite.storage.snapshot import Snapshot, take

if TYPE_CHECKING:
    import duckdb

ALIAS = "log"
"""A name for the stream `default`, which is a word of SQL."""


def run(args: argparse.Namespace) -> int:
    if find_spec("duckdb") is None:
        raise CommandError("DuckDB is missing; install it with pip install 'pyrite[sql]'")
    import duckdb

    args.stream = None
    streams = {folder.name: folder.name for folder in folders(args)}
    if "default" in streams:
        streams.setdefault(ALIAS, "default")
    log = LogFolder(args.data)
    snapshots: list[Snapshot | None] = []
    try:
        with duckdb.connect() as database:
            database.execute("SET TimeZone = 'UTC'")
            used = database.get_table_names(args.query)
            snapshots += (_define(database, one, log, streams[one]) for one in used if one in streams)
            _show(database.execute(args.query), args.json)
    except duckdb.Error as error:
        raise CommandError(str(error)) from None
    except DataLoss as error:
        raise CommandError(f"damaged: {error}") from None
    finally:
        for snapshot in snapshots:
            if snapshot is not None:
                snapshot.remove()
    return 0


def _define(database: duckdb.DuckDBPyConnection, table: str, log: LogFolder, stream: str) -> Snapshot | None:
    """Make a stream, as it is now, a table."""
    bounds = log.bounds(stream)
    snapshot = take(log, stream, bounds.end, whole=True)
    if snapshot is None:  # an empty stream, or a folder that cannot be written to
        query = Query(stream, bounds.first, bounds.end)
        database.register(table, _table(log, query))
        return None
    files = ", ".join(_quoted(str(one), "'") for one in snapshot.files)
    columns = ", ".join(_quoted(name, '"') for name in COLUMNS)
    view = f"CREATE VIEW {_quoted(table, chr(34))} AS SELECT {columns} FROM read_parquet([{files}])"  # noqa: S608
    database.execute(view)
    return snapshot


def _table(log: LogFolder, query: Query) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches(log.read(query), query.schema)


def _quoted(text: str, quote: str) -> str:
    return quote + text.replace(quote, 2 * quote) + quote


def _show(result: duckdb.DuckDBPyConnection, as_json: bool) -> None:
    names, rows = [one[0] for one in result.description or ()], _rows(result)
    if as_json:
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True)), default=str))
    elif not sys.stdout.isatty():
        print(*names, sep="\t")
        for row in rows:
            print(*map(_text, row), sep="\t")
    else:
        table = Table(*names, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(printable(_text(value)) for value in row))
        Console().print(table, markup=False)


def _rows(result: duckdb.DuckDBPyConnection) -> Iterator[list[Any]]:
    while rows := result.fetchmany(1_000):
        for row in rows:
            yield [_plain(value) for value in row]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: bytes are text if they are UTF-8, else in base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
    return text.translate({9: "\\t", 10: "\\n", 13: "\\r"})
