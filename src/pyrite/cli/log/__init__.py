"""`pyrite log`: look at what a broker has kept on disk. The options of its commands.

What they do is imported when they run: Arrow takes its time, and `pyrite pub` should not wait for it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from pyrite.storage.positions import Earliest, Position, parse_position
from pyrite.topics.filters import SHARE_PREFIX, InvalidTopic, check_filter

_EXAMPLES = """\
examples:
  pyrite log ls                                        the streams
  pyrite log cat --from -1h --filter 'sensors/#'       what sensors sent in the last hour
  pyrite log cat --from latest --follow --json         what comes from now on, as JSON
  pyrite log verify                                    check every byte
  pyrite log export --from 2026-11-01 november.parquet

`pyrite log COMMAND --help` tells more about each command. A broker may be running meanwhile, except for
compact.
"""

_LS = """\
examples:
  pyrite log ls                                 the streams
  pyrite log ls default                         the segments of one
  pyrite log ls -l | cut -f 2,9                 the segments of all: files and sizes

When standard output is no terminal, each line has, separated by tabs:
  of a stream:   name, segments, first offset, offset after the last, messages, earliest, latest, bytes
  of a segment:  stream, file, form, first offset, last offset, messages, earliest, latest, bytes
"""

_CAT = """\
examples:
  pyrite log cat                                everything in the stream default
  pyrite log cat --from -15m --filter 'sensors/+/temperature'
  pyrite log cat --from 2026-11-15T20:00:00+01:00 --to 2026-11-15T21:00:00+01:00
  pyrite log cat orders --from 4711 -n 1 --json
  pyrite log cat --from latest --follow         what comes from now on, until Ctrl-C

A line has the time, the topic and the payload. With --json it is an object, which has the payload under
"payload" if it is UTF-8, else in base64 under "payload_base64".
"""

_VERIFY = """\
examples:
  pyrite log verify                             every stream, and the state of sessions
  pyrite log verify orders --data /srv/pyrite

Prints a line for each damage, with the stream, the file and the offsets of what is lost, and a summary.
"""

_EXPORT = """\
examples:
  pyrite log export all.parquet
  pyrite log export orders orders.csv --from -7d
  pyrite log export --filter 'sensors/#' --format json - | jq .payload

The file's ending tells the format: .parquet, .csv, or .json, .jsonl and .ndjson for a JSON object a line.
- is standard output. The file has its name only when it is complete.
"""

_COMPACT = """\
examples:
  pyrite log compact
  pyrite log compact orders --compression snappy

A running broker does this by itself with segments that are full. This one is for a folder that no broker
uses: it turns every segment to Parquet, the last one too, and merges small ones.
"""

_POSITION = "an offset, earliest, latest, a time ago (-90s, -15m, -1h, -7d) or a time (2026-11-15T20:06:24Z)"

Parsers = argparse._SubParsersAction


class _AnyOrder(argparse.ArgumentParser):
    """Lets options stand between STREAM and FILE, too."""

    _within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, as argparse does where options and the others may alternate; which calls this again."""
        if self._within:
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            found, others = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False
        if others:  # said here, so that it is with the usage of this command
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return found, others


def register(commands: Parsers[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "log",
        help="look at the messages on disk",
        description="Look at the messages that a broker has kept on disk.",
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


def _ls(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "ls", "list streams and segments", _LS)
    parser.add_argument("stream", nargs="?", metavar="STREAM", help="show the segments of this stream")
    parser.add_argument("-l", "--long", action="store_true", help="show the segments of all streams")


def _cat(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "cat", "print messages", _CAT)
    parser.add_argument(
        "stream", nargs="?", default="default", metavar="STREAM", help="the stream; default: default"
    )
    _add_selection(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is added, until Ctrl-C")
    parser.add_argument("-n", "--count", type=_count, metavar="N", help="end after N messages")
    parser.add_argument("--json", action="store_true", help="print each message as a line of JSON")


def _verify(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "verify", "check every byte", _VERIFY)
    parser.add_argument("stream", nargs="?", metavar="STREAM", help="this stream only")


def _export(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "export", "write messages to a file", _EXPORT)
    parser.usage = "pyrite log export [options] [STREAM] FILE"
    parser.add_argument(
        "stream", nargs="?", default="default", metavar="STREAM", help="the stream; default: default"
    )
    parser.add_argument("file", metavar="FILE", help="the file to write; - for standard output")
    _add_selection(parser)
    parser.add_argument(
        "--format", choices=("parquet", "csv", "json"), help="whatever the file's ending says"
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")


def _compact(parsers: Parsers[_AnyOrder]) -> None:
    parser = _command(parsers, "compact", "turn segments to Parquet, and merge small ones", _COMPACT)
    parser.add_argument("stream", nargs="?", metavar="STREAM", help="this stream only")
    parser.add_argument(
        "--compression",
        choices=("zstd", "snappy", "gzip", "lz4", "none"),
        default="zstd",
        help="of the Parquet files; default: zstd",
    )
    parser.add_argument(
        "--segment-bytes",
        type=_count,
        default=64 * 1024 * 1024,
        metavar="N",
        help="merge up to this size; default: 67108864",
    )


def _command(parsers: Parsers[_AnyOrder], name: str, does: str, examples: str) -> argparse.ArgumentParser:
    parser = parsers.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # So that -1h is a value, as -1 is, and not an unknown option.
    parser._negative_number_matcher = re.compile(r"-[0-9]")
    parser.add_argument(
        "--data", type=Path, default=Path("pyrite-data"), metavar="DIR", help="default: pyrite-data"
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
        "--filter", type=_filter, metavar="TOPIC_FILTER", help="messages of these topics only"
    )
    parser.add_argument(
        "--from", dest="start", type=_position, default=Earliest(), metavar="POSITION", help=_POSITION
    )
    parser.add_argument("--to", dest="stop", type=_position, metavar="POSITION", help="the first not to show")


def _position(text: str) -> Position:
    try:
        return parse_position(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _filter(text: str) -> bytes:
    try:
        topic_filter = text.encode()
        check_filter(topic_filter, 65_536)
        if topic_filter.startswith(SHARE_PREFIX):
            raise InvalidTopic("nothing is shared here; write the filter alone")
    except InvalidTopic as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return topic_filter


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
