"""The screen of `pyrite top`: tables of metrics with sparklines, alarms in red."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from pyrite.cli.top_metrics import TopSample
from pyrite.process.terminal import printable

_BARS = "▁▂▃▄▅▆▇█"
_TRAFFIC = (
    ("messages in", "publish/messages/received", False),
    ("messages out", "publish/messages/sent", False),
    ("bytes in", "bytes/received", True),
    ("bytes out", "bytes/sent", True),
    ("dropped", "publish/messages/dropped", False),
    ("log messages", "log/messages/written", False),
    ("log bytes", "log/bytes/written", True),
    ("commits", "log/commits/count", False),
)
WAITING = "messages/waiting"
"""Computed here: stored messages without the retained ones, as on the dashboard."""
_COUNTS = (
    ("connected", "clients/connected"),
    ("sessions", "clients/total"),
    ("behind", "clients/behind"),
    ("refused", "clients/refused"),
    ("subscriptions", "subscriptions/count"),
    ("shared", "shared_subscriptions/count"),
    ("retained", "retained messages/count"),
    ("waiting", WAITING),
    ("consumers", "consumers/count"),
    ("pulled, open", "consumers/pending"),
)
_TIMES = (
    ("commit, median", "log/commits/median"),
    ("commit, longest", "log/commits/longest"),
    ("loop, longest", "loop/longest block"),
)
_ALARMS = {
    "publish/messages/dropped": "0",
    "clients/behind": "0",
    "log/lost": "0",
    "log/damaged": "0",
    "log/error": "none",
}
"""Metrics with their healthy value; any other value is shown in red."""
MAX_READERS = 20
"""Named readers of the log that are shown."""
MIN_SPARKLINE_WIDTH = 5
NUMBERS_WIDTH = 42
"""Columns taken by labels, rates and totals; the rest of the line is for sparklines."""
SIDE_BY_SIDE_WIDTH, STACKED_WIDTH = 78, 54
"""Widths from which tables stand side by side in threes, and below which they stack."""


@dataclass(frozen=True, slots=True)
class View:
    """A sample drawn in the width of the terminal, in 24 lines, without cutting numbers."""

    sample: TopSample
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        metrics = self.sample.metrics
        head = Text(self.title, style="bold")
        if not metrics:
            head.stylize("red")
            yield head
            return
        head.append(f"  {metrics.get('version', '')}  up {metrics.get('uptime', '?')}", style="dim")
        yield head
        yield Text()
        yield _traffic(self.sample, options.max_width - NUMBERS_WIDTH)
        yield Text()
        yield from _metrics(_with_waiting(metrics), options.max_width)
        yield from _streams(metrics)
        yield from _readers(metrics)
        yield from _pipelines(self.sample.pipelines)


def _with_waiting(metrics: dict[str, str]) -> dict[str, str]:
    try:
        waiting = int(metrics["messages/stored"]) - int(metrics["retained messages/count"])
    except (KeyError, ValueError):
        return metrics
    return metrics | {WAITING: str(max(0, waiting))}


def _metrics(metrics: dict[str, str], width: int) -> list[RenderableType]:
    counts = [one for one in _COUNTS if one[1] in metrics]
    if width < STACKED_WIDTH:
        return [_log(metrics), Text(), _counts(metrics, counts)]
    half = (len(counts) + 1) // 2 if width >= SIDE_BY_SIDE_WIDTH else len(counts)
    parts = [_counts(metrics, part) for part in (counts[:half], counts[half:]) if part]
    side = Table.grid(padding=(0, 3))
    for _ in parts:
        side.add_column(no_wrap=True)
    side.add_row(*parts, _log(metrics))
    return [side]


def _traffic(sample: TopSample, room: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("per second", justify="right", min_width=10, no_wrap=True)
    if room >= MIN_SPARKLINE_WIDTH:
        table.add_column("", no_wrap=True, style="cyan", min_width=min(room, 10))
    table.add_column("total", justify="right", no_wrap=True)
    for label, name, is_bytes in _TRAFFIC:
        if name in sample.metrics:
            total = float(sample.metrics[name])
            form = size if is_bytes else count
            bars = [sparkline(sample.history.get(name, ())[-room:])] if room >= MIN_SPARKLINE_WIDTH else []
            cells = [label, form(sample.rates.get(name, 0.0)), *bars, form(total)]
            table.add_row(*cells, style=_style(sample.metrics, name))
    return table


def _counts(metrics: dict[str, str], which: Sequence[tuple[str, str]]) -> Table:
    table = _pairs()
    for label, name in which:
        table.add_row(label, count(float(metrics[name])), style=_style(metrics, name))
    return table


def _log(metrics: dict[str, str]) -> Table:
    table = _pairs()
    for label, name in _TIMES:
        if name in metrics:
            table.add_row(label, f"{metrics[name]} ms")
    for label, name in (("log lost", "log/lost"), ("log damaged", "log/damaged"), ("log error", "log/error")):
        if name in metrics:
            table.add_row(label, Text(metrics[name]), style=_style(metrics, name))
    return table


def _streams(metrics: dict[str, str]) -> list[RenderableType]:
    prefix, suffix = "log/streams/", "/offset"
    names = sorted(
        one[len(prefix) : -len(suffix)] for one in metrics if one.startswith(prefix) and suffix in one
    )
    if not names:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("stream")
    table.add_column("end", justify="right", no_wrap=True)
    table.add_column("on disk", justify="right", no_wrap=True)
    for name in names:
        on_disk = metrics.get(f"{prefix}{name}/bytes")
        end = count(float(metrics[f"{prefix}{name}{suffix}"]))
        table.add_row(Text(name), end, "" if on_disk is None else size(float(on_disk)))
    return [Text(), table]


def _readers(metrics: dict[str, str]) -> list[RenderableType]:
    prefix, suffix = "log/readers/", "/lag"
    topics = sorted(one for one in metrics if one.startswith(prefix) and one.endswith(suffix))
    if not topics:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("reader")
    table.add_column("lag", justify="right", no_wrap=True)
    for topic in topics[:MAX_READERS]:
        table.add_row(Text(topic[len(prefix) : -len(suffix)]), count(float(metrics[topic])))
    return [Text(), table]


def _pipelines(pipelines: dict[str, dict[str, object]]) -> list[RenderableType]:
    if not pipelines:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("pipeline")
    table.add_column("state")
    for title in ("batch", "rows/s", "lag"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, said in pipelines.items():
        numbers = [_told(said.get(key)) for key in ("batch", "rows_per_second", "lag")]
        style = "bold red" if said.get("state") == "failed" else ""
        table.add_row(Text(name), Text(_told(said.get("state"))), *map(Text, numbers), style=style)
    return [Text(), table]


def _told(value: object) -> str:
    if isinstance(value, (int, float)):
        return count(value)
    return "-" if value is None else printable(str(value))


def _pairs() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    return table


def _style(metrics: dict[str, str], name: str) -> str:
    expected = _ALARMS.get(name)
    return "" if expected is None or metrics[name] == expected else "bold red"


def count(number: float) -> str:
    """Format a number with thousands separators."""
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Format a number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1_000:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1_000
    return f"{number:,.1f} TB"


def sparkline(values: Sequence[float]) -> str:
    """Draw values as bars, scaled to the largest."""
    most = max(values, default=0.0)
    if not most:
        return _BARS[0] * len(values)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)
