"""The server of Dallal: the line protocol over TCP (1373) and UDP (1234).

server.py [--host HOST] [--port PORT] [--udp-port PORT]
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
    parser = argparse.ArgumentParser(prog="server.py", description="the server of Dallal")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    parser.add_argument("--port", type=int, default=1373, help="for TCP (default: 1373)")
    parser.add_argument("--udp-port", type=int, default=1234, help="for UDP (default: 1234)")
    asked = parser.parse_args(arguments)
    listeners = [f"line://{asked.host}:{asked.port}", f"udp://{asked.host}:{asked.udp_port}"]
    return common.serve(listeners)


if __name__ == "__main__":
    sys.exit(main())
