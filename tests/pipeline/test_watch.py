"""Devices, judged without Spark: silences, late messages, and the limit of alerts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from pyrite.pipeline.alert_settings import AlertSettings, read_settings
from pyrite.pipeline.errors import PipelineError
from pyrite.pipeline.project import Project
from pyrite.pipeline.tune import alerts_of_series
from pyrite.pipeline.watch import DeviceHistory, Watch

SETTINGS = AlertSettings()
WATCH = Watch(("temperature",), SETTINGS)


def row(time: float, offset: int, value: float | None = 20.0, arrived: float | None = None) -> dict[str, Any]:
    """Return a message, with times in seconds."""
    came = time if arrived is None else arrived
    return {
        "micros": int(time * 1e6),
        "arrived": int(came * 1e6),
        "offset": offset,
        "topic": "t",
        "temperature": value,
    }


def rows(times: Iterable[float], first: int = 0) -> list[dict[str, Any]]:
    return [row(time, first + at) for at, time in enumerate(times)]


def judged(history: DeviceHistory, messages: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(alert["kind"], alert["offset"]) for alert in WATCH.judge("d", history, messages)]


def regular(count: int, step: float = 10.0) -> list[float]:
    return [at * step for at in range(count)]


def test_a_device_that_sends_nothing_for_twenty_times_its_gap_is_silent() -> None:
    history = DeviceHistory()
    assert judged(history, rows(regular(100))) == []
    assert judged(history, [row(990 + 199, 100)]) == []
    assert judged(history, [row(990 + 199 + 400, 101)]) == [("silence", 100)]


def test_a_silence_is_found_when_the_clock_of_other_devices_has_passed_it() -> None:
    history = DeviceHistory()
    WATCH.judge("d", history, rows(regular(100)), clock=990_000_000)
    assert WATCH.due(history) == (990 + 200 + 60) * 1_000_000
    assert WATCH.wake("d", history, 1_249_000_000) == []
    (alert,) = WATCH.wake("d", history, 1_250_000_000)
    assert (alert["id"], alert["value"], alert["expected"]) == ("d:silence:99", 200.0, 10.0)
    assert WATCH.due(history) == 0
    assert judged(history, rows([5000.0], first=100)) == [], "it was reported already"


def test_a_silence_has_the_same_alert_whether_found_by_the_clock_or_by_the_next_message() -> None:
    by_clock, by_message = DeviceHistory(), DeviceHistory()
    for history in (by_clock, by_message):
        WATCH.judge("d", history, rows(regular(100)))
    assert WATCH.wake("d", by_clock, 10**10) == WATCH.judge("d", by_message, [row(5000, 100)])


def test_bursts_are_not_silences() -> None:
    """A device that sends 100 messages at once, every ten minutes or so."""
    chance = random.Random(1)
    times: list[float] = []
    for burst in range(200):
        start = burst * 600 + chance.uniform(0, 240)
        times += [start + number * 0.001 for number in range(100)]
    assert judged(DeviceHistory(), rows(times)) == []
    assert judged(DeviceHistory(), [*rows(times), row(times[-1] + 15_000, 30_000)]) == [("silence", 19_999)]


def test_a_device_that_sends_many_messages_a_second_is_silent_after_a_minute() -> None:
    history = DeviceHistory()
    assert judged(history, rows(regular(40_000, 0.1))) == []
    assert judged(history, [row(4059, 40_000)]) == []
    assert judged(history, [row(4059 + 100, 40_001)]) == [("silence", 40_000)]


def test_a_pause_at_every_night_is_reported_once() -> None:
    times = [
        day * 86_400 + hour * 3600 + minute * 60
        for day in range(9)
        for hour in range(12)
        for minute in range(60)
    ]
    assert judged(DeviceHistory(), rows(times)) == [("silence", 719)]


def test_a_device_that_was_offline_for_a_day_is_judged_when_it_sends_its_buffer() -> None:
    made = rows(regular(2000))
    made[1500]["temperature"] = 90.0
    for late in made[1000:]:
        late["arrived"] = int((20_000 + 86_400) * 1e6)
    assert judged(DeviceHistory(), made) == [("silence", 999), ("outlier", 1500)]


def test_a_message_older_than_those_of_its_device_is_counted_and_not_judged() -> None:
    history = DeviceHistory()
    WATCH.judge("d", history, rows(regular(700)))
    old = [row(100, 700, 90.0), row(200, 701), row(6990 - 59, 702, 90.0)]
    alerts = WATCH.judge("d", history, old)
    assert [(alert["kind"], alert["value"]) for alert in alerts] == [("outlier", 90.0), ("late", 2.0)]
    assert history.last == 6_990_000_000


def test_alerts_of_an_hour_beyond_the_limit_become_one_summary() -> None:
    names = [f"n{number}" for number in range(30)]
    watch = Watch(names, SETTINGS)
    messages = []
    for at in range(1500):
        value = 90.0 if at == 800 else 20.0
        messages.append(row(at * 10.0, at) | dict.fromkeys(names, value))
    alerts = watch.judge("d", DeviceHistory(), messages)
    assert [alert["kind"] for alert in alerts] == ["outlier"] * 10 + ["summary"]
    assert alerts[-1]["value"] == 20.0
    assert alerts[-1]["time"] == 8000 * 1_000_000 + 3600 * 1_000_000


def test_the_summary_comes_by_the_clock_if_no_message_does() -> None:
    names = [f"n{number}" for number in range(30)]
    watch = Watch(names, SETTINGS)
    history = DeviceHistory()
    messages = [row(at * 10.0, at) | dict.fromkeys(names, 20.0) for at in range(700)]
    watch.judge("d", history, [*messages, row(7000, 700) | dict.fromkeys(names, 90.0)])
    due = watch.due(history)
    assert watch.wake("d", history, due) == [], "the silence is beyond the limit, too"
    (alert,) = watch.wake("d", history, watch.due(history))
    assert (alert["kind"], alert["value"]) == ("summary", 21.0)
    assert watch.due(history) == 0


def test_values_that_are_no_numbers_are_not_judged() -> None:
    made = rows(regular(700))
    for at, value in ((650, None), (660, float("nan")), (670, float("inf"))):
        made[at]["temperature"] = value
    assert judged(DeviceHistory(), made) == []


def test_a_series_is_judged_with_arrays() -> None:
    values = [20.0] * 700
    values[650] = 25.0
    (alert,) = alerts_of_series(regular(700), values)
    assert (alert["kind"], alert["time"], alert["value"]) == ("outlier", 6500 * 10**6, 25.0)


def test_the_template_has_every_setting_with_its_default(project: Project) -> None:
    path = project.folder / "alerts.toml"
    assert read_settings(path) == SETTINGS
    text = path.read_text()
    assert all(f"\n{name} = " in text for name in SETTINGS.__struct_fields__)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("threshold = 0", "threshold = 0"),
        ("fade = 1.0", "below 1"),
        ('window = "60"', "Expected `int`"),
        ("tresholds = 5", "unknown field `tresholds`"),
        ("threshold", "alerts.toml"),
    ],
)
def test_a_wrong_setting_is_explained(project: Project, line: str, said: str) -> None:
    path = project.folder / "alerts.toml"
    path.write_text(line)
    with pytest.raises(PipelineError, match=r"alerts\.toml") as error:
        read_settings(path)
    assert said in str(error.value)
