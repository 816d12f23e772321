"""Detects outliers in the recent values of a device, and devices that fall silent.

The recent values are state of a Spark stream, so that every message is judged once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql.streaming.state import GroupState

ALERT = (
    "id string, device string, topic string, kind string, field string, time bigint, value double, "
    "expected double, score double, offset bigint"
)
"""The columns of an alert; `time` is in microseconds. `id` is the same whenever the same message is
judged.
"""
STATE = "memory string"
"""The history of a device, as JSON."""

MIN_VALUES = 30
"""Values needed before the next one is judged."""
CALM_VALUES = 5
"""Values within half the threshold that end an outlier."""
MAD_TO_SIGMA = 1.4826
"""Factor from the median absolute deviation to the standard deviation of a normal distribution."""
MIN_RELATIVE_SPREAD = 0.01
"""Minimum standard deviation, as a share of the median: that of a constant would be zero."""


class Verdict(NamedTuple):
    """The expected value, and the distance from it in standard deviations."""

    expected: float
    score: float


@dataclass
class FieldHistory:
    """The recent values of a field, and whether the newest were outliers."""

    recent: list[float] = field(default_factory=list)
    calm: int = CALM_VALUES
    """Number of consecutive values that were no outliers."""

    def judge(self, value: float, window: int, threshold: float) -> Verdict | None:
        """Add a value; returns a verdict if it is the first outlier since values were normal."""
        verdict = None
        if len(self.recent) >= MIN_VALUES:
            middle = median(self.recent)
            spread = MAD_TO_SIGMA * median(abs(each - middle) for each in self.recent)
            score = abs(value - middle) / max(spread, MIN_RELATIVE_SPREAD * abs(middle), 1e-9)
            if score > threshold:
                if self.calm >= CALM_VALUES:
                    verdict = Verdict(middle, score)
                self.calm = 0
            elif score < threshold / 2:
                self.calm = min(self.calm + 1, CALM_VALUES)
        self.recent.append(value)
        del self.recent[:-window]
        return verdict


@dataclass
class DeviceHistory:
    """The history of a device."""

    numbers: dict[str, FieldHistory] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    """Seconds between its messages."""
    last: int = 0
    """Time of its last measurement, in microseconds since 1970."""
    topic: str = ""
    offset: int = -1
    silent: bool = False
    """True if its current silence was already reported."""

    def to_json(self) -> str:
        """Serialise to JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DeviceHistory:
        """Deserialise."""
        found: dict[str, Any] = json.loads(text)
        found["numbers"] = {name: FieldHistory(**past) for name, past in found["numbers"].items()}
        return cls(**found)

    def timeout(self, silence: float) -> float | None:
        """Return the seconds after which the device counts as silent; None if too few gaps are known."""
        return silence * median(self.gaps) if len(self.gaps) >= MIN_VALUES else None


@dataclass(frozen=True)
class Watch:
    """Judges devices, as a function for applyInPandasWithState."""

    numbers: Sequence[str]
    window: int
    threshold: float
    silence: float

    def __call__(
        self, key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Judge the new messages of a device, or its silence after a timeout."""
        (device,) = key
        history = DeviceHistory.from_json(state.get[0]) if state.exists else DeviceHistory()
        if state.hasTimedOut:
            alerts = [self._silent(device, history)]
        else:
            rows = pd.concat(list(frames)).sort_values(["micros", "offset"])
            alerts = [alert for row in rows.to_dict("records") for alert in self.judge(device, history, row)]
        state.update((history.to_json(),))
        timeout = history.timeout(self.silence)
        if timeout is not None and not history.silent:
            # Spark's timeouts are in milliseconds and must be after the watermark.
            due = int(history.last / 1e3 + timeout * 1e3) + 1
            state.setTimeoutTimestamp(max(due, state.getCurrentWatermarkMs() + 1))
        if alerts:
            yield pd.DataFrame(alerts, columns=[column.split()[0] for column in ALERT.split(", ")])

    def judge(self, device: str, history: DeviceHistory, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Judge a message and add it to the history; returns its alerts."""
        alerts = []
        time = row["micros"]
        if history.offset >= 0 and time >= history.last:
            timeout = history.timeout(self.silence)
            gap = (time - history.last) / 1e6
            if timeout is not None and gap > timeout and not history.silent:
                alerts.append(self._silent(device, history))
            history.gaps.append(gap)
            del history.gaps[: -self.window]
        for name in self.numbers:
            value = row[name]
            if value is None or pd.isna(value):
                continue
            verdict = history.numbers.setdefault(name, FieldHistory()).judge(
                float(value), self.window, self.threshold
            )
            if verdict is not None:
                alerts.append(
                    {
                        "id": f"{device}:{name}:{row['offset']}",
                        "device": device,
                        "topic": row["topic"],
                        "kind": "outlier",
                        "field": name,
                        "time": time,
                        "value": float(value),
                        "expected": verdict.expected,
                        "score": verdict.score,
                        "offset": row["offset"],
                    }
                )
        if time >= history.last:
            history.last, history.topic, history.offset = time, row["topic"], row["offset"]
            history.silent = False
        return alerts

    def _silent(self, device: str, history: DeviceHistory) -> dict[str, Any]:
        """Return an alert for a device that has been silent since its last message."""
        history.silent = True
        usual = median(history.gaps)
        return {
            "id": f"{device}:silence:{history.offset}",
            "device": device,
            "topic": history.topic,
            "kind": "silence",
            "field": "silence",
            "time": history.last,
            "value": self.silence * usual,
            "expected": usual,
            "score": self.silence,
            "offset": history.offset,
        }
