"""Judges devices: unusual numbers, silences, and messages that are too late.

A device's past is state of a Spark stream, so that every message is judged once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
from pyspark.sql.streaming.state import GroupState

from pyrite.pipeline.alert_settings import AlertSettings
from pyrite.pipeline.history import DAY, FieldHistory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ALERT = (
    "id string, device string, topic string, kind string, field string, time bigint, arrived bigint, "
    "value double, expected double, score double, offset bigint"
)
"""The columns of an alert; `time` and `arrived` are in microseconds. `id` is the same whenever the same
message is judged.
"""
STATE = "memory binary"
"""The history of a device, as MessagePack."""
KNOWN_GAPS = 60
"""Gaps from which the usual gap of a device is estimated."""
HOUR = 3_600_000_000
"""In microseconds, as times of messages are."""
SUMMARY, LATE, SILENCE = "summary", "late", "silence"


class DeviceHistory(msgspec.Struct):
    """The past of a device. Times are in microseconds."""

    numbers: dict[str, FieldHistory] = {}
    gaps: list[float] = []
    """Seconds between its last messages, without those within bursts."""
    longest: float = 0.0
    """The longest gap in seconds, fading by the day."""
    messages: int = 0
    first: int = 0
    last: int = 0
    """Time of its newest measurement."""
    arrived: int = 0
    """When the broker received its last message."""
    topic: str = ""
    offset: int = -1
    silent: bool = False
    """True if its current silence was already reported."""
    due: int = 0
    """When it counts as silent, by the clock of all devices; 0 if never."""
    hour: int = 0
    """Start of the hour in which alerts are counted."""
    alerts: int = 0
    """Alerts in this hour."""
    withheld: int = 0
    """Those that became part of the hour's summary."""

    def usual_gap(self, settings: AlertSettings) -> float:
        """Return the usual seconds between messages or bursts; 0 if too few are known."""
        return median(self.gaps) if len(self.gaps) >= settings.min_gaps else 0.0

    def patience(self, settings: AlertSettings) -> float | None:
        """Return the seconds after which the device counts as silent; None if too little is known."""
        if self.messages <= settings.min_gaps:
            return None
        known = (self.last - self.first) / 1e6
        if len(self.gaps) < settings.min_gaps and known < settings.learn_silence_seconds:
            return None
        least = max(settings.recurring * self.longest, settings.silence_seconds)
        if len(self.gaps) < settings.min_gaps:
            return least
        long = sorted(self.gaps)[int(0.95 * (len(self.gaps) - 1))]
        return max(settings.silence * self.usual_gap(settings), settings.silence_of_long_gaps * long, least)

    def hear(self, row: dict[str, Any], settings: AlertSettings) -> None:
        """Record that a message came, and the gap before it."""
        if self.messages == 0:
            self.first = row["micros"]
        else:
            gap = self.gap(row)
            self.longest = max(self.longest * settings.fade ** (gap / DAY), gap)
            if gap >= settings.burst_seconds:
                self.gaps.append(gap)
                del self.gaps[:-KNOWN_GAPS]
        self.messages += 1
        self.arrived = max(self.arrived, row["arrived"])
        if row["micros"] >= self.last:
            self.last, self.topic, self.offset = row["micros"], row["topic"], row["offset"]
        self.silent = False

    def gap(self, row: dict[str, Any]) -> float:
        """Return the seconds before a message: by the device's clock or the broker's, whichever is longer.

        A device that sends what it buffered has measured without a gap, but was not heard.
        """
        micros: int = max(row["micros"] - self.last, row["arrived"] - self.arrived, 0)
        return micros / 1e6


