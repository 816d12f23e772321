"""The durable state of a sink: its owner, its last batch, and the commit that is under way."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class PendingCommit:
    """A commit that began and is not finished."""

    batch: int
    parts: list[str]
    since: dict[str, int]
    """The next offset of each stream when the commit began, by name of the stream."""


@dataclass
class SinkState:
    """The state of one sink."""

    name: str
    batch: int = -1
    """The last committed batch."""
    used: float = 0.0
    """Time of the last commit or, before the first, of the last staged part, in seconds since 1970."""
    pending: PendingCommit | None = None
    owner: str | None = None
    """The first user who committed ("" without a user name); None before that, or without access rules."""
    staged: dict[str, str] = field(default_factory=dict)
    """Before the first commit: the user who staged each part. Each user may commit only their own parts."""

    def dump(self) -> dict[str, Any]:
        """Return the state as values that JSON can represent."""
        return {
            "batch": self.batch,
            "used": self.used,
            "pending": self.pending and asdict(self.pending),
            "owner": self.owner,
            "staged": self.staged,
        }

    @classmethod
    def load(cls, name: str, kept: dict[str, Any]) -> SinkState:
        """Return the state that `dump` returned as `kept`."""
        pending = kept["pending"]
        return cls(
            name,
            kept["batch"],
            kept["used"],
            PendingCommit(**pending) if pending else None,
            kept.get("owner"),
            kept.get("staged", {}),
        )
