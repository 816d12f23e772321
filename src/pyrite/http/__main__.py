"""The HTTP process: `python -m pyrite.http DESCRIPTOR`, with the descriptor of a socket to the broker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import uvloop

from pyrite.ipc.client import Client
from pyrite.ipc.messages import Failed, HttpSettings, Ready
from pyrite.process.endpoints import bind
from pyrite.process.logs import parse_levels, start_logging
from pyrite.process.plain_arrow import keep_pandas_out

BACKLOG = 1_024
"""Connections that may wait to be accepted."""
PATIENCE = 60.0
"""Seconds in which the broker must answer: a publish may have to wait for the disk."""


async def run(descriptor: int) -> int:
    """Serve until the broker has ended."""
    from pyrite.http.app import make_app
    from pyrite.http.server import Server
    from pyrite.process.memory import give_back_after_rushes

    client, settings = await Client.open(descriptor, HttpSettings, PATIENCE)
    start_logging(parse_levels(settings.logging.levels), settings.logging.format)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    server = Server(make_app(client, settings), settings, client)
    try:
        sockets = bind(settings.host, settings.port, BACKLOG)
        serving = await server.start(sockets)
    except (OSError, ValueError) as error:
        await client.tell_last(Failed(getattr(error, "strerror", None) or str(error)))
        return 1
    client.tell(Ready(sockets[0].getsockname()[1]))
    give_back_after_rushes()
    await asyncio.wait(
        [serving, asyncio.create_task(client.run(server.told))], return_when=asyncio.FIRST_COMPLETED
    )
    # If the broker has ended, nobody is left to answer to; else this process is to be replaced.
    os._exit(0)


def main(descriptor: int) -> int:
    """Serve until the broker has ended."""
    # Arrow's own allocator never returns what its other threads had: 600 MB after many large answers.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    keep_pandas_out()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return uvloop.run(run(descriptor))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
