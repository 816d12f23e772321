"""Unusual numbers, judged without Spark: series with and without faults."""

from __future__ import annotations

import msgspec
import pytest

from pyrite.pipeline.alert_settings import AlertSettings
from pyrite.pipeline.history import Distances, FieldHistory
from tests.pipeline import series
from tests.pipeline.series import CLEAN, FAULTY, STEP, Series

SETTINGS = AlertSettings()
REARM = SETTINGS.rearm_gaps * STEP
NEAR = 40
"""A fault is found within this many values, which is the time until the field is armed again."""


def judged(given: Series, settings: AlertSettings = SETTINGS) -> list[int]:
    history = FieldHistory()
    pairs = enumerate(zip(given.times, given.values, strict=True))
    return [at for at, (time, value) in pairs if history.judge(time, value, REARM, settings) is not None]


@pytest.mark.parametrize("name", CLEAN)
def test_a_series_without_faults_has_no_alerts(name: str) -> None:
    assert judged(CLEAN[name]()) == []


@pytest.mark.parametrize("name", FAULTY)
def test_each_fault_is_one_alert_and_nothing_else_is(name: str) -> None:
    given = FAULTY[name]()
    found = judged(given)
    assert len(found) == len(given.faults), found
    assert all(0 <= at - fault < NEAR for at, fault in zip(found, given.faults, strict=True)), found


@pytest.mark.parametrize(("step", "first"), [(STEP, 576), (STEP / 300, 600), (STEP * 300, 60)])
def test_a_field_is_judged_after_600_values_or_two_days(step: float, first: int) -> None:
    """Two days are 576 values of one in five minutes; 60 values are always needed."""
    for at in (first - 1, first):
        made = series.noisy()
        made.values[at] += 30
        made.times = [number * step for number in range(len(made.times))]
        assert (at in judged(made)) == (at == first)


def test_a_field_is_armed_again_by_time() -> None:
    made = series.noisy()
    for at in range(1000, 1200, 10):
        made.values[at] += 30
    assert judged(made) == [1000], "every unusual value keeps it from being armed"
    made.values[1000 + 250] += 100
    assert judged(made) == [1000, 1250]


def test_a_field_that_often_jumps_must_jump_farther() -> None:
    """Within an hour, so that no time of day recurs."""
    made = series.noisy()
    made.times = [float(number) for number in range(len(made.times))]
    for at in range(50, len(made.values), 97):
        made.values[at] += 300
    assert judged(made) == []
    made.values[3000] += 600
    assert judged(made) == [3000]


def test_the_history_survives_serialisation() -> None:
    made = FAULTY["spiking"]()
    history = FieldHistory()
    found = []
    for at, (time, value) in enumerate(zip(made.times, made.values, strict=True)):
        if history.judge(time, value, REARM, SETTINGS) is not None:
            found.append(at)
        if at % 500 == 0:
            history = msgspec.msgpack.decode(msgspec.msgpack.encode(history), type=FieldHistory)
    assert found == made.faults


def test_the_memory_of_a_field_is_bounded() -> None:
    history = FieldHistory()
    made = CLEAN["weekly"]()
    for time, value in zip(made.times, made.values, strict=True):
        history.judge(time, value, REARM, SETTINGS)
    assert len(msgspec.msgpack.encode(history)) < 16_000


def test_quantiles_are_exact_to_ten_percent() -> None:
    distances = Distances()
    for number in range(1, 1001):
        distances.add(float(number), 2000)
    high, middle = distances.quantiles(0.99, 0.5)
    assert high == pytest.approx(990, rel=0.1)
    assert middle == pytest.approx(500, rel=0.1)
    assert Distances().quantiles(0.5) == [0.0]
