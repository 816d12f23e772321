"""`pyrite log`: inspect the log on disk. This module holds the options of its commands.

The commands are imported when they run: Arrow is slow to load, and `pyrite pub` does not need it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from pyrite.cli.arguments import accept_times_ago, positive_int
from pyrite.storage.positions import Earliest, Position, parse_position
from pyrite.topics.filters import SHARE_PREFIX, InvalidTopic, check_filter

_EXAMPLES = """\
examples:
  pyrite log ls                                        list streams
  pyrite log cat --from -1h --filter 'sensors/#'       sensor messages of the last hour
  pyrite log cat --from latest --follow --json         new messages, as JSON
  pyrite log verify                                    check every byte
  pyrite log export --from 2026-11-01 november.parquet

`pyrite log COMMAND --help` describes a command. All but compact may be used while a broker is running.
"""

_LS = """\
examples:
  pyrite log ls                                 list streams
  pyrite log ls default                         list the segments of a stream
  pyrite log ls -l | cut -f 2,9                 files and sizes of all segments

If standard output is not a terminal, lines have these tab-separated fields:
  stream:   name, segments, first offset, offset after the last, messages, earliest, latest, bytes
  segment:  stream, file, form, first offset, last offset, messages, earliest, latest, bytes
"""

_CAT = """\
examples:
  pyrite log cat                                all messages of the stream 'default'
  pyrite log cat --from -15m --filter 'sensors/+/temperature'
  pyrite log cat --from 2026-11-15T20:00:00+01:00 --to 2026-11-15T21:00:00+01:00
  pyrite log cat orders --from 4711 -n 1 --json
  pyrite log cat --from latest --follow         new messages, until Ctrl-C

Each line has the time, the topic and the payload. With --json it is an object; its payload is under
"payload" if it is UTF-8, else in base64 under "payload_base64".
"""

_VERIFY = """\
examples:
  pyrite log verify                             check every stream, and the state of sessions
  pyrite log verify orders --data /srv/pyrite

Prints a line per damage, with the stream, the file and the lost offsets, and a summary.
"""

_EXPORT = """\
examples:
  pyrite log export all.parquet
  pyrite log export orders orders.csv --from -7d
  pyrite log export --filter 'sensors/#' --format json - | jq .payload

The format follows from the file name's extension: .parquet, .csv, or .json, .jsonl and .ndjson for JSON
lines. A file name of - is standard output. The file appears under its name only when it is complete.
"""

_COMPACT = """\
examples:
  pyrite log compact
  pyrite log compact orders --compression snappy

A running broker compacts full segments by itself. This command works on a folder that no broker uses: it
converts every segment to Parquet, including the last one, and merges small segments.
"""

_SQL = """\
examples:
  pyrite log sql "select topic, count(*) from log group by topic order by 2 desc"
  pyrite log sql "select * from log where topic like 'plant/%' and timestamp > now() - interval 1 hour"
  pyrite log sql --json "select decode(payload)::json->>'temp' as temp from sensors"

Needs DuckDB: pip install 'pyrite[sql]'. Each stream is a table with its name, and `log` is the stream
`default`. Messages of sealed segments and the newest are there alike, as of when the query begins.
If standard output is not a terminal, the first line has the names of the columns, and all are tab-separated.
"""

_POSITION = "an offset, earliest, latest, a time ago (-90s, -15m, -1h, -7d) or a time (2026-11-15T20:06:24Z)"

Parsers = argparse._SubParsersAction


class _AnyOrder(argparse.ArgumentParser):
    """Accepts options between STREAM and FILE, too."""

    _within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse options and positional arguments in any order. The method that does so calls this one."""
        if self._within:
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            found, others = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False
        if others:  # reported here, for the usage line of this command
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return found, others


def register(commands: Parsers[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "log",
        help="inspect the messages on disk",
        description="Inspect the log that a broker has written to disk.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_AnyOrder
    )
    _ls(parsers)
    _cat(parsers)
    _verify(parsers)
    _export(parsers)
    _compact(parsers)
    _sql(parsers)


def _ls(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "ls", "list streams and segments", _LS)
    parser.add_argument("stream", nargs="?", metavar="STREAM", help="list the segments of this stream")
    parser.add_argument("-l", "--long", action="store_true", help="list the segments of all streams")


def _cat(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "cat", "print messages", _CAT)
    parser.add_argument(
        "stream", nargs="?", default="default", metavar="STREAM", help="the stream (default: default)"
    )
    _add_selection(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="continue with new messages until Ctrl-C")
    parser.add_argument("-n", "--count", type=positive_int, metavar="N", help="stop after N messages")
    parser.add_argument("--json", action="store_true", help="print messages as JSON lines")


def _verify(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "verify", "check every byte", _VERIFY)
    parser.add_argument("stream", nargs="?", metavar="STREAM", help="check this stream only")


def _export(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "export", "write messages to a file", _EXPORT)
    parser.usage = "pyrite log export [options] [STREAM] FILE"
    parser.add_argument(
        "stream", nargs="?", default="default", metavar="STREAM", help="the stream (default: default)"
    )
    parser.add_argument("file", metavar="FILE", help="the file to write, or - for standard output")
    _add_selection(parser)
    parser.add_argument(
        "--format", choices=("parquet", "csv", "json"), help="the format, whatever the file's extension"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def _compact(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "compact", "convert segments to Parquet and merge small ones", _COMPACT)
    parser.add_argument("stream", nargs="?", metavar="STREAM", help="compact this stream only")
    parser.add_argument(
        "--compression",
        choices=("zstd", "snappy", "gzip", "lz4", "none"),
        default="zstd",
        help="compression of Parquet files (default: zstd)",
    )
    parser.add_argument(
        "--segment-bytes",
        type=positive_int,
        default=64 * 1024 * 1024,
        metavar="N",
        help="merge up to this size (default: 67108864)",
    )


def _sql(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "sql", "query the messages with SQL", _SQL)
    parser.add_argument("query", metavar="SQL", help="a query; each stream is a table")
    parser.add_argument("--json", action="store_true", help="print rows as JSON lines")


def _command(parsers: Parsers[_AnyOrder], name: str, does: str, examples: str) -> argparse.ArgumentParser:
    parser = parsers.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    accept_times_ago(parser)
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("pyrite-data"),
        metavar="DIR",
        help="the data folder (default: pyrite-data)",
    )
    parser.set_defaults(run=_runner(name))
    return parser


def _runner(name: str) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        commands = import_module("pyrite.cli.log.running")
        module = import_module(f"pyrite.cli.log.{name}")
        exit_code: int = commands.run(f"pyrite log {name}", module.run, args)
        return exit_code

    return run


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--filter", type=_filter, metavar="TOPIC_FILTER", help="only messages on matching topics"
    )
    parser.add_argument(
        "--from", dest="start", type=_position, default=Earliest(), metavar="POSITION", help=_POSITION
    )
    parser.add_argument(
        "--to", dest="stop", type=_position, metavar="POSITION", help="the position to stop before"
    )


def _position(text: str) -> Position:
    try:
        return parse_position(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _filter(text: str) -> bytes:
    try:
        topic_filter = text.encode()
        check_filter(topic_filter)
        if topic_filter.startswith(SHARE_PREFIX):
            raise InvalidTopic("a shared subscription has no meaning here; give its topic filter alone")
    except InvalidTopic as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return topic_filter
