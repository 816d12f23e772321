"""Plots of a pipeline's tables, as PNG files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyrite.pipeline.project import Project
from pyrite.pipeline.schemas import read_schemas
from pyrite.pipeline.tables import read_table, table_names


def draw(project: Project, folder: Path) -> list[Path]:
    """Draw a plot of every table that has rows; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = table_names(project)
    pictures: list[tuple[str, Callable[[Any, pa.Table], None], list[str]]] = [
        ("rates", _rates, ["topic_windows"]),
        ("talkers", _talkers, ["top_talkers"]),
        ("devices", _devices, ["device_stats"]),
        (
            "alerts",
            lambda axes, table: draw_alerts(axes, table, project),
            [name for name in names if name.startswith("alerts_")],
        ),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, picture, wanted in pictures:
        found = [read_table(project, table) for table in wanted if table in names]
        table = pa.concat_tables([each for each in found if each.num_rows] or [pa.table({})])
        if not table.num_rows:
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
    axes.set(title="Messages per second, all topics", xlabel="window", ylabel="messages/s", ylim=(0, None))


def _talkers(axes: Any, talkers: pa.Table) -> None:
    ranked = talkers.sort_by([("messages", "ascending"), ("topic", "descending")])
    axes.barh(ranked["topic"].to_pylist(), ranked["messages"].to_pylist())
    axes.set(title="Topics with the most messages", xlabel="messages")


def _devices(axes: Any, stats: pa.Table) -> None:
    """Draw minimum, maximum and mean of each device, relative to the mean of the field."""
    rows = stats.to_pylist()
    devices = sorted({row["device"] for row in rows})
    for number, name in enumerate(sorted({row["field"] for row in rows})):
        chosen = [row for row in rows if row["field"] == name]
        scale = sum(row["mean"] for row in chosen) / len(chosen) or 1.0
        at = [devices.index(row["device"]) + number * 0.2 for row in chosen]
        means = [row["mean"] / scale for row in chosen]
        below = [(row["mean"] - row["min"]) / abs(scale) for row in chosen]
        above = [(row["max"] - row["mean"]) / abs(scale) for row in chosen]
        axes.errorbar(at, means, yerr=[below, above], fmt=".", label=name, capsize=2)
    axes.set_xticks(range(len(devices)), devices, rotation=90)
    axes.set(title="Devices: mean, minimum and maximum", ylabel="relative to the field's mean")
    axes.legend()


def draw_alerts(axes: Any, alerts: pa.Table, project: Project) -> None:
    """Draw alerts over the values of the field with the most outliers.

    If there are only silences, draw after how many seconds each was reported.
    """
    found = [row for row in alerts.to_pylist() if row["kind"] not in ("late", "summary")]
    outliers = [row for row in found if row["kind"] != "silence"]
    if not found:
        return
    fields = Counter(sorted(row["field"] for row in outliers or found))
    ((name, _),) = fields.most_common(1)
    marked = [row for row in outliers or found if row["field"] == name]
    devices = sorted({row["device"] for row in marked})
    for schema in read_schemas(project.folder / "schemas.toml"):
        if name not in schema.numbers:
            continue
        filters = [("device", "in", devices)]
        table = read_table(project, schema.silver, columns=["device", "event_time", name], filters=filters)
        for device in devices:
            mine = table.filter(pc.equal(table["device"], device)).sort_by("event_time")
            axes.plot(mine["event_time"].to_pylist(), mine[name].to_pylist(), linewidth=0.7)
    axes.scatter([row["time"] for row in marked], [row["value"] for row in marked], color="red", zorder=3)
    axes.set(title=f"Alerts: {len(found)} in total, {len(marked)} of {name}", xlabel="time")
    axes.set_ylabel(name if outliers else "seconds of silence")
