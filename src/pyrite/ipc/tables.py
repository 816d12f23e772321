"""The settings and the requests of the process that keeps the tables."""

from __future__ import annotations

from msgspec import Struct

from pyrite.ipc.messages import LogIn, LogSettings, Request


class TablesSettings(Struct):
    """The settings of the process: the first message it receives."""

    data: str
    location: str
    keep: dict[str, float]
    """By stream, the seconds for which snapshots of its table are kept."""
    logging: LogSettings


class ReportTable(Request[None]):
    """What a table holds, after a commit."""

    log_in = LogIn.NONE
    name: str
    rows: int
    files: int
    snapshots: int
    end: int
    """The offset after its last message."""
    seconds: float
    """CPU seconds of the commit."""
