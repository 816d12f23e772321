"""Outliers and silences, judged without Spark."""

from __future__ import annotations

import random
from typing import Any

from pyrite.pipeline.outliers import CALM_VALUES, MIN_VALUES, DeviceHistory, FieldHistory, Watch

WATCH = Watch(("temperature",), window=60, threshold=8.0, silence=20.0)


def normal(count: int, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(20, 0.3) for _ in range(count)]


def judged(past: FieldHistory, values: list[float]) -> list[int]:
    return [at for at, value in enumerate(values) if past.judge(value, 60, 8.0) is not None]


def rows(values: list[float], start: int = 0, step: float = 1.0) -> list[dict[str, Any]]:
    """Return messages of a device, one per second."""
    return [
        {"micros": int((start + at) * step * 1e6), "offset": start + at, "topic": "t", "temperature": value}
        for at, value in enumerate(values)
    ]


def alerts_of(history: DeviceHistory, messages: list[dict[str, Any]]) -> list[tuple[str, int]]:
    found = [alert for row in messages for alert in WATCH.judge("d", history, row)]
    return [(alert["kind"], alert["offset"]) for alert in found]


def test_normal_values_are_not_outliers() -> None:
    assert judged(FieldHistory(), normal(5_000)) == []


def test_a_spike_is_one_alert_and_leaves_the_baseline_intact() -> None:
    values = normal(200)
    values[100] += 10
    values[150] -= 10
    assert judged(FieldHistory(), values) == [100, 150]


def test_a_lasting_deviation_is_one_alert_until_it_ends() -> None:
    values = normal(200)
    for at in range(100, 115):
        values[at] += (at - 99) * 0.7
    (found,) = judged(FieldHistory(), values)
    assert 100 <= found < 107


def test_a_value_oscillating_around_the_threshold_is_one_alert() -> None:
    values = normal(100) + [30.0, 20.0] * CALM_VALUES + normal(100, 2)
    assert judged(FieldHistory(), values) == [100]


def test_no_value_is_judged_before_the_baseline_has_formed() -> None:
    values = normal(MIN_VALUES)
    values[MIN_VALUES - 1] = 1e6
    assert judged(FieldHistory(), values) == []


def test_a_constant_that_varies_by_one_percent_is_not_an_outlier() -> None:
    assert judged(FieldHistory(), [100.0] * 50 + [101.0] + [100.0] * 50) == []


def test_a_growing_counter_is_not_an_outlier() -> None:
    assert judged(FieldHistory(), [float(number) for number in range(1_000)]) == []


def test_a_silence_is_one_alert_when_the_device_is_back() -> None:
    history = DeviceHistory()
    messages = rows(normal(100)) + rows(normal(100, 2), start=130)
    assert alerts_of(history, messages) == [("silence", 99)]


def test_a_silence_that_was_reported_is_not_reported_again() -> None:
    history = DeviceHistory()
    assert alerts_of(history, rows(normal(100))) == []
    assert WATCH._silent("d", history)["offset"] == 99
    assert alerts_of(history, rows(normal(100, 2), start=130)) == []
    assert alerts_of(history, rows(normal(10, 3), start=300)) == [("silence", 229)]


def test_the_history_survives_serialisation() -> None:
    values = normal(200)
    values[120] += 10
    messages = rows(values)
    history = DeviceHistory()
    found = alerts_of(history, messages[:110])
    found += alerts_of(DeviceHistory.from_json(history.to_json()), messages[110:])
    assert found == [("outlier", 120)]


def test_an_older_message_does_not_set_the_time_back() -> None:
    history = DeviceHistory()
    assert alerts_of(history, rows(normal(100))) == []
    late = {"micros": 0, "offset": 100, "topic": "t", "temperature": 20.0}
    assert alerts_of(history, [late, *rows(normal(5, 2), start=100)]) == []
    assert history.last == 104_000_000
