"""Synthetic series with the difficulties of real ones: times in seconds, values, and where the faults are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

DAY = 86_400.0
STEP = 300.0


@dataclass
class Series:
    """A series, and the first value of each fault."""

    times: list[float]
    values: list[float]
    faults: list[int] = field(default_factory=list)


def series(days: float, value: Callable[[float, random.Random], float], seed: int = 1) -> Series:
    """Return a value every five minutes."""
    chance = random.Random(seed)
    times = [number * STEP for number in range(int(days * DAY / STEP))]
    return Series(times, [float(value(time, chance)) for time in times])


def noisy(days: float = 14, seed: int = 1) -> Series:
    return series(days, lambda _, chance: chance.gauss(20, 1), seed)


def working_hours(time: float) -> bool:
    return 0.4 <= time % DAY / DAY < 0.75


def daily(days: float = 14) -> Series:
    """High by day, low by night, with sharp edges."""
    return series(days, lambda time, chance: 80 + chance.gauss(0, 3) if working_hours(time) else 20)


def weekly(days: float = 35) -> Series:
    """A curve over the day that is lower at weekends."""

    def value(time: float, chance: random.Random) -> float:
        weekend = int(time // DAY) % 7 >= 5
        return (60 if weekend else 100) * (1.5 + math.sin(2 * math.pi * time / DAY)) + chance.gauss(0, 4)

    return series(days, value)


def drifting(days: float = 14) -> Series:
    return series(days, lambda time, chance: 20 + 30 * time / DAY + chance.gauss(0, 1))


def quantised(days: float = 14) -> Series:
    """Noise smaller than the steps of the sensor: mostly one value, sometimes the next."""
    return series(days, lambda _, chance: round(chance.gauss(20.2, 0.3)))


def constant(days: float = 14) -> Series:
    return series(days, lambda *_: 45.0)


def regular_spikes(days: float = 14) -> Series:
    """A spike at the same time of each day, of varying size."""

    def value(time: float, chance: random.Random) -> float:
        at = time % DAY
        return chance.uniform(1.4, 1.6) if 3 * 3600 <= at < 3 * 3600 + STEP else chance.gauss(0.1, 0.01)

    return series(days, value)


CLEAN = {
    each.__name__: each for each in (noisy, daily, weekly, drifting, quantised, constant, regular_spikes)
}


def spiking() -> Series:
    """Isolated values far off."""
    made = noisy()
    made.faults = [1000, 2000, 3000]
    for at, size in zip(made.faults, (12, -10, 15), strict=True):
        made.values[at] += size
    return made


def shifting() -> Series:
    """Changes of the level that last."""
    made = noisy()
    made.faults = [1000, 2500]
    for at, size in zip(made.faults, (8, -12), strict=True):
        for after in range(at, len(made.values)):
            made.values[after] += size
    return made


def slight_shift() -> Series:
    """A change of the level that no single value shows."""
    made = noisy()
    made.faults = [2000]
    for after in range(2000, len(made.values)):
        made.values[after] += 2.0
    return made


def missing_day() -> Series:
    """A day without its high values, as on a holiday."""
    made = daily()
    for at, time in enumerate(made.times):
        if 10 <= time / DAY < 11:
            made.values[at] = 20.0
    made.faults = [next(at for at, time in enumerate(made.times) if time >= 10.4 * DAY)]
    return made


def spike_at_another_time() -> Series:
    """A spike of the usual size, at an unusual time."""
    made = regular_spikes()
    made.faults = [2880 + 150]
    made.values[made.faults[0]] = 2.2
    return made


def with_gaps() -> Series:
    """Faults beside missing points."""
    made = spiking()
    kept = [at for at in range(len(made.times)) if (at % 7 and not 1500 <= at < 1520) or at in made.faults]
    faults = [kept.index(at) for at in made.faults]
    return Series([made.times[at] for at in kept], [made.values[at] for at in kept], faults)


FAULTY = {
    each.__name__: each
    for each in (spiking, shifting, slight_shift, missing_day, spike_at_another_time, with_gaps)
}
