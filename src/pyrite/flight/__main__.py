"""The Flight process: `python -m pyrite.flight DESCRIPTOR`, with the descriptor of a socket to the broker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from pyrite.flight.front import Front
from pyrite.ipc.client import BrokerClient
from pyrite.ipc.messages import Failed, FlightSettings, NewCertificates, RightsChanged
from pyrite.process.logs import parse_levels, start_logging
from pyrite.process.plain_arrow import keep_pandas_out

PATIENCE = 600.0
"""Seconds within which the broker must answer; a commit may wait for the disk."""


async def run(descriptor: int) -> int:
    """Serve until the broker has ended."""
    from pyrite.flight.service import Service
    from pyrite.process.memory import release_memory_after_bursts
    from pyrite.sinks.staging import Staging
    from pyrite.storage.bulk import LogFolder

    client, settings = await BrokerClient.open(descriptor, FlightSettings, PATIENCE)
    start_logging(parse_levels(settings.logging.levels), settings.logging.format)
    data = Path(settings.data)
    try:
        front = Front(settings, client)
        service = Service(LogFolder(data), Staging(data), client, front.location, front.peer)
        front.start()
    except Exception as error:  # gRPC raises various errors
        reason = getattr(error, "strerror", None) or str(error)
        await client.tell_last(Failed(" ".join(reason.split())))
        return 1

    def told(message: RightsChanged | NewCertificates) -> None:
        if isinstance(message, RightsChanged):
            service.rights_changed()
        else:
            front.renew(message)

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    release_memory_after_bursts()
    await asyncio.wait(
        [asyncio.create_task(client.run(told)), asyncio.create_task(stopped.wait())],
        return_when=asyncio.FIRST_COMPLETED,
    )
    front.close()
    # Flight would wait for open calls, whose clients are disconnected.
    os._exit(0)


def main(descriptor: int) -> int:
    # As in the HTTP process: Arrow's own allocator never returns the memory of other threads.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    keep_pandas_out()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # left to the broker, which ends this process
    return uvloop.run(run(descriptor))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
