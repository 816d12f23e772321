"""Settings of the line protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class LineOptions:
    """The [line] table of pyrite.toml."""

    ping_interval: float = 10.0
    """Seconds between two Pings to every client."""
    missed_rounds: int = 3
    """Consecutive unanswered Pings after which a connection is closed; 0 to never close it."""
    udp_timeout: float = 10.0
    """Seconds of silence after which a client over UDP is forgotten."""
    max_session_expiry: int = 604_800
    """Maximum time in seconds for which a session outlives its connection."""
    watch: Callable[[str, str], object] | None = field(default=None, metadata={"internal": True})
    """Callback for TCP clients, called with an event and the client's address and port; not a setting.

    The events are `Connected`, `Disconnected`, and `Silent` for each unanswered Ping, which then is not
    logged.
    """
