"""The past of a number, and what is unusual against it.

Two distances are judged: that of a value from the median of the values before it, and that of the mean of a
block from its baseline, which reveals level shifts. The baseline is the median or, if the field repeats by
the day or the week, its usual value at this time. A distance is unusual if it is larger than the spread
allows, larger than almost all distances of this field so far, and larger than those seen at this time of
day. So a field that often jumps must jump farther, and noise needs no model.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import NamedTuple

import msgspec

from pyrite.pipeline.alert_settings import AlertSettings

DAY = 86_400.0
WEEK = 7 * DAY
MAD_TO_SIGMA = 1.4826
"""Factor from the median absolute deviation to the standard deviation of a normal distribution."""
MIN_SPREAD = 1e-9
"""Absolute minimum of the standard deviation."""
DAY_BINS = 48
WEEK_BINS = 168
LEARN_DAYS = 8
"""Days after which blocks are compared with the day's usual values: a weekend is among them."""
MAX_CYCLES = 4
"""Days or weeks of which a season is the mean; older ones fade."""
ERROR_RATE = 0.003
"""Weight of the newest value in a baseline's mean error."""
MAX_ERROR = 10.0
"""Limit of an error, in standard deviations, so that outliers do not choose the baseline."""
MIN_BLOCKS = 100
"""Blocks known before one is judged."""
_STEP = math.log(1.1)
"""Width of a histogram's bins, as a logarithm: distances are known within 10 %."""
_ZERO = -1_000_000
"""The bin of zero."""


class Verdict(NamedTuple):
    """Why a value is unusual."""

    kind: str
    """`outlier` or `shift`."""
    expected: float
    score: float
    """The distance in standard deviations."""


