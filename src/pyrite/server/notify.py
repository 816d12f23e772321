"""What systemd is told of a broker that it has started (sd_notify): that it is ready, and that it stops."""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Tell the service manager, if there is one that wants to know."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    if where.startswith("@"):  # a name that is in no file system
        where = "\0" + where[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as teller:
            teller.settimeout(1.0)
            teller.sendto(state.encode(), where)
    except OSError as error:
        logger.warning("the service manager could not be told %s: %s", state, error)
