"""The server of the message broker: the line protocol over TCP (1370).

    server.py [--host HOST] [--port PORT]

It pings its clients, closes no connection, and prints nothing. Messages that a slow subscriber has not
received wait on disk, in a folder that is deleted when the server ends.
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import tempfile
from collections.abc import Sequence

from pyrite.classic import common
from pyrite.protocols.line.options import LineOptions


def tell_nobody(event: str, peer: str) -> None:
    """Print nothing."""


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog=common.name(), description="the server of the message broker")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    parser.add_argument("--port", type=common.port, default=1370, help="for TCP (default: 1370)")
    parser.add_argument("--ping-interval", type=float, default=10.0, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    options = LineOptions(ping_interval=asked.ping_interval, missed_rounds=0, watch=tell_nobody)
    with tempfile.TemporaryDirectory(prefix="message-broker-") as folder:
        return common.serve([f"line://{asked.host}:{asked.port}"], folder, line=options)


if __name__ == "__main__":
    sys.exit(main())
