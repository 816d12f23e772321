"""What stands out, and what does not, judged without Spark."""

from __future__ import annotations

import random
from typing import Any

from pyrite.pipeline.outliers import CALM, ENOUGH, Memory, Past, Watch

WATCH = Watch(("temperature",), window=60, threshold=8.0, silence=20.0)


def normal(count: int, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(20, 0.3) for _ in range(count)]


def judged(past: Past, values: list[float]) -> list[int]:
    return [at for at, value in enumerate(values) if past.judge(value, 60, 8.0) is not None]


def rows(values: list[float], start: int = 0, step: float = 1.0) -> list[dict[str, Any]]:
    """Return messages of a device, one a second."""
    return [
        {"micros": int((start + at) * step * 1e6), "offset": start + at, "topic": "t", "temperature": value}
        for at, value in enumerate(values)
    ]


def alerts_of(memory: Memory, messages: list[dict[str, Any]]) -> list[tuple[str, int]]:
    found = [alert for row in messages for alert in WATCH.judge("d", memory, row)]
    return [(alert["kind"], alert["offset"]) for alert in found]


def test_normal_values_are_no_outliers() -> None:
    assert judged(Past(), normal(5_000)) == []


def test_a_spike_is_one_alert_and_does_not_spoil_the_baseline() -> None:
    values = normal(200)
    values[100] += 10
    values[150] -= 10
    assert judged(Past(), values) == [100, 150]


def test_what_stays_far_off_is_one_alert_until_it_has_come_back() -> None:
    values = normal(200)
    for at in range(100, 115):
        values[at] += (at - 99) * 0.7
    (found,) = judged(Past(), values)
    assert 100 <= found < 107


def test_a_value_that_flickers_around_the_threshold_is_one_alert() -> None:
    values = normal(100) + [30.0, 20.0] * CALM + normal(100, 2)
    assert judged(Past(), values) == [100]


def test_nothing_is_judged_before_enough_is_known() -> None:
    values = normal(ENOUGH)
    values[ENOUGH - 1] = 1e6
    assert judged(Past(), values) == []


def test_a_constant_that_wavers_by_a_hundredth_is_no_outlier() -> None:
    assert judged(Past(), [100.0] * 50 + [101.0] + [100.0] * 50) == []


def test_a_count_that_grows_is_no_outlier() -> None:
    assert judged(Past(), [float(number) for number in range(1_000)]) == []


def test_a_gap_is_told_once_when_the_device_is_back() -> None:
    memory = Memory()
    messages = rows(normal(100)) + rows(normal(100, 2), start=130)
    assert alerts_of(memory, messages) == [("silence", 99)]


def test_a_gap_that_was_told_already_is_not_told_again() -> None:
    memory = Memory()
    assert alerts_of(memory, rows(normal(100))) == []
    assert WATCH._silent("d", memory)["offset"] == 99
    assert alerts_of(memory, rows(normal(100, 2), start=130)) == []
    assert alerts_of(memory, rows(normal(10, 3), start=300)) == [("silence", 229)]


def test_what_is_remembered_outlasts_a_run() -> None:
    values = normal(200)
    values[120] += 10
    messages = rows(values)
    memory = Memory()
    found = alerts_of(memory, messages[:110])
    found += alerts_of(Memory.from_json(memory.to_json()), messages[110:])
    assert found == [("outlier", 120)]


def test_an_older_message_does_not_turn_the_clock_back() -> None:
    memory = Memory()
    assert alerts_of(memory, rows(normal(100))) == []
    late = {"micros": 0, "offset": 100, "topic": "t", "temperature": 20.0}
    assert alerts_of(memory, [late, *rows(normal(5, 2), start=100)]) == []
    assert memory.last == 104_000_000
