"""The process that keeps the tables: `python -m pyrite.tables DESCRIPTOR`, with a socket to the broker.

It is a process, not a thread of the broker: a commit is 30 ms and more of Python, during which the event loop
would wait for the interpreter's lock, and pyiceberg takes 160 MB.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from pyrite.ipc.client import BrokerClient
from pyrite.ipc.problem import Problem
from pyrite.ipc.tables import ReportTable, TablesSettings
from pyrite.process.logs import parse_levels, start_logging

PATIENCE = 60.0
"""Seconds within which the broker must answer."""
NICENESS = 10
"""The log and its readers come first."""


async def run(descriptor: int) -> int:
    """Keep the tables until the broker has ended."""
    client, settings = await BrokerClient.open(descriptor, TablesSettings, PATIENCE)
    start_logging(parse_levels(settings.logging.levels), settings.logging.format)
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)
    stopped = threading.Event()

    def report(table: ReportTable) -> None:
        try:
            client.ask_from_thread(table)
        except Problem:
            pass  # the broker has ended

    def keep() -> None:
        from pyrite.tables.keeper import Keeper  # slow to load

        try:
            Keeper(Path(settings.data), settings.location, settings.keep, report).run(stopped)
        finally:
            os._exit(1)  # the broker starts another process

    threading.Thread(target=keep, name="tables", daemon=True).start()
    await client.run(lambda _: None)
    # A commit that is interrupted is repeated at the next start.
    os._exit(0)


def main(descriptor: int) -> int:
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # left to the broker, which ends this process
    return asyncio.run(run(descriptor))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
