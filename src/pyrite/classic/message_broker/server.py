"""The server of the message broker: the line protocol over TCP (1370).

server.py [--host HOST] [--port PORT]
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # started or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
from collections.abc import Sequence

from pyrite.classic import common


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="server.py", description="the server of the message broker")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    parser.add_argument("--port", type=int, default=1370, help="for TCP (default: 1370)")
    asked = parser.parse_args(arguments)
    return common.serve([f"line://{asked.host}:{asked.port}"])


if __name__ == "__main__":
    sys.exit(main())
