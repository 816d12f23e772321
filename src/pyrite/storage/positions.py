"""Positions in a stream, as users write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_OFFSET = re.compile(r"[0-9]+")
_AGO = re.compile(r"-((?:[0-9]+(?:\.[0-9]+)?[smhd])+)")
_PART = re.compile(r"([0-9.]+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_LARGEST = 2**63 - 1
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The oldest message that is kept."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the stream: after the newest message."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The message with this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Time:
    """The first message that came at this time or later."""

    microseconds: int
    """Since 1970."""

    def seconds(self, now: float) -> float:
        """Return the time in seconds since 1970."""
        return self.microseconds / 1e6


@dataclass(frozen=True, slots=True)
class Ago:
    """The first message that came this long ago or later."""

    microseconds: int

    def seconds(self, now: float) -> float:
        """Return the time in seconds since 1970."""
        return now - self.microseconds / 1e6


Position = Earliest | Latest | Offset | Time | Ago


def parse_position(text: str) -> Position:
    """Parse an offset, `earliest`, `latest` or `now`, a time ago, or a time, in UTC unless it has a time
    zone.

    Raise ValueError, which says what may be written.
    """
    word = text.strip()
    if word.lower() == "earliest":
        return Earliest()
    if word.lower() in ("latest", "now"):
        return Latest()
    if _OFFSET.fullmatch(word):
        digits = word.lstrip("0") or "0"
        if len(digits) > 19 or int(digits) > _LARGEST:
            raise ValueError(f"{_shown(text)} is too large for an offset: the largest is {_LARGEST}")
        return Offset(int(digits))
    ago = _AGO.fullmatch(word)
    if ago is not None:
        microseconds = sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(ago[1])) * 1e6
        if microseconds > _LARGEST:
            raise ValueError(f"{_shown(text)} is too long ago")
        return Ago(int(microseconds))
    try:
        time = datetime.fromisoformat(word)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return Time((time - _BEGINNING) // _MICROSECOND)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{_shown(text)} is not a position: expected an offset (4711), earliest, latest, "
            "a time ago (-90s, -15m, -1h, -7d) or a time (2026-11-15T20:06:24Z)"
        ) from None


def _shown(text: str) -> str:
    return repr(text if len(text) < 64 else text[:60] + "...")
