"""Settings of the line protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class LineOptions:
    """The [line] table."""

    ping_interval: float = 10.0
    """Seconds between two Pings to every client."""
    missed_rounds: int = 3
    """Pings in a row that a client may leave unanswered before it is closed; 0: any number."""
    udp_timeout: float = 10.0
    """Seconds that a client over UDP may be silent."""
    max_session_expiry: int = 604_800
    """The most seconds that a session may outlive its connection."""
    watch: Callable[[str, str], object] | None = field(default=None, metadata={"internal": True})
    """Called over TCP with an event and the client's address and port; not a setting.

    The events are `Connected`, `Disconnected`, and `Silent` for each unanswered Ping, which is then not
    logged.
    """
