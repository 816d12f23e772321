"""The broker's process: start, signals, shutdown."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyrite.server.config import Config
from pyrite.server.kernel import keep_pages_small, raise_descriptor_limit
from pyrite.server.notify import READY, STOPPING, notify
from pyrite.server.server import Server

SWITCH_INTERVAL = 0.000_1
"""Seconds after which the thread that writes the log yields to the event loop; Python's default is 5 ms."""


async def serve(
    config: Config, say: Callable[[str], None], reread: Callable[[], Config] | None = None
) -> None:
    """Run a broker until SIGTERM or SIGINT; call `say` with its listeners and when it is ready.

    At SIGHUP, `reread` returns the current settings.
    """
    raise_descriptor_limit()
    keep_pages_small()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        _on_signal(number, stopped.set)
    server: Server | None = None
    started = reload_wanted = False

    def hang_up() -> None:
        nonlocal reload_wanted
        if server is not None and started:
            server.reload()
        else:
            reload_wanted = True  # a reload during the start waits for its end

    _on_signal(signal.SIGHUP, hang_up)
    server = Server(config, reread)
    for line in server.found():
        say(line)
    starting = asyncio.create_task(server.start())
    if server.node is not None and not await _done_before(stopped, starting):
        return  # it was stopped while it waited for its cluster
    for listener in await starting:
        say(f"listening on {listener}")
    say("pyrite ready")
    notify(READY)
    started = True
    if reload_wanted:
        server.reload()
    server.memory.take_over()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        if server.node is not None and await _done_before(stopped, server.node.failed):
            server.node.raise_failure()
        await stopped.wait()
    finally:
        notify(STOPPING)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a stopping broker does not reload
        await server.stop()
        for number in (signal.SIGTERM, signal.SIGINT):  # stopped: ignore further signals
            signal.signal(number, signal.SIG_IGN)


async def _done_before(stopped: asyncio.Event, other: asyncio.Future[Any]) -> bool:
    """Return True when a future is done; if `stopped` is set before, cancel it and return False."""
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait((stopping, other), return_when=asyncio.FIRST_COMPLETED)
    if other.done():
        stopping.cancel()
        return True
    other.cancel()
    await asyncio.wait((other,))
    return False


def _on_signal(number: signal.Signals, call: Callable[[], object]) -> None:
    """Make the event loop call `call` at each signal `number`.

    `loop.add_signal_handler` will not do: removing its handler briefly restores the default action, and a
    SIGHUP would kill the process.
    """
    loop = asyncio.get_running_loop()

    def handle(*_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    signal.signal(number, handle)
