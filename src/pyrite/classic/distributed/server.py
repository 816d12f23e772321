"""The server of the distributed broker.

server.py [--host HOST] [--port PORT] [--data DIR]
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
from collections.abc import Sequence

from pyrite.broker.catalog import CREATED, TopicOptions
from pyrite.classic import common

HOST = "localhost"
PORT = 5555
"""Default address of the server, and of its clients."""


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog=common.name(), description="the server of the distributed broker")
    parser.add_argument(
        "--host", default=HOST, help=f"where to listen (default: {HOST}); 0.0.0.0 for other machines too"
    )
    parser.add_argument("--port", type=common.port, default=PORT, help=f"(default: {PORT})")
    parser.add_argument("--data", default="distributed-data", help="folder of the log (default: %(default)s)")
    asked = parser.parse_args(arguments)
    ports: list[str] = []

    def say(line: str) -> None:
        """Print the server's single line instead of the broker's own."""
        if line.startswith("listening on "):
            ports.append(line.rpartition(":")[2])
        elif line == "pyrite ready":
            print(f"Server started on {asked.host}:{ports[0]}", flush=True)

    # A topic must be created before it is used.
    return common.serve([f"line://{asked.host}:{asked.port}"], asked.data, TopicOptions(CREATED), say)


if __name__ == "__main__":
    sys.exit(main())
