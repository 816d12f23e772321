"""The HTTP process: `python -m pyrite.http DESCRIPTOR`, with the descriptor of a socket to the broker."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
import uvloop

from pyrite.endpoints import bind, new_context, trust_clients
from pyrite.http.control import Control
from pyrite.logs import parse_levels, start_logging
from pyrite.plain_arrow import keep_pandas_out

BACKLOG = 1_024
"""Connections that may wait to be accepted."""
QUIET = 5.0
"""Seconds between two looks whether a rush is over."""
RUSH = 1.0
"""Seconds of the processor's time, between two looks, that are a rush."""
GOODBYE = 2
"""Seconds that requests under way have to be answered, when another process takes over."""


def tls_context(tls: dict[str, Any]) -> ssl.SSLContext:
    """Make the TLS settings."""
    context = new_context(tls["minimum_version"])
    context.load_cert_chain(tls["certificate"], tls["key"])
    if tls["client_ca"]:
        trust_clients(context, tls["client_ca"], tls["require_client_certificate"])
    return context


class Server(uvicorn.Server):
    """Ends as this process is told to."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGTERM: another process takes over. Ctrl-C is for the broker, which ends this."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, self, "should_exit", True)
        yield


async def give_back() -> None:
    """After each rush, have the system have the memory again that answers needed."""
    from pyrite.log.upkeep import give_back_memory

    rushed, used = False, time.process_time()
    while True:
        await asyncio.sleep(QUIET)
        before, used = used, time.process_time()
        if used - before > RUSH:
            rushed = True
        elif rushed:
            rushed = False
            gc.collect()
            await asyncio.to_thread(give_back_memory)


async def run(descriptor: int) -> int:
    """Serve until the broker is gone."""
    from pyrite.http.app import make_app
    from pyrite.http.protocol import bounded

    control = await Control.open(descriptor)
    settings = await control.settings()
    start_logging(parse_levels(settings["logging"]["levels"]), settings["logging"]["format"])
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    try:
        sockets = bind(settings["host"], settings["port"], BACKLOG)
        context = None if settings["tls"] is None else tls_context(settings["tls"])
    except (OSError, ssl.SSLError) as error:
        control.say(failed=error.strerror or str(error))
        await asyncio.sleep(0.1)  # for it to be sent
        return 1
    config = uvicorn.Config(
        make_app(control, settings),
        http=bounded(settings),
        ws="none",
        lifespan="off",
        loop="none",
        access_log=False,
        log_config=None,
        proxy_headers=False,  # the address that counts failed log-ins is the real one
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=GOODBYE,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets))
    while not server.started and not serving.done():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    control.say(port=sockets[0].getsockname()[1])
    tidying = asyncio.create_task(give_back())
    await asyncio.wait([serving, asyncio.create_task(control.run())], return_when=asyncio.FIRST_COMPLETED)
    tidying.cancel()
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