@dataclass(frozen=True)
class Watch:
    """Judges devices, as a function for applyInPandasWithState."""

    numbers: Sequence[str]
    settings: AlertSettings

    def __call__(
        self, key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Judge the new messages of a device, or its silence after a timeout."""
        (device,) = key
        history = _DECODER.decode(state.get[0]) if state.exists else DeviceHistory()
        clock = state.getCurrentWatermarkMs() * 1000
        if state.hasTimedOut:
            alerts = self.wake(device, history, clock)
        else:
            rows = pd.concat(list(frames)).sort_values("offset").to_dict("records")
            alerts = self.judge(device, history, rows, clock)
        state.update((_ENCODER.encode(history),))
        due = self.due(history)
        if due:
            # Spark's timeouts are in milliseconds and must be after the watermark.
            state.setTimeoutTimestamp(max(due, clock) // 1000 + 1)
        if alerts:
            yield pd.DataFrame(alerts, columns=[column.split()[0] for column in ALERT.split(", ")])

    def judge(
        self, device: str, history: DeviceHistory, rows: Iterable[dict[str, Any]], clock: int = 0
    ) -> list[dict[str, Any]]:
        """Judge messages in the order of the log and add them to the history; returns alerts.

        `clock` is the newest time of all devices.
        """
        alerts: list[dict[str, Any]] = []
        late: list[dict[str, Any]] = []
        for row in rows:
            if row["micros"] < history.last - self.settings.late_seconds * 1e6:
                late.append(row)
                continue
            alerts += self._summary(device, history, row["micros"])
            patience = history.patience(self.settings)
            if patience is not None and history.gap(row) > patience and not history.silent:
                alerts += self._limited(history, self._silence(device, history, patience))
            history.hear(row, self.settings)
            alerts += self._numbers(device, history, row)
        if late:
            alerts.append(_alert(device, LATE, LATE, late[0], len(late), history.last / 1e6, 0.0))
        patience = history.patience(self.settings)
        heard = max(history.last, clock)
        history.due = 0 if patience is None else heard + int((patience + self.settings.late_seconds) * 1e6)
        return alerts

    def wake(self, device: str, history: DeviceHistory, clock: int) -> list[dict[str, Any]]:
        """Return the alerts that are due although no message came: a silence, a summary."""
        alerts = self._summary(device, history, clock)
        patience = history.patience(self.settings)
        if history.due and clock >= history.due and not history.silent and patience is not None:
            alerts += self._limited(history, self._silence(device, history, patience))
            history.silent = True
        return alerts

    def due(self, history: DeviceHistory) -> int:
        """Return the time at which to wake up, or 0 for never."""
        times = [history.due] if history.due and not history.silent else []
        times += [history.hour + HOUR] if history.withheld else []
        return min(times, default=0)

    def _numbers(self, device: str, history: DeviceHistory, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Judge the numbers of a message."""
        alerts: list[dict[str, Any]] = []
        rearm = max(self.settings.rearm_gaps * history.usual_gap(self.settings), self.settings.rearm_seconds)
        for name in self.numbers:
            value = row[name]
            if value is None or not math.isfinite(value):
                continue
            past = history.numbers.setdefault(name, FieldHistory())
            found = past.judge(row["micros"] / 1e6, float(value), rearm, self.settings)
            if found is not None:
                alert = _alert(device, found.kind, name, row, float(value), found.expected, found.score)
                alerts += self._limited(history, alert)
        return alerts

    def _silence(self, device: str, history: DeviceHistory, patience: float) -> dict[str, Any]:
        """Return an alert for a device that has been silent since its last message."""
        usual = history.usual_gap(self.settings)
        score = patience / usual if usual else 0.0
        last = {
            "topic": history.topic,
            "micros": history.last,
            "arrived": history.arrived,
            "offset": history.offset,
        }
        return _alert(device, SILENCE, SILENCE, last, patience, usual, score)

    def _limited(self, history: DeviceHistory, alert: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the alert, or nothing if the device has had too many in this hour."""
        if alert["time"] >= history.hour + HOUR:
            history.hour, history.alerts = alert["time"], 0
        history.alerts += 1
        if history.alerts <= self.settings.max_alerts:
            return [alert]
        history.withheld += 1
        return []

    def _summary(self, device: str, history: DeviceHistory, time: int) -> list[dict[str, Any]]:
        """Return a summary of the alerts withheld in the last hour, once it is over."""
        if not history.withheld or time < history.hour + HOUR:
            return []
        end = {
            "topic": history.topic,
            "micros": history.hour + HOUR,
            "arrived": history.arrived,
            "offset": history.hour,
        }
        alert = _alert(device, SUMMARY, SUMMARY, end, history.withheld, self.settings.max_alerts, 0.0)
        history.withheld = 0
        return [alert | {"offset": history.offset}]


def _alert(
    device: str, kind: str, field: str, row: dict[str, Any], value: float, expected: float, score: float
) -> dict[str, Any]:
    return {
        "id": f"{device}:{field}:{row['offset']}",
        "device": device,
        "topic": row["topic"],
        "kind": kind,
        "field": field,
        "time": row["micros"],
        "arrived": row["arrived"],
        "value": float(value),
        "expected": float(expected),
        "score": score,
        "offset": row["offset"],
    }


def judge_messages(decoded: DataFrame, numbers: Sequence[str], settings: AlertSettings) -> DataFrame:
    """Return the alerts of a stream of decoded messages, and how many of them were too late."""
    from pyspark.sql import functions as F

    # Spark drops rows that are behind its watermark, which all devices advance together. A hundred years on
    # the clock and the same delay make a watermark that is the newest time, as silences need it, and behind
    # which no row can be.
    clock = F.greatest("event_time", F.timestamp_seconds(F.lit(0))) + F.expr(f"INTERVAL {_AGES}")
    micros = [
        F.unix_micros(time).alias(name) for time, name in (("event_time", "micros"), ("timestamp", "arrived"))
    ]
    values = [F.col(f"fields.{name}").cast("double").alias(name) for name in numbers]
    return (
        decoded.select("device", "topic", "offset", clock.alias("clock"), *micros, *values)
        .withWatermark("clock", _AGES)
        .groupBy("device")
        .applyInPandasWithState(Watch(numbers, settings), ALERT, STATE, "append", "EventTimeTimeout")
        .withColumn("time", F.timestamp_micros("time"))
        .withColumn("arrived", F.timestamp_micros("arrived"))
    )


_AGES = "36500 days"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(DeviceHistory)
