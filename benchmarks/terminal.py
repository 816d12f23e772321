"""The comparison on the terminal: a line for each result as it comes, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from .brokers import PYRITE
from .comparison import PEERS, Comparison
from .scenarios import Scenario


def table(comparison: Comparison) -> Table:
    """Return the table of Pyrite's ratios to each peer; without Pyrite, of the peers' figures."""
    rows = Table(
        title=f"Pyrite and its peers: median of {comparison.runs} run(s), {comparison.seconds:g} s each"
    )
    rows.add_column("scenario", no_wrap=True)
    names = [name for name in (PYRITE.name, *PEERS) if name in comparison.versions]
    for name in names:
        against = name != PYRITE.name and PYRITE.name in names
        rows.add_column(f"to {name}" if against else name, justify="right", no_wrap=True)
    for scenario in comparison.scenarios:
        cells = [scenario.id]
        for name in names:
            if name != PYRITE.name and PYRITE.name in names:
                cells.append(comparison.ratio_text(scenario, name, "[green]✓[/]", "[red]✗[/]"))
            else:
                cells.append(comparison.figure_text(scenario, name))
        rows.add_row(*cells)
    return rows


def summary_line(comparison: Comparison, scenario: Scenario, broker: str) -> str:
    """Return one line about one scenario with one broker, for the terminal while the rest still runs."""
    series = comparison.of(scenario, broker)
    assert series is not None
    head = f"{scenario.id:<20}{broker:<11}"
    if not series.runs:
        return f"{head}failed: {series.failures[-1]}"
    parts = [text for text in _details(comparison, scenario, broker) if text]
    faults = ", ".join(f"{count:,} {fault.replace('_', ' ')}" for fault, count in series.faults().items())
    return head + ", ".join(parts) + (f"  !! {faults}" if faults else "")


def _details(comparison: Comparison, scenario: Scenario, broker: str) -> Iterable[str]:
    series = comparison.of(scenario, broker)
    assert series is not None
    forms = {
        "in_per_second": "{:,.0f}/s in",
        "out_per_second": "{:,.0f}/s out",
        "connections": "{:,.0f} connections",
        "broker_us_per_message": "{:.2f} µs CPU/message",
        "broker_us_per_connection": "{:.0f} µs CPU/connection",
        "p50_us": "p50 {:,.0f} µs",
        "p99_us": "p99 {:,.0f} µs",
        "bytes_per_connection": "{:,.0f} B/connection",
        "broker_busy": "broker {:.0%} busy",
        "generator_busy": "generator {:.0%}",
        "other_busy": "others {:.0%}",
    }
    if scenario.arguments and scenario.arguments[0] == "connect":
        seconds = series.median("seconds")
        yield f"{seconds:.3f} s" if seconds is not None else ""
    for figure, form in forms.items():
        value = series.median(figure)
        yield form.format(value) if value is not None else ""
