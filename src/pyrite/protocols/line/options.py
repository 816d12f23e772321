"""What can be set of the line protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class LineOptions:
    """The [line] table."""

    ping_interval: float = 10.0
    """Seconds between two rounds in which the server asks every client whether it is there."""
    missed_rounds: int = 3
    """Rounds in a row that a client may miss before it is closed and forgotten; 0: it is never closed."""
    udp_timeout: float = 10.0
    """Seconds for which a datagram from a client over UDP keeps it alive; it sends Ping every 10 s."""
    max_session_expiry: int = 604_800
    """The most seconds that a client's subscriptions may outlive its connection."""
    watch: Callable[[str, str], object] | None = field(default=None, metadata={"internal": True})
    """Called over TCP with an event and the client's address and port; not a setting.

    The events are `Connected`, `Disconnected`, and `Silent` for each round that the client missed; such a
    round is then not logged.
    """
