"""The states of a connection.

WAITING --CONNECT--> [AUTHENTICATING --AUTH-->] CONNECTED --DISCONNECT, error, timeout--> CLOSED
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Every state may also change to CLOSED directly."""

    WAITING = "waiting for CONNECT"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    CLOSED = "closed"


# Enum attribute access costs an extra look-up, so the hot path uses module-level names.
WAITING, AUTHENTICATING, CONNECTED, CLOSED = State
