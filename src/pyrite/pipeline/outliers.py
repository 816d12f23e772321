"""What stands out from the recent past of a device: values far from their median, and silence.

The past is remembered in the state of a Spark stream, so that every message is judged once.
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
"""The columns of an alert; `time` in microseconds. `id` is the same whenever the same message is judged."""
STATE = "memory string"
"""What is remembered of a device, as JSON."""

ENOUGH = 30
"""Values that must be known before the next is judged."""
CALM = 5
"""Values within half the threshold after which an outlier is over."""
SPREAD = 1.4826
"""The standard deviation of normal values, by their median absolute deviation."""
LEAST = 0.01
"""The standard deviation is taken to be at least this share of the median: a constant has none."""


class Verdict(NamedTuple):
    """What was expected, and how far from it a value is."""

    expected: float
    score: float


@dataclass
class Past:
    """The recent values of something, and whether the last ones were far from them."""

    recent: list[float] = field(default_factory=list)
    calm: int = CALM
    """Values in a row that were not far off."""

    def judge(self, value: float, window: int, threshold: float) -> Verdict | None:
        """Remember a value. Return a verdict if it is an outlier, and the first since all was calm."""
        verdict = None
        if len(self.recent) >= ENOUGH:
            middle = median(self.recent)
            spread = SPREAD * median(abs(each - middle) for each in self.recent)
            score = abs(value - middle) / max(spread, LEAST * abs(middle), 1e-9)
            if score > threshold:
                if self.calm >= CALM:
                    verdict = Verdict(middle, score)
                self.calm = 0
            elif score < threshold / 2:
                self.calm = min(self.calm + 1, CALM)
        self.recent.append(value)
        del self.recent[:-window]
        return verdict


@dataclass
class Memory:
    """What is remembered of a device."""

    numbers: dict[str, Past] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    """Seconds between its messages."""
    last: int = 0
    """When it measured last, in microseconds since 1970."""
    topic: str = ""
    offset: int = -1
    silent: bool = False
    """Whether it was told to be silent since."""

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Memory:
        """Read what `to_json` has written."""
        found: dict[str, Any] = json.loads(text)
        found["numbers"] = {name: Past(**past) for name, past in found["numbers"].items()}
        return cls(**found)

    def patience(self, silence: float) -> float | None:
        """Return the seconds after which it has fallen silent; None if too little is known."""
        return silence * median(self.gaps) if len(self.gaps) >= ENOUGH else None


@dataclass(frozen=True)
class Watch:
    """Watches devices, as Spark's applyInPandasWithState calls it."""

    numbers: Sequence[str]
    window: int
    threshold: float
    silence: float

    def __call__(
        self, key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Judge the new messages of a device, or that there are none."""
        (device,) = key
        memory = Memory.from_json(state.get[0]) if state.exists else Memory()
        if state.hasTimedOut:
            alerts = [self._silent(device, memory)]
        else:
            rows = pd.concat(list(frames)).sort_values(["micros", "offset"])
            alerts = [alert for row in rows.to_dict("records") for alert in self.judge(device, memory, row)]
        state.update((memory.to_json(),))
        patience = memory.patience(self.silence)
        if patience is not None and not memory.silent:
            # Spark knows milliseconds, and wants a time after the watermark.
            due = int(memory.last / 1e3 + patience * 1e3) + 1
            state.setTimeoutTimestamp(max(due, state.getCurrentWatermarkMs() + 1))
        if alerts:
            yield pd.DataFrame(alerts, columns=[column.split()[0] for column in ALERT.split(", ")])

    def judge(self, device: str, memory: Memory, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Judge a message, and remember it; return the alerts for it."""
        alerts = []
        time = row["micros"]
        if memory.offset >= 0 and time >= memory.last:
            patience = memory.patience(self.silence)
            gap = (time - memory.last) / 1e6
            if patience is not None and gap > patience and not memory.silent:
                alerts.append(self._silent(device, memory))
            memory.gaps.append(gap)
            del memory.gaps[: -self.window]
        for name in self.numbers:
            value = row[name]
            if value is None or pd.isna(value):
                continue
            verdict = memory.numbers.setdefault(name, Past()).judge(float(value), self.window, self.threshold)
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
        if time >= memory.last:
            memory.last, memory.topic, memory.offset = time, row["topic"], row["offset"]
            memory.silent = False
        return alerts

    def _silent(self, device: str, memory: Memory) -> dict[str, Any]:
        """Return the alert that a device has said nothing since its last message."""
        memory.silent = True
        usual = median(memory.gaps)
        return {
            "id": f"{device}:silence:{memory.offset}",
            "device": device,
            "topic": memory.topic,
            "kind": "silence",
            "field": "silence",
            "time": memory.last,
            "value": self.silence * usual,
            "expected": usual,
            "score": self.silence,
            "offset": memory.offset,
        }