class Distances(msgspec.Struct):
    """A histogram of distances with logarithmic bins, in which the past fades."""

    bins: dict[int, float] = {}
    total: float = 0.0

    def add(self, distance: float, memory: int) -> None:
        """Count a distance; halve all counts when they exceed twice the memory."""
        at = int(math.log(distance) // _STEP) if distance > 1e-12 else _ZERO
        self.bins[at] = self.bins.get(at, 0.0) + 1.0
        self.total += 1.0
        if self.total > 2 * memory:
            self.bins = {at: count / 2 for at, count in self.bins.items() if count > 0.1}
            self.total = sum(self.bins.values())

    def quantiles(self, *wanted: float) -> list[float]:
        """Return quantiles, for probabilities in descending order."""
        found: list[float] = []
        above = 0.0
        for at in sorted(self.bins, reverse=True):
            above += self.bins[at]
            while len(found) < len(wanted) and above > (1 - wanted[len(found)]) * self.total:
                found.append(0.0 if at == _ZERO else math.exp((at + 0.5) * _STEP))
            if len(found) == len(wanted):
                break
        return found + [0.0] * (len(wanted) - len(found))


class Peak(msgspec.Struct, array_like=True):
    """The largest distance at one time of day."""

    earlier: float
    """On days before the last one, faded."""
    newest: float
    """On the last day."""
    time: float
    """When the last one ended, in seconds."""

    def before(self, time: float, fade: float) -> float:
        """Return the largest distance on days before the one of this time."""
        return self.earlier if time - self.time < DAY / 2 else max(self.earlier * fade, self.newest)


class DayPeaks(msgspec.Struct):
    """The largest distance at each time of day, fading by the day."""

    peaks: dict[int, Peak] = {}
    bin: int = -1
    highest: float = 0.0
    """The largest distance since the current bin began."""

    def near(self, time: float, fade: float) -> float:
        """Return the largest distance near this time of day on earlier days."""
        at = int(time % DAY / DAY * DAY_BINS)
        known = [self.peaks.get((at + step) % DAY_BINS) for step in (-1, 0, 1)]
        return max((each.before(time, fade) for each in known if each is not None), default=0.0)

    def add(self, time: float, distance: float, fade: float) -> None:
        """Add a distance; it counts from the next day on."""
        at = int(time % DAY / DAY * DAY_BINS)
        if at != self.bin:
            if self.bin >= 0:
                known = self.peaks.get(self.bin)
                earlier = 0.0 if known is None else known.before(time, fade)
                self.peaks[self.bin] = Peak(earlier, self.highest, time)
            self.bin, self.highest = at, 0.0
        self.highest = max(self.highest, distance)


class Season(msgspec.Struct):
    """The mean value at each time of a day or week."""

    period: float
    count: int
    """Number of bins."""
    means: dict[int, tuple[float, int]] = {}
    """Mean by bin, and the number of cycles it was computed from."""
    bin: int = -1
    sum: float = 0.0
    values: int = 0

    def expected(self, time: float) -> float | None:
        """Return the mean at this time, interpolated between bins; None if unknown."""
        place = time % self.period / self.period * self.count
        at = int(place)
        here = self.means.get(at)
        if here is None:
            return None
        part = place - at - 0.5
        beside = self.means.get((at + (1 if part > 0 else -1)) % self.count, here)
        return here[0] + (beside[0] - here[0]) * abs(part)

    def add(self, time: float, value: float) -> None:
        """Add a value; it counts once its bin is over."""
        at = int(time % self.period / self.period * self.count)
        if at != self.bin:
            if self.values:
                mean, cycles = self.means.get(self.bin, (0.0, 0))
                cycles = min(cycles + 1, MAX_CYCLES)
                self.means[self.bin] = (mean + (self.sum / self.values - mean) / cycles, cycles)
            self.bin, self.sum, self.values = at, 0.0, 0
        self.sum += value
        self.values += 1


class Baseline(msgspec.Struct):
    """Differences from one kind of expected value, and the distances of blocks of them."""

    error: float = -1.0
    """Mean distance of values, or -1 before the first."""
    block: list[float] = []
    distances: Distances = msgspec.field(default_factory=Distances)

    def add(self, difference: float, spread: float, settings: AlertSettings) -> float | None:
        """Add a difference; returns the distance of the block, or None if it is not full yet."""
        error = min(abs(difference), MAX_ERROR * spread)
        self.error = error if self.error < 0 else self.error + ERROR_RATE * (error - self.error)
        self.block.append(difference)
        if len(self.block) < settings.block:
            return None
        del self.block[: -settings.block]
        return abs(sum(self.block)) / settings.block

    def limit(self, floor: float, settings: AlertSettings) -> tuple[float, float]:
        """Return the distance above which a block is unusual, and the standard deviation of blocks."""
        if self.distances.total < MIN_BLOCKS:
            return math.inf, floor
        usual, middle = self.distances.quantiles(settings.usual_blocks, 0.5)
        spread = max(MAD_TO_SIGMA * middle, floor)
        return max(settings.threshold * spread, settings.margin * usual), spread


class FieldHistory(msgspec.Struct):
    """The past of one number of a device."""

    recent: list[float] = []
    ordered: list[float] = []
    """The recent values in ascending order."""
    seen: int = 0
    first: float = 0.0
    """Time of the first value, in seconds."""
    rest: float = -math.inf
    """Time of the last unusual value."""
    distances: Distances = msgspec.field(default_factory=Distances)
    peaks: DayPeaks = msgspec.field(default_factory=DayPeaks)
    block_peaks: DayPeaks = msgspec.field(default_factory=DayPeaks)
    baselines: list[Baseline] = msgspec.field(default_factory=lambda: [Baseline(), Baseline(), Baseline()])
    """Relative to the median, to the day and to the week."""
    day: Season = msgspec.field(default_factory=lambda: Season(DAY, DAY_BINS))
    week: Season = msgspec.field(default_factory=lambda: Season(WEEK, WEEK_BINS))

    def judge(self, time: float, value: float, rearm: float, settings: AlertSettings) -> Verdict | None:
        """Add a value, at a time in seconds; returns a verdict if it is unusual and the field is armed.

        The field is armed if no value was unusual for `rearm` seconds.
        """
        if self.seen == 0:
            self.first = time
        verdict = None
        if len(self.recent) >= settings.window:
            found = self._compare(time, value, settings)
            learned = self.seen >= settings.learn_values or time - self.first >= settings.learn_seconds
            if found is not None and learned:
                verdict = found if time - self.rest >= rearm else None
                self.rest = time
        self._remember(time, value, settings.window)
        return verdict

    def _compare(self, time: float, value: float, settings: AlertSettings) -> Verdict | None:
        """Judge a value and its block against the past, and add their distances to it."""
        middle = _median(self.ordered)
        distance = abs(value - middle)
        usual, high, typical = self.distances.quantiles(*_descending(settings.usual_values))
        floor = max(settings.min_spread * abs(middle), settings.min_spread_of_jumps * high, MIN_SPREAD)
        spread = max(MAD_TO_SIGMA * typical, floor)
        seen = self.peaks.near(time, settings.fade)
        limit = max(settings.threshold * spread, settings.margin * usual, settings.recurring * seen)
        found = Verdict("outlier", middle, distance / spread) if distance > limit else None
        self.peaks.add(time, distance, settings.fade)
        self.distances.add(distance, settings.memory)
        shift = self._compare_block(time, value, middle, spread, floor / 2, settings)
        return found or shift

    def _compare_block(
        self, time: float, value: float, middle: float, spread: float, floor: float, settings: AlertSettings
    ) -> Verdict | None:
        """Judge the block that ends with this value."""
        expected = (middle, self.day.expected(time), self.week.expected(time))
        distances = [
            None if each is None else baseline.add(value - each, spread, settings)
            for each, baseline in zip(expected, self.baselines, strict=True)
        ]
        best = self._best_baseline(time, expected, settings)
        found, normal, distance = None, expected[best], distances[best]
        if distance is not None and normal is not None:
            limit, spread_of_blocks = self.baselines[best].limit(floor, settings)
            if distance > max(limit, settings.recurring * self.block_peaks.near(time, settings.fade)):
                found = Verdict("shift", normal, distance / spread_of_blocks)
            self.block_peaks.add(time, distance, settings.fade)
        for each, baseline in zip(distances, self.baselines, strict=True):
            if each is not None:
                baseline.distances.add(each, settings.memory)
        return found

    def _best_baseline(self, time: float, known: tuple[float | None, ...], settings: AlertSettings) -> int:
        """Return the baseline with the smallest error; a season has to be clearly better than the median."""
        best = 0
        for at, cycles in ((1, LEARN_DAYS * DAY), (2, 2 * WEEK)):
            error = self.baselines[at].error
            better = 0 <= error < settings.season_gain * self.baselines[best].error
            if better and known[at] is not None and time - self.first >= cycles:
                best = at
        return best

    def _remember(self, time: float, value: float, window: int) -> None:
        self.seen += 1
        self.recent.append(value)
        insort(self.ordered, value)
        while len(self.recent) > window:
            del self.ordered[bisect_left(self.ordered, self.recent.pop(0))]
        self.day.add(time, value)
        self.week.add(time, value)


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _descending(usual: float) -> tuple[float, float, float]:
    """The quantiles of single values' distances: usual, high and typical."""
    return (usual, min(0.99, usual), 0.5)
