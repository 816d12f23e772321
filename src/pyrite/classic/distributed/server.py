"""The server of the distributed broker.

server.py [--host HOST] [--port PORT] [--data DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.broker.catalog import CREATED, TopicOptions
from pyrite.classic import common


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="server.py", description="the server of the distributed broker")
    parser.add_argument("--host", default="localhost", help="where to listen (default: localhost)")
    parser.add_argument("--port", type=int, default=5555, help="(default: 5555)")
    parser.add_argument("--data", default="distributed-data", help="the folder for everything that lasts")
    asked = parser.parse_args(arguments)
    listening = []

    def say(line: str) -> None:
        if line.startswith("listening on "):
            listening.append(line.rpartition(":")[2])
        elif line == "pyrite ready":
            print(f"Server started on {asked.host}:{listening[0]}", flush=True)

    listener = f"line://{asked.host}:{asked.port}"
    return common.serve([listener], asked.data, TopicOptions(CREATED), say)


if __name__ == "__main__":
    sys.exit(main())
