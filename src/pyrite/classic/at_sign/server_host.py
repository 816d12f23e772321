"""The server of the at-sign broker: prints each connection and each request.

server_host.py [--host HOST] [--port PORT]
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import asyncio
import signal
from collections.abc import Sequence

from pyrite.broker.link import Transport
from pyrite.classic import common
from pyrite.classic.at_sign.connection import AtSignClient, AtSignConnection
from pyrite.protocols.conversation import Conversation
from pyrite.server.config import Config
from pyrite.server.listeners import Listener
from pyrite.server.server import Server

TOPICS = ("weather", "news", "health", "security")
"""Topics that exist from the start."""


class AtSignServer(Server):
    """A broker for clients of the at-sign format."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.clients: dict[str, AtSignClient] = {}
        """The connected clients by key."""
        for topic in TOPICS:
            self.broker.catalog.create(topic.encode())

    def connection(self, listener: Listener, transport: Transport, address: str, peer: str) -> Conversation:
        """Create the connection of a client."""
        return AtSignConnection(self.broker, self.clients, transport, address, peer)


async def run(host: str, port: int) -> None:
    """Serve until Ctrl-C."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = AtSignServer(Config(listen=[f"line://{host}:{port}"], ephemeral=True))
    for listener in await server.start():
        if not port:
            print(f"listening on {listener.host}:{listener.port}", flush=True)
    await stopped.wait()
    await server.stop()


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog=common.name(), description="the server of the at-sign broker")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    parser.add_argument("--port", type=common.port, default=8000, help="0: any free one (default: 8000)")
    asked = parser.parse_args(arguments)
    asyncio.run(run(asked.host, asked.port))
    return common.stopped()


if __name__ == "__main__":
    sys.exit(main())
