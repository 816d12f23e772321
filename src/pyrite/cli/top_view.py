"""How `pyrite top` looks: tables of figures, with sparklines, and in red what someone should look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from pyrite.cli.top_figures import Reading
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
"""Not the broker's: what is stored, less what is retained, as on the dashboard."""
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
"""Figures that should be so; else they are shown in red."""
LEAST_BARS = 5
NUMBERS = 42
"""Columns that rates and sums take, with their labels; the rest of a line is for sparklines."""
WIDE, NARROW = 78, 54
"""Columns from which figures stand in three tables side by side; and below which one follows the other."""


@dataclass(frozen=True, slots=True)
class View:
    """A reading, drawn as wide as the terminal is: no number is cut, and 24 lines do."""

    reading: Reading
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it."""
        figures = self.reading.figures
        head = Text(self.title, style="bold")
        if not figures:
            head.stylize("red")
            yield head
            return
        head.append(f"  {figures.get('version', '')}  up {figures.get('uptime', '?')}", style="dim")
        yield head
        yield Text()
        yield _traffic(self.reading, options.max_width - NUMBERS)
        yield Text()
        yield from _figures(_with_waiting(figures), options.max_width)
        yield from _streams(figures)
        yield from _pipelines(self.reading.pipelines)


def _with_waiting(figures: dict[str, str]) -> dict[str, str]:
    try:
        waiting = int(figures["messages/stored"]) - int(figures["retained messages/count"])
    except (KeyError, ValueError):
        return figures
    return figures | {WAITING: str(max(0, waiting))}


def _figures(figures: dict[str, str], width: int) -> list[RenderableType]:
    counts = [one for one in _COUNTS if one[1] in figures]
    if width < NARROW:
        return [_log(figures), Text(), _counts(figures, counts)]
    half = (len(counts) + 1) // 2 if width >= WIDE else len(counts)
    parts = [_counts(figures, part) for part in (counts[:half], counts[half:]) if part]
    side = Table.grid(padding=(0, 3))
    for _ in parts:
        side.add_column(no_wrap=True)
    side.add_row(*parts, _log(figures))
    return [side]


def _traffic(reading: Reading, room: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("a second", justify="right", min_width=10, no_wrap=True)
    if room >= LEAST_BARS:
        table.add_column("", no_wrap=True, style="cyan", min_width=min(room, 10))
    table.add_column("in all", justify="right", no_wrap=True)
    for label, name, is_bytes in _TRAFFIC:
        if name in reading.figures:
            total = float(reading.figures[name])
            form = size if is_bytes else count
            bars = [sparkline(reading.history.get(name, ())[-room:])] if room >= LEAST_BARS else []
            cells = [label, form(reading.rates.get(name, 0.0)), *bars, form(total)]
            table.add_row(*cells, style=_style(reading.figures, name))
    return table


def _counts(figures: dict[str, str], which: Sequence[tuple[str, str]]) -> Table:
    table = _pairs()
    for label, name in which:
        table.add_row(label, count(float(figures[name])), style=_style(figures, name))
    return table


def _log(figures: dict[str, str]) -> Table:
    table = _pairs()
    for label, name in _TIMES:
        if name in figures:
            table.add_row(label, f"{figures[name]} ms")
    for label, name in (("log lost", "log/lost"), ("log damaged", "log/damaged"), ("log error", "log/error")):
        if name in figures:
            table.add_row(label, Text(figures[name]), style=_style(figures, name))
    return table


def _streams(figures: dict[str, str]) -> list[RenderableType]:
    prefix, suffix = "log/streams/", "/offset"
    names = sorted(
        one[len(prefix) : -len(suffix)] for one in figures if one.startswith(prefix) and suffix in one
    )
    if not names:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("stream")
    table.add_column("end", justify="right", no_wrap=True)
    table.add_column("on disk", justify="right", no_wrap=True)
    for name in names:
        on_disk = figures.get(f"{prefix}{name}/bytes")
        end = count(float(figures[f"{prefix}{name}{suffix}"]))
        table.add_row(Text(name), end, "" if on_disk is None else size(float(on_disk)))
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


def _style(figures: dict[str, str], name: str) -> str:
    expected = _ALARMS.get(name)
    return "" if expected is None or figures[name] == expected else "bold red"


def count(number: float) -> str:
    """Write a number for people."""
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1_000:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1_000
    return f"{number:,.1f} TB"


def sparkline(values: Sequence[float]) -> str:
    """Draw values as little bars, the highest of them as the largest."""
    most = max(values, default=0.0)
    if not most:
        return _BARS[0] * len(values)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)
