"""Plots of a pipeline's tables, as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa


def draw(tables: dict[str, pa.Table], folder: Path) -> list[Path]:
    """Draw what there is to draw, and return the files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    alerts = [table for name, table in tables.items() if name.startswith("alerts_") and table.num_rows]
    silver = {name: table for name, table in tables.items() if name.startswith("silver_") and table.num_rows}
    pictures: list[tuple[str, Any, pa.Table | None]] = [
        ("rates", _rates, tables.get("topic_windows")),
        ("talkers", _talkers, tables.get("top_talkers")),
        ("devices", _devices, tables.get("device_stats")),
        (
            "alerts",
            lambda axes, found: _alerts(axes, found, silver),
            pa.concat_tables(alerts) if alerts else None,
        ),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, picture, table in pictures:
        if table is None or not table.num_rows:
            continue
        figure, axes = pyplot.subplots(figsize=(10, 5), layout="constrained")
        picture(axes, table)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
        drawn.append(path)
    return drawn


def _rates(axes: Any, windows: pa.Table) -> None:
    sums = windows.group_by("start").aggregate([("messages_per_second", "sum"), ("bytes_per_second", "sum")])
    sums = sums.sort_by("start")
    axes.plot(sums["start"].to_pylist(), sums["messages_per_second_sum"].to_pylist(), marker=".")
    axes.set(title="Messages a second, all topics", xlabel="window", ylabel="messages/s", ylim=(0, None))


def _talkers(axes: Any, talkers: pa.Table) -> None:
    ranked = talkers.sort_by([("messages", "ascending"), ("topic", "descending")])
    axes.barh(ranked["topic"].to_pylist(), ranked["messages"].to_pylist())
    axes.set(title="Topics with the most messages", xlabel="messages")


def _devices(axes: Any, stats: pa.Table) -> None:
    """Draw each device's range, from least to greatest, and its mean, as shares of the mean of its field."""
    rows = stats.sort_by([("field", "ascending"), ("device", "ascending")]).to_pylist()
    for number, name in enumerate(sorted({row["field"] for row in rows})):
        chosen = [row for row in rows if row["field"] == name]
        scale = sum(row["mean"] for row in chosen) / len(chosen) or 1.0
        at = [place + number * 0.2 for place in range(len(chosen))]
        means = [row["mean"] / scale for row in chosen]
        below = [(row["mean"] - row["min"]) / abs(scale) for row in chosen]
        above = [(row["max"] - row["mean"]) / abs(scale) for row in chosen]
        axes.errorbar(at, means, yerr=[below, above], fmt=".", label=name, capsize=2)
    axes.set(
        title="Devices: mean, least and greatest value", xlabel="device", ylabel="share of the field's mean"
    )
    axes.legend()


def _alerts(axes: Any, alerts: pa.Table, silver: dict[str, pa.Table]) -> None:
    """Draw the field with the most alerts over time, of the devices that have some, and the alerts on it."""
    found = alerts.to_pylist()
    outliers = [row["field"] for row in found if row["kind"] == "outlier"]
    name = max(sorted(set(outliers)), key=outliers.count) if outliers else None
    devices = {row["device"] for row in found if row["field"] == name}
    for table in silver.values():
        if name not in table.column_names:
            continue
        columns = table.select(["device", "event_time", name]).sort_by("event_time").to_pylist()
        for device in sorted(devices):
            mine = [row for row in columns if row["device"] == device]
            axes.plot([row["event_time"] for row in mine], [row[name] for row in mine], linewidth=0.7)
    marked = [row for row in found if row["field"] == name]
    axes.scatter([row["time"] for row in marked], [row["value"] for row in marked], color="red", zorder=3)
    axes.set(title=f"Alerts: {len(found)} in all, {len(marked)} of {name}", xlabel="time", ylabel=name)
