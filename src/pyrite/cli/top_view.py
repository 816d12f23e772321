"""How `pyrite top` looks: tables of figures, with sparklines, and in red what someone should look at."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyrite.cli.top_figures import Reading

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
_COUNTS = (
    ("connected", "clients/connected"),
    ("sessions", "clients/total"),
    ("behind", "clients/behind"),
    ("refused", "clients/refused"),
    ("subscriptions", "subscriptions/count"),
    ("shared", "shared_subscriptions/count"),
    ("retained", "retained messages/count"),
    ("waiting", "messages/stored"),
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


def view(reading: Reading, title: str) -> RenderableType:
    """Draw a reading."""
    figures = reading.figures
    head = Text(title, style="bold")
    if not figures:
        head.stylize("red")
        return head
    head.append(f"  {figures.get('version', '')}  up {figures.get('uptime', '?')}", style="dim")
    side = Table.grid(padding=(0, 3))
    side.add_row(_counts(figures), _log(figures))
    return Group(head, Text(), _traffic(reading), Text(), side, *_streams(figures))


def _traffic(reading: Reading) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("a second", justify="right", min_width=12)
    table.add_column("", min_width=10, no_wrap=True, overflow="crop", style="cyan")
    table.add_column("in all", justify="right")
    for label, name, is_bytes in _TRAFFIC:
        if name in reading.figures:
            total = float(reading.figures[name])
            form = size if is_bytes else count
            table.add_row(
                label,
                form(reading.rates.get(name, 0.0)),
                sparkline(reading.history.get(name, ())),
                form(total),
                style=_style(reading.figures, name),
            )
    return table


def _counts(figures: dict[str, str]) -> Table:
    table = _pairs()
    for label, name in _COUNTS:
        if name in figures:
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
    table.add_column("end", justify="right")
    table.add_column("on disk", justify="right")
    for name in names:
        on_disk = figures.get(f"{prefix}{name}/bytes")
        end = count(float(figures[f"{prefix}{name}{suffix}"]))
        table.add_row(Text(name), end, "" if on_disk is None else size(float(on_disk)))
    return [Text(), table]


def _pairs() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
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
