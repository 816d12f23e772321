"""The HTTP process: `python -m pyrite.http DESCRIPTOR`, with the descriptor of a socket to the broker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys

import uvloop

from pyrite.ipc.client import BrokerClient
from pyrite.ipc.messages import Failed, HttpSettings
from pyrite.process.logs import parse_levels, start_logging
from pyrite.process.plain_arrow import keep_pandas_out

PATIENCE = 60.0
"""Seconds within which the broker must answer; a publish may wait for the disk."""


async def run(descriptor: int) -> int:
    """Serve until the broker has ended."""
    from pyrite.http.app import make_app
    from pyrite.http.server import HttpServer
    from pyrite.process.memory import release_memory_after_bursts

    client, settings = await BrokerClient.open(descriptor, HttpSettings, PATIENCE)
    start_logging(parse_levels(settings.logging.levels), settings.logging.format)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    server = HttpServer(make_app(client, settings), settings, client)
    try:
        serving = await server.start([socket.socket(fileno=one) for one in settings.sockets])
    except (OSError, ValueError) as error:
        await client.tell_last(Failed(getattr(error, "strerror", None) or str(error)))
        return 1
    release_memory_after_bursts()
    await asyncio.wait(
        [serving, asyncio.create_task(client.run(server.told))], return_when=asyncio.FIRST_COMPLETED
    )
    # Either the broker has ended, or it will replace this process.
    os._exit(0)


def main(descriptor: int) -> int:
    # Arrow's own allocator never returns the memory of other threads: 600 MB after many large answers.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    keep_pandas_out()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return uvloop.run(run(descriptor))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
