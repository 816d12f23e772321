"""What can be set of the line protocol."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LineOptions:
    """The [line] table."""

    ping_interval: float = 10.0
    """Seconds between two rounds in which the server asks every client whether it is there."""
    missed_rounds: int = 3
    """Rounds in a row that a client may miss before it is closed and forgotten."""
    udp_timeout: float = 15.0
    """Seconds of silence after which a client over UDP is forgotten; it sends Ping every 10 s."""
    max_session_expiry: int = 604_800
    """The most seconds that a client's subscriptions may outlive its connection."""
