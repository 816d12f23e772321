"""Metrics for `pyrite top`: values from $SYS, growth rates of counters, and Spark pipelines."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyrite.process.terminal import printable

PREFIX = "$SYS/broker/"
PIPELINES = "$pipelines/"
MAX_PIPELINES = 200
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
"""Counters whose growth per second is shown."""
HISTORY_LENGTH = 40
"""Samples of rates kept for sparklines."""
UPDATE_GAP = 0.05
"""Messages further apart than this many seconds belong to different updates of $SYS."""


class TopSample(NamedTuple):
    """The metrics at one moment."""

    metrics: dict[str, str]
    """By topic, without the prefix."""
    rates: dict[str, float]
    """Growth per second, by counter."""
    history: dict[str, Sequence[float]]
    """Recent rates, by counter."""
    pipelines: dict[str, dict[str, object]] = {}
    """The last status of each pipeline, by name."""

    def values(self) -> dict[str, int | float | str]:
        """Return the metrics, numeric ones as numbers."""
        return {name: _number(text) for name, text in sorted(self.metrics.items())}


class Sampler:
    """Collects metrics as they arrive. The broker publishes the changed ones together, once an interval."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        """Forget everything: the next connection may be to another broker."""
        self._figures: dict[str, str] = {}
        self._pipelines: dict[str, dict[str, object]] = {}
        self._last = self._updated = self._read = 0.0
        self._before: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._history: dict[str, deque[float]] = {}

    @property
    def count(self) -> int:
        return len(self._figures)

    def take(self, topic: str, payload: bytes, retained: bool) -> None:
        """Record a metric; one that was `retained` belongs to an earlier update."""
        now = self._clock()
        if not retained:
            if now - self._last > UPDATE_GAP:
                self._updated = now
            self._last = now
        name = printable(topic.removeprefix(PREFIX))
        if payload:
            self._figures[name] = printable(payload.decode("utf-8", "replace"))
        else:  # a named reader is forgotten
            self._figures.pop(name, None)

    def take_pipeline(self, topic: str, payload: bytes) -> None:
        """Record the status of a pipeline; a payload that is not a JSON object removes the pipeline."""
        name = printable(topic.removeprefix(PIPELINES))
        try:
            said = json.loads(payload)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            self._pipelines.pop(name, None)
        elif name in self._pipelines or len(self._pipelines) < MAX_PIPELINES:
            self._pipelines[name] = said

    def sample(self) -> TopSample:
        """Return the current metrics, with rates between the last two updates of the broker.

        Until there are two, rates are the broker's one-minute averages.
        """
        if self._updated != self._read:
            elapsed, self._read = self._updated - self._read, self._updated
            now = {name: float(_number(self._figures.get(name, "0")) or 0) for name in RATES}
            before, self._before = self._before, now
            if before:
                self._rates = {name: max(0.0, (now[name] - before[name]) / elapsed) for name in RATES}
                for name, rate in self._rates.items():
                    self._history.setdefault(name, deque(maxlen=HISTORY_LENGTH)).append(rate)
        rates = self._rates or self._averages()
        return TopSample(
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
