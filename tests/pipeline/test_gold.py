"""Gold tables: micro-batches merged into files, without Spark."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from pyrite.pipeline.gold import GoldFiles, GoldPart, aggregate
from pyrite.pipeline.tables import gold_files

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
        "bytes": pa.int64(),
        "result": pa.string(),
        "event_time": pa.timestamp("us", "UTC"),
        "device": pa.string(),
        "numbers": pa.list_(pa.struct({"field": pa.string(), "value": pa.float64()})),
    }
)


def message(
    seconds: float, value: float | None = 1.0, result: str = "decoded", **other: Any
) -> dict[str, Any]:
    time = START + timedelta(seconds=seconds)
    numbers = [{"field": "t", "value": value}] if result == "decoded" else []
    row = {"topic": "d/1", "timestamp": time, "event_time": time, "bytes": 4, "device": "1"}
    return row | {"result": result, "numbers": numbers} | other


def add(folder: Path, batch: int, *rows: dict[str, Any], query: str = "q", flow: str = "log") -> None:
    """Merge a micro-batch of two tasks."""
    schema = SCHEMA if flow == "log" else None
    halves = [rows[::2], rows[1::2]]
    batches = [pa.RecordBatch.from_pylist(list(half), schema) for half in halves if half]
    parts = [GoldPart(query, aggregate(flow, [each])) for each in batches]
    GoldFiles(fs.LocalFileSystem(), str(folder)).merge(flow, query, batch, parts)


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    files = gold_files(folder, name)
    assert {path.name for path in (folder / name).iterdir()} == {path.name for path in files}, "no leftovers"
    return pa.concat_tables(map(pq.read_table, files)).to_pylist() if files else []


def test_batches_are_added_to_the_rows_of_their_topics(tmp_path: Path) -> None:
    add(tmp_path, 0, message(0), message(1, result="bad"), message(2, topic="x", result="none"))
    add(tmp_path, 1, message(3))
    add(tmp_path, 0, {"topic": "d/1", "late": 2}, {"topic": "d/1", "late": 1}, flow="late")
    found = {row.pop("topic"): list(row.values()) for row in rows_of(tmp_path, "quality")}
    assert found == {"d/1": [3, 2, 1, 0, 3], "x": [1, 0, 0, 1, 0]}
    talkers = [(row["topic"], row["messages"], row["bytes"]) for row in rows_of(tmp_path, "top_talkers")]
    assert talkers == [("d/1", 3, 12), ("x", 1, 4)]


def test_a_batch_that_spark_repeats_is_counted_once(tmp_path: Path) -> None:
    for _ in range(2):
        add(tmp_path, 0, message(0))
        add(tmp_path, 1, message(1))
    add(tmp_path, 0, message(0))
    (row,) = rows_of(tmp_path, "quality")
    assert row["messages"] == 2


def test_a_new_query_starts_from_nothing(tmp_path: Path) -> None:
    add(tmp_path, 0, message(0), message(1, topic="gone"))
    add(tmp_path, 0, {"topic": "d/1", "late": 2}, flow="late")
    add(tmp_path, 0, message(0), query="after a full refresh")
    (row,) = rows_of(tmp_path, "quality")
    assert (row["topic"], row["messages"], row["late"]) == ("d/1", 1, 2)


def test_a_late_message_is_added_to_its_window(tmp_path: Path) -> None:
    add(tmp_path, 0, message(1), message(5), message(11))
    late = START + timedelta(days=1)
    add(tmp_path, 1, message(8, timestamp=late), message(4000))
    windows = {row["start"]: row for row in rows_of(tmp_path, "topic_windows")}
    assert [windows[key]["messages"] for key in sorted(windows)] == [3, 1, 1]
    first = windows[START]
    assert (first["end"], first["last_arrival"]) == (START + timedelta(seconds=10), late)
    assert (first["messages_per_second"], first["inter_arrival"]) == (0.3, 3.5)
    assert len(gold_files(tmp_path, "topic_windows")) == 2, "a file for each hour"


@pytest.mark.parametrize("scale", [1.0, -50.0, 1e-6, 1e9])
def test_statistics_of_devices_are_exact_and_p95_within_one_percent(tmp_path: Path, scale: float) -> None:
    chance = random.Random(1)
    values = [chance.gauss(3, 1) * scale for _ in range(500)]
    for batch in range(5):
        add(tmp_path, batch, *(message(at, value) for at, value in enumerate(values[batch * 100 :][:100])))
    (row,) = rows_of(tmp_path, "device_stats")
    ordered = sorted(values)
    assert (row["device"], row["field"], row["values"]) == ("1", "t", 500)
    assert (row["min"], row["max"]) == (ordered[0], ordered[-1])
    assert row["mean"] == pytest.approx(sum(values) / 500)
    assert row["p95"] == pytest.approx(ordered[474], rel=0.0101)


def test_values_that_are_no_numbers_are_not_counted(tmp_path: Path) -> None:
    add(
        tmp_path, 0, *(message(at, value) for at, value in enumerate((0.0, None, float("nan"), float("inf"))))
    )
    (row,) = rows_of(tmp_path, "device_stats")
    assert (row["values"], row["mean"], row["p95"]) == (1, 0.0, 0.0)
