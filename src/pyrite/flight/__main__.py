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
from pyrite.ipc.messages import Failed, FlightSettings, NewCertificates, Ready, RightsChanged
from pyrite.process.logs import parse_levels, start_logging
from pyrite.process.plain_arrow import keep_pandas_out

PATIENCE = 600.0
"""Seconds in which the broker must answer: a commit may have to wait for the disk."""


async def run(descriptor: int) -> int:
    """Serve until the broker has ended."""
    from pyrite.flight.service import Service
    from pyrite.process.memory import give_back_after_rushes
    from pyrite.sinks.staging import Staging
    from pyrite.storage.bulk import LogFolder

    client, settings = await BrokerClient.open(descriptor, FlightSettings, PATIENCE)
    start_logging(parse_levels(settings.logging.levels), settings.logging.format)
    data = Path(settings.data)
    try:
        front = Front(settings, client)
        service = Service(LogFolder(data), Staging(data), client, front.location, front.peer)
        port = front.start()
    except Exception as error:  # whatever gRPC says about a port
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
    client.tell(Ready(port))
    give_back_after_rushes()
    await asyncio.wait(
        [asyncio.create_task(client.run(told)), asyncio.create_task(stopped.wait())],
        return_when=asyncio.FIRST_COMPLETED,
    )
    front.close()
    # Flight would wait for calls that are under way, and nobody is left to answer to.
    os._exit(0)


def main(descriptor: int) -> int:
    """Serve until the broker has ended."""
    # As in the HTTP process: Arrow's own allocator never returns what its other threads had.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    keep_pandas_out()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this
    return uvloop.run(run(descriptor))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
