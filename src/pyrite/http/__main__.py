"""The HTTP process: `python -m pyrite.http DESCRIPTOR`, with the descriptor of a socket to the broker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import uvloop

from pyrite.http.control import Control
from pyrite.process.endpoints import bind
from pyrite.process.logs import parse_levels, start_logging
from pyrite.process.plain_arrow import keep_pandas_out
from pyrite.process.tls import context_of

BACKLOG = 1_024
"""Connections that may wait to be accepted."""


async def run(descriptor: int) -> int:
    """Serve until the broker is gone."""
    from pyrite.http.app import make_app
    from pyrite.http.server import Server
    from pyrite.process.memory import give_back_after_rushes

    control = await Control.open(descriptor)
    settings = await control.settings()
    start_logging(parse_levels(settings["logging"]["levels"]), settings["logging"]["format"])
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    try:
        sockets = bind(settings["host"], settings["port"], BACKLOG)
        context = None if settings["tls"] is None else context_of(settings["tls"])
    except (OSError, ValueError) as error:
        control.say(failed=getattr(error, "strerror", None) or str(error))
        await asyncio.sleep(0.1)  # for it to be sent
        return 1
    server = Server(make_app(control, settings), settings)
    serving = asyncio.create_task(server.serve(sockets if context is None else []))
    while not server.started and not serving.done():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    if context is not None:
        server.listen_with_tls(sockets, context, control)
    control.say(port=sockets[0].getsockname()[1])
    give_back_after_rushes()
    await asyncio.wait(
        [serving, asyncio.create_task(control.run(server.renew))], return_when=asyncio.FIRST_COMPLETED
    )
    # If the broker is gone there is no one left to answer to; else this process is to be replaced.
    os._exit(0)


def main(descriptor: int) -> int:
    """Serve until the broker is gone."""
    # Arrow's own allocator keeps what its other threads had: 600 MB after many large answers, for good.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    keep_pandas_out()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return uvloop.run(run(descriptor))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
