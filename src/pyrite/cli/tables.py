"""`pyrite tables`: list the streams that are Iceberg tables."""

from __future__ import annotations

import argparse
from pathlib import Path

_EXAMPLES = """\
examples:
  pyrite tables                                 tables of the data folder pyrite-data
  pyrite tables --data /srv/pyrite | cut -f 6   how far each of them lags, in seconds

The delay is the age of the oldest message that is in the log and not yet in the table. If standard output is
not a terminal, lines have these tab-separated fields:
  table, rows, files, bytes, snapshots, delay, metadata
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "tables",
        help="list the streams that are Iceberg tables",
        description="List the streams that are Iceberg tables: rows, files, snapshots, and delay.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("pyrite-data"),
        metavar="DIR",
        help="the data folder (default: pyrite-data)",
    )
    parser.set_defaults(run=_run, stream=None)


def _run(args: argparse.Namespace) -> int:
    from pyrite.cli.log import running  # Arrow is slow to load

    return running.run("pyrite tables", _list, args)


def _list(args: argparse.Namespace) -> int:
    from pyrite.cli.log.ls import Row, show
    from pyrite.cli.log.running import folders
    from pyrite.storage.stream import StreamReader
    from pyrite.tables import catalog

    rows: list[Row] = []
    for folder in folders(args):
        table = catalog.entry(args.data, folder.name)
        if table is None:
            continue
        holds = catalog.summary(table.metadata)
        delay = catalog.delay(StreamReader(folder), holds.end)
        rows.append(
            [
                folder.name,
                holds.rows,
                holds.files,
                holds.bytes,
                holds.snapshots,
                f"{delay:.1f}",
                table.metadata_location,
            ]
        )
    show(("table", "rows", "files", "bytes", "snapshots", "delay", "metadata"), rows)
    return 0
