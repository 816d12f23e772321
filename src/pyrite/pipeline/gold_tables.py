"""The gold tables: what is added up for each key, and what is computed from the sums.

Tables with names that start with _ hold sums; the others are for users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WINDOW_SECONDS = 10
"""Length of the windows in topic_windows."""
TALKERS = 20
"""Topics in top_talkers."""
PRECISION = 0.01
"""Relative error of p95."""
_GROWTH = np.log((1 + PRECISION) / (1 - PRECISION))
"""Width of a bin, as a logarithm."""
_HALF = 1 << 20
"""Added to bins of positive values, so that bins of negative values are below 0."""
_MICROS = pa.timestamp("us", "UTC")

Tables = dict[str, pa.Table]


@dataclass(frozen=True)
class SumTable:
    """A table with a row per key, to which rows are added."""

    keys: tuple[str, ...]
    sums: dict[str, str]
    """How each other column is added up: sum, min or max."""
    hour: str | None = None
    """A column with times. Rows of an hour are in one file: only hours with new rows are rewritten."""
    publish: Callable[[pa.Table], pa.Table] = lambda table: table
    """Adds columns that are computed from the sums."""

    def add(self, old: pa.Table | None, new: pa.Table) -> pa.Table:
        """Add rows to those with the same key."""
        stored = [*self.keys, *self.sums]
        rows = new.select(stored)
        if old is not None:
            rows = pa.concat_tables([old.select(stored), rows])
        added = rows.group_by(list(self.keys)).aggregate(list(self.sums.items()))
        names = {f"{name}_{how}": name for name, how in self.sums.items()}
        found = added.rename_columns([names.get(name, name) for name in added.column_names])
        return found.select(stored).cast(rows.schema)

    def partitions(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Return the rows of each file."""
        if self.hour is None:
            yield "", rows
            return
        hours = pc.strftime(rows[self.hour], "%Y%m%dT%H")
        for hour in pc.unique(hours).to_pylist():
            yield hour, rows.filter(pc.equal(hours, hour))


@dataclass(frozen=True)
class DerivedTable:
    """A table that is computed from others."""

    sources: tuple[str, ...]
    derive: Callable[[Tables], pa.Table]


def _aggregated(rows: pa.Table, keys: list[str], **how: tuple[str, str]) -> pa.Table:
    """Group rows; each keyword is a new column, from a column and a function."""
    found = rows.group_by(keys).aggregate(list(how.values()))
    names = {f"{column}_{function}": name for name, (column, function) in how.items()}
    return found.rename_columns([names.get(name, name) for name in found.column_names])


def partials_of_log(rows: pa.Table) -> Tables:
    """Aggregate messages: `topic`, `bytes`, `timestamp`, `event_time`, `device`, `result`, `numbers`."""
    rows = rows.set_column(
        rows.schema.get_field_index("event_time"), "event_time", rows["event_time"].cast(_MICROS)
    ).set_column(rows.schema.get_field_index("timestamp"), "timestamp", rows["timestamp"].cast(_MICROS))
    for result in ("decoded", "bad"):
        rows = rows.append_column(result, pc.equal(rows["result"], result).cast(pa.int64()))
    rows = rows.append_column("messages", pa.array(np.ones(rows.num_rows, np.int64)))
    topics = _aggregated(
        rows,
        ["topic"],
        messages=("messages", "sum"),
        decoded=("decoded", "sum"),
        bad=("bad", "sum"),
        bytes=("bytes", "sum"),
        last_seen=("timestamp", "max"),
    )
    start = pc.floor_temporal(rows["event_time"], WINDOW_SECONDS, "second")
    arrived = rows.append_column("start", start).append_column("last_arrival", rows["timestamp"])
    last = arrived.append_column("last", rows["event_time"])
    windows = _aggregated(
        last,
        ["start", "topic"],
        messages=("messages", "sum"),
        bytes=("bytes", "sum"),
        first=("event_time", "min"),
        last=("last", "max"),
        first_arrival=("timestamp", "min"),
        last_arrival=("last_arrival", "max"),
    )
    return {"_topics": topics, "topic_windows": windows, **_partials_of_numbers(rows)}


def _partials_of_numbers(rows: pa.Table) -> Tables:
    lists = rows["numbers"].combine_chunks()
    flat = pc.list_flatten(lists)
    if not len(flat):
        return {}
    values = pc.struct_field(flat, "value")
    numbers = pa.table(
        {
            "device": pc.take(rows["device"], pc.list_parent_indices(lists)),
            "field": pc.struct_field(flat, "field"),
            "value": values,
            "bin": _bins(values.to_numpy(zero_copy_only=False)),
        }
    )
    # The same column three times, as each function needs a name of its own.
    numbers = numbers.filter(pc.is_finite(numbers["value"]))
    for name in ("max", "sum"):
        numbers = numbers.append_column(name, numbers["value"])
    stats = _aggregated(
        numbers,
        ["device", "field"],
        values=("bin", "count"),
        min=("value", "min"),
        max=("max", "max"),
        sum=("sum", "sum"),
    )
    bins = _aggregated(numbers, ["device", "field", "bin"], count=("value", "count"))
    return {"_stats": stats, "_bins": bins}


