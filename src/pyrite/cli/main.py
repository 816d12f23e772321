"""The `pyrite` command: its subcommands and what they have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyrite import __version__
from pyrite.cli import log, pub, pull, serve, sub, topics

_EXAMPLES = """\
examples:
  pyrite serve                                  start a broker on 127.0.0.1:1883
  pyrite sub -t 'sensors/#' -v                  watch all sensors
  pyrite pub -t sensors/kitchen -m 21.5         publish a value
  pyrite topics                                 the tree of topics with their kept values
  pyrite pull billing -t 'orders/#'             fetch what no one has fetched as billing yet
  pyrite log cat --from -1h                     what came in the last hour

`pyrite COMMAND --help` tells more about each command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="pyrite",
        description="A message broker whose messages are born ready for Spark.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pyrite {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (serve, pub, sub, pull, topics, log):
        command.register(commands)
    args = parser.parse_args(arguments)
    exit_code: int = args.run(args)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
