"""Notifies systemd that the broker is ready or stopping (sd_notify)."""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state to the service manager, if there is one."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    if where.startswith("@"):  # an abstract socket
        where = "\0" + where[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
            notifier.settimeout(1.0)
            notifier.sendto(state.encode(), where)
    except OSError as error:
        logger.warning("cannot notify the service manager of %s: %s", state, error)
