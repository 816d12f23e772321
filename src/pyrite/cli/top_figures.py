"""The figures of `pyrite top`: what came under $SYS, how fast counters grow, and Spark pipelines."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyrite.process.terminal import printable

PREFIX = "$SYS/broker/"
PIPELINES = "$pipelines/"
MOST_PIPELINES = 200
RATES = (
    "publish/messages/received",
    "publish/messages/sent",
    "publish/messages/dropped",
    "publish/bytes/received",
    "publish/bytes/sent",
    "bytes/received",
    "bytes/sent",
    "log/messages/written",
    "log/bytes/written",
    "log/commits/count",
)
"""Counters whose growth in a second is told."""
REMEMBERED = 40
"""Readings of which rates are remembered, for sparklines."""
PAUSE = 0.05
"""Seconds between two figures that do not belong to the same update of the broker's."""


class Reading(NamedTuple):
    """The figures at one moment."""

    figures: dict[str, str]
    """By topic, without its prefix."""
    rates: dict[str, float]
    """Growth of counters, a second."""
    history: dict[str, Sequence[float]]
    """The last rates of each."""
    pipelines: dict[str, dict[str, object]] = {}
    """What each pipeline said of itself last, by name."""

    def values(self) -> dict[str, int | float | str]:
        """Return the figures, those that are numbers as numbers."""
        return {name: _number(text) for name, text in sorted(self.figures.items())}


class Readings:
    """Takes figures as they come; the broker sends only those that have changed, all at one time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        """Forget everything: another broker may come."""
        self._figures: dict[str, str] = {}
        self._pipelines: dict[str, dict[str, object]] = {}
        self._last = self._updated = self._read = 0.0
        self._before: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._history: dict[str, deque[float]] = {}

    @property
    def count(self) -> int:
        """How many figures there are."""
        return len(self._figures)

    def take(self, topic: str, payload: bytes, retained: bool) -> None:
        """Note a figure that came; one that was `retained` is from an update at some time before."""
        now = self._clock()
        if not retained:
            if now - self._last > PAUSE:
                self._updated = now
            self._last = now
        self._figures[printable(topic.removeprefix(PREFIX))] = printable(payload.decode("utf-8", "replace"))

    def take_pipeline(self, topic: str, payload: bytes) -> None:
        """Note what a pipeline says of itself; what is no object in JSON takes it away."""
        name = printable(topic.removeprefix(PIPELINES))
        try:
            said = json.loads(payload)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            self._pipelines.pop(name, None)
        elif name in self._pipelines or len(self._pipelines) < MOST_PIPELINES:
            self._pipelines[name] = said

    def reading(self) -> Reading:
        """Return the figures of now; rates are those between this update of the broker's and the one before.

        Before there are two of them, rates are the averages of the last minute, as the broker tells them.
        """
        if self._updated != self._read:
            elapsed, self._read = self._updated - self._read, self._updated
            now = {name: float(_number(self._figures.get(name, "0")) or 0) for name in RATES}
            before, self._before = self._before, now
            if before:
                self._rates = {name: max(0.0, (now[name] - before[name]) / elapsed) for name in RATES}
                for name, rate in self._rates.items():
                    self._history.setdefault(name, deque(maxlen=REMEMBERED)).append(rate)
        rates = self._rates or self._averages()
        return Reading(
            dict(self._figures),
            {name: round(rate, 2) for name, rate in rates.items() if name in self._figures},
            {name: tuple(values) for name, values in self._history.items()},
            dict(sorted(self._pipelines.items())),
        )

    def _averages(self) -> dict[str, float]:
        found = {}
        for name in RATES:
            load = name.replace("publish/messages/", "publish/")
            text = self._figures.get(f"load/{load}/1min")
            if text is not None:
                found[name] = float(_number(text)) / 60
        return found


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text.removesuffix(" seconds"))
        except ValueError:
            pass
    return text
