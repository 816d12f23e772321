"""The server of Dallal: the line protocol over TCP (1373) and UDP (1234).

server.py [--host HOST] [--port PORT] [--udp-port PORT]
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
from collections.abc import Sequence

from pyrite.classic import common
from pyrite.protocols.line.options import LineOptions

EVENTS = {
    "Connected": "Connected by",
    "Disconnected": "Disconnected by",
    "Silent": "No response to Ping from",
}


def tell(event: str, peer: str) -> None:
    """Print an event of a client, with its address and port as Python shows them."""
    host, _, port = peer.rpartition(":")
    try:
        print(EVENTS[event], (host, int(port)), flush=True)
    except OSError:
        pass  # the reader of the output is gone, but clients are not


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog=common.name(), description="the server of Dallal")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    parser.add_argument("--port", type=common.port, default=1373, help="for TCP (default: 1373)")
    parser.add_argument("--udp-port", type=common.port, default=1234, help="for UDP (default: 1234)")
    parser.add_argument("--ping-interval", type=float, default=10.0, help=argparse.SUPPRESS)
    parser.add_argument("--udp-timeout", type=float, default=10.0, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    listeners = [f"line://{asked.host}:{asked.port}", f"udp://{asked.host}:{asked.udp_port}"]
    options = LineOptions(ping_interval=asked.ping_interval, udp_timeout=asked.udp_timeout, watch=tell)
    return common.serve(listeners, line=options)


if __name__ == "__main__":
    sys.exit(main())
