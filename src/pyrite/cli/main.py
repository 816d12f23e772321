"""The `pyrite` command and its subcommands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from pyrite import __version__

COMMANDS = (
    "serve",
    "pub",
    "sub",
    "pull",
    "topics",
    "top",
    "log",
    "tables",
    "cluster",
    "passwd",
    "pipeline",
    "schemas",
    "simulate",
    "classic",
)
"""The modules of this package, each of which registers one subcommand."""

_EXAMPLES = """\
examples:
  pyrite serve                                  start a broker on 127.0.0.1:1883
  pyrite sub -t 'sensors/#' -v                  watch all sensors
  pyrite pub -t sensors/kitchen -m 21.5         publish a value
  pyrite topics                                 the topic tree with its retained messages
  pyrite top                                    a live view of the broker
  pyrite pull billing -t 'orders/#'             fetch what consumer 'billing' has not fetched yet
  pyrite log cat --from -1h                     messages of the last hour
  pyrite pipeline init plant                    create a Spark pipeline over the log
  pyrite simulate --devices 50 --seconds 30     publish from simulated devices
  pyrite classic                                the programs of the five classic systems

`pyrite COMMAND --help` describes a command.
"""


class _Version(argparse.Action):
    """Prints the version, and whether the modules that handle messages are compiled."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version, and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        origin = import_module("pyrite.broker.message").__file__ or ""
        print(f"pyrite {__version__} ({'pure Python' if origin.endswith('.py') else 'compiled'})")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _open_standard_files()
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="pyrite",
        description="A message broker whose messages are born ready for Spark.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # Load only the requested command: loading all takes a quarter of a second.
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        import_module(f"pyrite.cli.{name}").register(commands)
    args = parser.parse_args(words)
    exit_code: int = args.run(args)
    return exit_code


def _open_standard_files() -> None:
    """Open the standard files that the shell closed with <&- or >&-: libuv aborts on a closed one."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # opens the lowest free number


if __name__ == "__main__":
    sys.exit(main())
