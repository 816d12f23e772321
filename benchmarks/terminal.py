"""The comparison on the terminal: a line for each result as it comes, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from .comparison import Comparison
from .scenarios import Scenario


def tables(comparison: Comparison) -> Iterable[Table]:
    """Yield a table of ratios for each way of running Pyrite; without Pyrite, one of the peers' figures."""
    how = f"median of {comparison.runs} run(s), {comparison.seconds:g} s each"
    for ours, scenarios in comparison.views().items():
        peers = comparison.peers(ours)
        rows = _table(f"{ours}: {how}", [ours, *(f"to {peer}" for peer in peers)])
        yes, no = "[green]✓[/]", "[red]✗[/]"
        for scenario in scenarios:
            figure = comparison.figure_text(scenario, ours)
            verdict = comparison.own_verdicts(scenario, ours, yes, no)
            ratios = [comparison.ratio_text(scenario, ours, peer, yes, no) for peer in peers]
            rows.add_row(scenario.id, figure + verdict, *ratios)
        yield rows
    if not comparison.views():
        names = list(comparison.versions)
        rows = _table(how, names)
        for scenario in comparison.scenarios:
            rows.add_row(scenario.id, *(comparison.figure_text(scenario, name) for name in names))
        yield rows


def _table(title: str, columns: Iterable[str]) -> Table:
    rows = Table(title=title)
    rows.add_column("scenario", no_wrap=True)
    for column in columns:
        rows.add_column(column, justify="right", no_wrap=True)
    return rows


def head(scenario: str, broker: str) -> str:
    """Return how a line about this scenario and broker begins."""
    return f"{scenario:<26}{broker:<28}"


def summary_line(comparison: Comparison, scenario: Scenario, broker: str) -> str:
    """Return one line about one scenario with one broker, for the terminal while the rest still runs."""
    series = comparison.of(scenario, broker)
    assert series is not None
    if not series.runs:
        return f"{head(scenario.id, broker)}failed: {series.failures[-1]}"
    parts = [text for text in _details(comparison, scenario, broker) if text]
    faults = ", ".join(f"{count:,} {fault.replace('_', ' ')}" for fault, count in series.faults().items())
    return head(scenario.id, broker) + ", ".join(parts) + (f"  !! {faults}" if faults else "")


def _details(comparison: Comparison, scenario: Scenario, broker: str) -> Iterable[str]:
    series = comparison.of(scenario, broker)
    assert series is not None
    forms = {
        "scanned_per_second": "{:,.0f}/s read",
        "longest_block_ms": "longest block {:.1f} ms",
        "bare_writes": "{:.2f} bare writes",
        "stored_bytes": "{:,.0f} B on disk/message",
        "first_message_ms": "first message {:.1f} ms",
        "first_rare_ms": "only message {:.1f} ms",
        "bare_write_us": "bare write {:,.0f} µs",
        "in_per_second": "{:,.0f}/s in",
        "out_per_second": "{:,.0f}/s out",
        "connections": "{:,.0f} connections",
        "peak_memory_mib": "{:.0f} MiB",
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
        is_absent = value is None or (value == 0 and figure.endswith("per_second"))
        yield "" if is_absent else form.format(value)
