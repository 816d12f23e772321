"""The Flight process: `python -m pyrite.flight DESCRIPTOR`, with the descriptor of a socket to the broker."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import uvloop

from pyrite.flight.control import BrokerGone, Control
from pyrite.flight.front import Front
from pyrite.process.logs import parse_levels, start_logging
from pyrite.process.plain_arrow import keep_pandas_out


def main(descriptor: int) -> int:
    """Serve until the broker is gone."""
    # As in the HTTP process: Arrow's own allocator keeps what its other threads had.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    keep_pandas_out()
    from pyrite.flight.service import Service
    from pyrite.process.memory import give_back_after_rushes
    from pyrite.sinks.staging import Staging
    from pyrite.storage.bulk import LogFolder

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this
    control = Control(socket.socket(fileno=descriptor))
    settings = control.settings()
    start_logging(parse_levels(settings["logging"]["levels"]), settings["logging"]["format"])
    data = Path(settings["data"])
    try:
        log, staging = LogFolder(data), Staging(data)
        front = Front(settings, control)
        service = Service(log, staging, control, front.location, front.peer)
    except Exception as error:  # whatever gRPC says of a port
        control.say(failed=" ".join((getattr(error, "strerror", None) or str(error)).split()))
        return 1
    give_back_after_rushes()
    try:
        uvloop.run(front.run(service))
    except BrokerGone:
        pass
    # Calls that are under way would have Flight wait for them; and no one is left to answer to.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