def _bins(values: np.ndarray) -> pa.Array:
    """Return the bin of each value: bins ascend with the values, and grow with their size."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.clip(np.ceil(np.log(np.abs(values)) / _GROWTH), -_HALF + 1, _HALF - 1) + _HALF
    bins = np.where(values == 0, 0, np.sign(values) * sizes)
    return pa.array(np.nan_to_num(bins).astype(np.int64))


def _middle(bins: np.ndarray) -> np.ndarray:
    """Return the value in the middle of each bin."""
    sizes = np.exp((np.abs(bins) - _HALF) * _GROWTH) * (1 - PRECISION)
    return np.where(bins == 0, 0.0, np.sign(bins) * sizes)


def partials_of_late(rows: pa.Table) -> Tables:
    """Sum up late messages: `topic` and `late`."""
    return {"_late": _aggregated(rows, ["topic"], late=("late", "sum"))}


def _windows(rows: pa.Table) -> pa.Table:
    """Add the end of windows, rates, and the mean seconds between messages."""
    seconds = pc.divide(pc.cast(pc.subtract(rows["last"], rows["first"]), pa.int64()), 1e6)
    between = pc.subtract(rows["messages"], 1)
    gaps = pc.if_else(pc.greater(between, 0), pc.divide(seconds, pc.cast(between, pa.float64())), None)
    end = pc.add(rows["start"], pa.scalar(WINDOW_SECONDS * 1_000_000, pa.duration("us")))
    return (
        rows.append_column("end", end)
        .append_column("messages_per_second", pc.divide(rows["messages"], float(WINDOW_SECONDS)))
        .append_column("bytes_per_second", pc.divide(rows["bytes"], float(WINDOW_SECONDS)))
        .append_column("inter_arrival", gaps)
    )


def _quality(tables: Tables) -> pa.Table:
    topics = tables["_topics"]
    if "_late" in tables:
        topics = topics.join(tables["_late"], "topic", join_type="left outer")
        late = pc.fill_null(topics["late"], 0)
    else:
        late = pa.array(np.zeros(topics.num_rows, np.int64))
    without = pc.subtract(pc.subtract(topics["messages"], topics["decoded"]), topics["bad"])
    return (
        topics.select(["topic", "messages", "decoded", "bad"])
        .append_column("without_schema", without)
        .append_column("late", late)
    )


def _talkers(tables: Tables) -> pa.Table:
    order = [("messages", "descending"), ("bytes", "descending"), ("topic", "ascending")]
    best = tables["_topics"].sort_by(order).slice(0, TALKERS)
    return best.select(["topic", "messages", "bytes", "last_seen"])


def _device_stats(tables: Tables) -> pa.Table:
    if "_stats" not in tables:
        empty = {"device": pa.string(), "field": pa.string(), "values": pa.int64()}
        numbers = dict.fromkeys(("min", "mean", "max", "p95"), pa.float64())
        return pa.schema([*(empty | numbers).items()]).empty_table()
    stats = tables["_stats"]
    bins = tables["_bins"].sort_by([(name, "ascending") for name in ("device", "field", "bin")])
    ranked = bins.group_by(["device", "field"], use_threads=False).aggregate(
        [("bin", "list"), ("count", "list")]
    )
    p95 = []
    for found, counts in zip(ranked["bin_list"].to_pylist(), ranked["count_list"].to_pylist(), strict=True):
        upto = np.cumsum(counts)
        p95.append(found[int(np.searchsorted(upto, np.ceil(0.95 * upto[-1])))])
    ranked = ranked.select(["device", "field"]).append_column("p95", pa.array(_middle(np.array(p95))))
    joined = stats.join(ranked, ["device", "field"])
    mean = pc.divide(joined["sum"], pc.cast(joined["values"], pa.float64()))
    # The middle of a bin may lie beyond the values in it.
    near = pc.min_element_wise(pc.max_element_wise(joined["p95"], joined["min"]), joined["max"])
    names = ["device", "field", "values", "min", "mean", "max", "p95"]
    return pa.table([*joined.select(names[:4]).columns, mean, joined["max"], near], names)


SUMS = {
    "_topics": SumTable(
        ("topic",),
        {"messages": "sum", "decoded": "sum", "bad": "sum", "bytes": "sum", "last_seen": "max"},
    ),
    "_late": SumTable(("topic",), {"late": "sum"}),
    "_stats": SumTable(("device", "field"), {"values": "sum", "min": "min", "max": "max", "sum": "sum"}),
    "_bins": SumTable(("device", "field", "bin"), {"count": "sum"}),
    "topic_windows": SumTable(
        ("start", "topic"),
        {
            "messages": "sum",
            "bytes": "sum",
            "first": "min",
            "last": "max",
            "first_arrival": "min",
            "last_arrival": "max",
        },
        hour="start",
        publish=_windows,
    ),
}
DERIVED = {
    "quality": DerivedTable(("_topics", "_late"), _quality),
    "top_talkers": DerivedTable(("_topics",), _talkers),
    "device_stats": DerivedTable(("_stats", "_bins"), _device_stats),
}
FLOWS: dict[str, tuple[Callable[[pa.Table], Tables], tuple[str, ...]]] = {
    "log": (partials_of_log, ("_topics", "_stats", "_bins", "topic_windows")),
    "late": (partials_of_late, ("_late",)),
}
"""What each flow adds, and to which tables."""
