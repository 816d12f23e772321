"""The states of a connection.

WAITING --CONNECT--> [AUTHENTICATING --AUTH-->] CONNECTED --DISCONNECT, error, timeout--> CLOSED
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The states of a connection; each may also go straight to CLOSED."""

    WAITING = "waiting for CONNECT"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    CLOSED = "closed"


# Reading a member of an Enum takes an extra look-up; the hot path uses these names.
WAITING, AUTHENTICATING, CONNECTED, CLOSED = State
