"""`spark.read.format("pyrite")` on a folder: rows, filters, options, and tables without Python."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from pyrite.broker.message import Batch
from pyrite.journal.encoding import Entry
from pyrite.spark import table
from pyrite.storage import parquet, snapshot, tiering
from pyrite.storage.bulk import LogFolder
from pyrite.storage.parquet import ParquetSegment
from pyrite.storage.query import COLUMNS, DataLoss, QueryError
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.stream import StreamReader
from tests.durability.disk import CannotMount, SmallDisk
from tests.storage.samples import (
    FILES,
    START,
    append_entries,
    convert,
    no_damage,
    rows_of,
    write_segment,
    write_segments,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Rows = list[dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stream's segments."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 5)  # so that a small file has several row groups
    return tmp_path / "streams" / "default"


@pytest.fixture
def rows(folder: Path) -> Rows:
    """Write a stream of three segments, two of them Parquet; returns its rows."""
    rows = rows_of(write_segments(folder, [12, 9, 7], last_sealed=False))
    convert(folder, *sorted(path.name for path in folder.glob("*.arrow"))[:2])
    return [{name: row[name] for name in COLUMNS} for row in rows]


def shown(frame: DataFrame) -> Rows:
    """Return the rows of a DataFrame in log order."""
    return [as_read(row.asDict(True)) for row in frame.orderBy("offset").collect()]


def as_read(row: dict[str, Any]) -> dict[str, Any]:
    return {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}


def utc(rows: Rows) -> Rows:
    """Return rows with naive local times, as PySpark does."""
    return [row | {"timestamp": row["timestamp"].astimezone().replace(tzinfo=None)} for row in rows]


def test_the_source_is_found_without_registration(spark: SparkSession, folder: Path, rows: Rows) -> None:
    frame = spark.read.format("pyrite").load(str(folder.parents[1]))
    assert frame.columns == list(COLUMNS)
    assert shown(frame) == utc(rows)


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_dataframe_can_be_filtered_several_times(
    spark: SparkSession, folder: Path, rows: Rows, enabled: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        frame = spark.read.format("pyrite").load(str(folder.parents[1]))
        some, others = frame.where("offset < 5"), frame.where("offset >= 9")
        assert shown(some.union(others)) == utc(rows)[:5] + utc(rows)[9:]
        assert (some.count(), frame.count()) == (5, len(rows))
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_several_topic_filters_can_be_read_at_once(spark: SparkSession, folder: Path, rows: Rows) -> None:
    reader = spark.read.format("pyrite").option("topic", '["a", "grün/#"]')
    found = shown(reader.load(str(folder.parents[1])))
    assert {row["topic"] for row in found} == {"a", "grün/ß"}
    assert found == [row for row in utc(rows) if row["topic"] != "a/b"]


def test_a_view_of_spark_is_a_part_of_the_log(spark: SparkSession, folder: Path, rows: Rows) -> None:
    given = f"path '{folder.parents[1]}', topic 'a/#', startingOffsets '5'"
    spark.sql(f"CREATE TEMPORARY VIEW some_messages USING pyrite OPTIONS ({given})")
    expected = [row for row in utc(rows)[5:] if row["topic"] in ("a", "a/b")]
    try:
        assert shown(spark.table("some_messages")) == expected
        (counted,) = spark.sql("SELECT count(*) FROM some_messages WHERE topic = 'a'").collect()
        assert counted[0] == len([row for row in expected if row["topic"] == "a"])
    finally:
        spark.sql("DROP VIEW some_messages")


def test_a_table_of_spark_needs_its_options_again(spark: SparkSession, folder: Path, rows: Rows) -> None:
    data = folder.parents[1]
    spark.sql(f"CREATE TABLE messages USING pyrite OPTIONS (path '{data}', startingOffsets '5')")
    try:
        (counted,) = spark.sql(f"SELECT count(*) FROM messages WITH (path = '{data}')").collect()
        assert counted[0] == len(rows)
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW m USING pyrite"):
            spark.sql("SELECT count(*) FROM messages").collect()
    finally:
        spark.sql("DROP TABLE messages")


def test_a_start_time_after_the_end_is_an_error_or_the_end(
    spark: SparkSession, folder: Path, rows: Rows
) -> None:
    reader = spark.read.format("pyrite").option("path", str(folder.parents[1]))
    reader = reader.option("startingOffsets", "2200-01-01")
    assert reader.load().count() == 0
    with pytest.raises(PySparkException, match="startingOffsets: stream default ends at offset"):
        reader.option("startingOffsetsByTimestampStrategy", "error").load().count()


def test_a_wrong_address_is_an_error_soon_and_in_two_lines(spark: SparkSession) -> None:
    reader = spark.read.format("pyrite").option("broker", "flight://127.0.0.1:1").schema("topic string")
    began = time.monotonic()
    with pytest.raises(PySparkException, match=r"flight://127\.0\.0\.1:1: no answer") as wrong:
        reader.load().count()
    assert time.monotonic() - began < 30, "5 s, and Spark's own work on a busy machine"
    assert len(str(wrong.value).strip().splitlines()) <= 2


def test_range_topic_and_partitions_are_respected(spark: SparkSession, folder: Path, rows: Rows) -> None:
    reader = spark.read.format("pyrite").option("path", str(folder.parents[1]))
    part = reader.options(startingOffsets="7", endingOffsets="31", topic="a/#", minPartitions="4").load()
    assert shown(part) == [row for row in utc(rows)[7:31] if row["topic"] in ("a", "a/b")]
    assert 1 < part.rdd.getNumPartitions() <= 4, "between record batches"


def test_an_empty_range_gives_an_empty_result(spark: SparkSession, folder: Path, rows: Rows) -> None:
    reader = spark.read.format("pyrite").option("path", str(folder.parents[1]))
    assert reader.option("startingOffsets", "latest").load().count() == 0
    assert spark.read.format("pyrite").load(str(folder.parents[1])).where("topic = '#'").count() == 0


def write_payloads(folder: Path, *payloads: bytes) -> None:
    folder.mkdir(parents=True)
    writer = SegmentWriter(FILES, folder, 0)
    entries = [
        Entry(Batch(b"t", one, 0, False, None, None, None, 1, len(one)), START, None) for one in payloads
    ]
    append_entries(writer, entries, True)
    writer.close()


def test_a_schema_decodes_payloads(spark: SparkSession, folder: Path) -> None:
    payloads = [json.dumps({"device": f"d{number}", "temp": number / 2}).encode() for number in range(100)]
    payloads[50:52] = [b'{"device": "broken"', b'{"device": "warm", "temp": "hot"}']
    write_payloads(folder, *payloads)
    reader = (
        spark.read.format("pyrite").option("path", str(folder.parents[1])).option("payloadFormat", "json")
    )
    frame = reader.schema("offset long, device string, temp double, _corrupt string").load()
    found = frame.orderBy("offset").collect()
    assert len(found) == 100
    assert [row._corrupt for row in found if row._corrupt] == [one.decode() for one in payloads[50:52]]
    assert (found[49].device, found[49].temp, found[51].device, found[51].temp) == ("d49", 24.5, "warm", None)
    assert frame.where("temp > 48").count() == 3
    assert frame.where("offset >= 98 and temp is not null").select("device").collect()[0].device == "d98"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "1"}, "unknown option 'startingoffset'; did you mean startingOffsets?"),
        ({"maxMessagesPerTrigger": "many"}, "option maxMessagesPerTrigger: expected a number"),
        ({"stream": "other"}, "there is no stream 'other'; there are: default"),
    ],
)
def test_wrong_options_are_refused_before_any_job_starts(
    spark: SparkSession, folder: Path, rows: Rows, options: dict[str, str], said: str
) -> None:
    reader = spark.read.format("pyrite").option("path", str(folder.parents[1])).options(**options)
    with pytest.raises(PySparkException) as wrong:
        reader.load()
    assert said in str(wrong.value)
    assert len(str(wrong.value).strip().splitlines()) <= 2, "the error itself, and nothing else"


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({}, "temp double", "option payloadFormat"),
        ({"stream": "other"}, "topic string", "there is no stream 'other'; there are: default"),
        ({"startingOffsets": "1000"}, None, "option startingOffsets: stream default ends at offset"),
        (
            {"startingOffsets": "latest", "endingOffsets": "5"},
            None,
            "option endingOffsets: 5 is offset 5, before startingOffsets (latest:",
        ),
    ],
)
def test_an_offset_beyond_the_log_is_refused_when_it_is_read(
    spark: SparkSession, folder: Path, rows: Rows, options: dict[str, str], schema: str | None, said: str
) -> None:
    reader = spark.read.format("pyrite").option("path", str(folder.parents[1])).options(**options)
    with pytest.raises(PySparkException) as wrong:
        (reader.schema(schema) if schema else reader).load().count()
    assert said in str(wrong.value)


def test_messages_dropped_by_retention_are_an_error_unless_allowed(
    spark: SparkSession, folder: Path, rows: Rows
) -> None:
    first = sorted(folder.glob("*.parquet"))[0]
    kept = ParquetSegment("default", first).end()
    tiering.remove(FILES, first)
    reader = spark.read.format("pyrite").option("path", str(folder.parents[1]))
    assert shown(reader.load()) == utc(rows)[kept:], "from the earliest that is kept, nothing is missing"
    with pytest.raises(PySparkException, match=f"offsets 0 to {kept - 1} are not kept any longer"):
        reader.option("startingOffsets", "0").load().count()
    reader.options(startingOffsets="0", failOnDataLoss="false")
    assert shown(reader.load()) == utc(rows)[kept:]


def test_a_table_has_the_rows_that_the_source_reads(spark: SparkSession, folder: Path, rows: Rows) -> None:
    history = table(spark, path=folder.parents[1])
    assert history.columns == list(COLUMNS)
    assert len(history.inputFiles()) == 3, "two sealed segments, and what is not Parquet yet"
    assert shown(history) == utc(rows)
    assert shown(history.where("topic = 'a/b' and offset > 20")) == [
        row for row in utc(rows)[21:] if row["topic"] == "a/b"
    ]


def test_a_table_is_read_without_python_workers(spark: SparkSession, folder: Path, rows: Rows) -> None:
    path = folder.parents[1]
    history = table(spark, path=path)
    assert "BatchScan" not in plan_of(history), "though the end is not in Parquet yet"
    assert "PushedFilters: [IsNotNull(offset), GreaterThan(offset,25)]" in plan_of(
        history.where("offset > 25")
    )
    convert(folder)
    history = table(spark, path=path)
    assert len(history.inputFiles()) == 3, "nothing had to be copied"
    assert shown(history) == utc(rows)


@pytest.mark.parametrize("limit", ["MAX_COPIED_MESSAGES", "MAX_COPIED_BYTES"])
def test_many_messages_that_are_not_parquet_are_read_by_the_source(
    spark: SparkSession, folder: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(snapshot, limit, 1)
    history = table(spark, path=folder.parents[1])
    assert len(history.inputFiles()) == 2, "the sealed segments are read by Spark itself"
    assert "BatchScan pyrite" in plan_of(history)
    assert shown(history) == utc(rows)
    for sealed in folder.glob("*.parquet"):
        tiering.remove(FILES, sealed)
    rest = table(spark, path=folder.parents[1])
    assert rest.inputFiles() == []
    assert shown(rest) == utc(rows)[-rest.count() :]
    assert shown(history) == utc(rows), "what was linked is there for as long as it is used"


def test_a_table_works_without_any_parquet_segment(spark: SparkSession, folder: Path) -> None:
    folder.mkdir(parents=True)
    nothing = table(spark, path=folder.parents[1])
    assert (nothing.columns, nothing.count()) == (list(COLUMNS), 0)
    rows = rows_of(write_segments(folder, [12, 7], last_sealed=False))
    history = table(spark, path=folder.parents[1])
    assert shown(history) == utc([{name: row[name] for name in COLUMNS} for row in rows])
    assert nothing.count() == 0


def test_damage_in_the_newest_messages_is_an_error_when_a_table_is_made(
    spark: SparkSession, folder: Path, rows: Rows
) -> None:
    (end,) = folder.glob("*.arrow")
    data = bytearray(end.read_bytes())
    data[len(data) // 2] ^= 1
    end.write_bytes(data)
    with pytest.raises(DataLoss, match=re.escape(end.name)):
        table(spark, path=folder.parents[1])
    assert not list(folder.parents[1].glob("snapshots/*/*/*")), "nothing is left of it"


def plan_of(frame: DataFrame) -> str:
    """Return Spark's execution plan."""
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    return plan


def test_a_folder_without_a_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    said = f"option path: no log in {tmp_path}"
    with pytest.raises(PySparkException, match=re.escape(said)):
        spark.read.format("pyrite").load(str(tmp_path)).count()
    with pytest.raises(QueryError, match=re.escape(said)):
        table(spark, path=tmp_path)


def test_a_folder_name_can_contain_any_character(spark: SparkSession, folder: Path, rows: Rows) -> None:
    data = folder.parents[2] / "data [2026] {a,b}*?"
    folder.parents[1].rename(data)
    assert shown(table(spark, path=data)) == utc(rows)


def test_a_table_survives_merging_and_retention(spark: SparkSession, folder: Path, rows: Rows) -> None:
    history = table(spark, path=folder.parents[1])
    convert(folder)
    segments = [one for one in StreamReader(folder).segments() if isinstance(one, ParquetSegment)]
    assert len(segments) == 3
    merged = tiering.merge(FILES, segments, "zstd", no_damage)
    assert merged is not None
    more = write_segment(folder, len(rows), 5, sealed=False)
    assert shown(history) == utc(rows)
    later = table(spark, path=folder.parents[1])
    assert shown(later) == utc(rows) + utc([{name: row[name] for name in COLUMNS} for row in rows_of(more)])
    tiering.remove(FILES, merged)
    for path in folder.glob("*.arrow"):
        tiering.remove(FILES, path)
    assert later.count() == len(rows) + sum(batch.num_rows for batch in more)


def test_a_snapshot_is_complete_while_segments_are_converted_and_merged(folder: Path) -> None:
    rows = rows_of(write_segments(folder, [5] * 16, last_sealed=False))
    log = LogFolder(folder.parents[1])

    def upkeep() -> None:
        for name in sorted(path.name for path in folder.glob("*.arrow"))[:-1]:
            convert(folder, name)
            segments = [one for one in StreamReader(folder).segments() if isinstance(one, ParquetSegment)]
            if len(segments) > 2:
                tiering.merge(FILES, segments, "zstd", no_damage)

    taken = 0
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(upkeep)
        while not done.done() or not taken:
            one = snapshot.take(log, "default", len(rows))
            assert one is not None
            offsets = [offset for file in one.files for offset in pq.read_table(file)["offset"].to_pylist()]
            assert offsets == [row["offset"] for row in rows]
            one.remove()
            taken += 1
        done.result()
    assert taken > 3


def test_snapshots_of_a_killed_process_are_removed(folder: Path, rows: Rows) -> None:
    data = folder.parents[1]
    left = data / "snapshots" / "spark-killed"
    left.mkdir(parents=True)
    (left / "lock").touch()
    taken = snapshot.take(LogFolder(data), "default", len(rows))
    assert taken is not None
    assert len(taken.files) == 3
    assert list((data / "snapshots").iterdir()) == [taken.folder.parent]


def test_files_are_kept_while_spark_may_read_them(spark: SparkSession, folder: Path, rows: Rows) -> None:
    data = folder.parents[1]
    history = table(spark, path=data)
    made_of_it = history.where("offset > 5").select("topic")
    (kept,) = {Path(urlsplit(file).path).parent for file in history.inputFiles()}
    del history

    def is_gone() -> bool:
        gc.collect()
        assert spark._jvm is not None
        spark._jvm.java.lang.System.gc()
        table(spark, path=data)
        return not kept.exists()

    assert not is_gone()
    assert made_of_it.count() == len(rows) - 6
    del made_of_it
    wait_until(is_gone)


def test_unused_copies_are_removed(
    spark: SparkSession, folder: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folder.parents[1]
    used = table(spark, path=data)
    (copy,) = copies(data)
    monkeypatch.setattr(sys.modules["pyrite.spark.table"], "MAX_COPIES", 3 * copy.stat().st_size)
    for _ in range(20):
        table(spark, path=data)

    def are_few() -> bool:
        table(spark, path=data)
        return len(copies(data)) < 10

    wait_until(are_few, "Py4J has told Java what Python has let go of")
    assert shown(used) == utc(rows)


def copies(data: Path) -> list[Path]:
    """Return the size of the copies made for messages that were not Parquet yet."""
    return list(data.glob(f"snapshots/*/*/{snapshot.COPY}"))


@pytest.fixture
def connected(spark: SparkSession) -> Iterator[ConnectSession]:
    """A Spark Connect session with the existing Spark."""
    assert spark._jvm is not None
    service = spark._jvm.org.apache.spark.sql.connect.service.SparkConnectService
    service.start(spark._jsc.sc())
    try:
        port = spark.sparkContext.getConf().get("spark.connect.grpc.binding.port")
        session = ConnectSession.builder.remote(f"sc://127.0.0.1:{port}").create()
        yield session
        session.stop()
    finally:
        service.stop(spark._jvm.scala.Option.empty(), spark._jvm.scala.Option.empty())


def test_a_table_works_in_spark_connect(connected: ConnectSession, folder: Path, rows: Rows) -> None:
    history = table(cast(SparkSession, connected), path=folder.parents[1])
    assert shown(history) == utc(rows)
    assert not (folder.parents[1] / "snapshots").exists()


def test_without_hard_links_everything_is_read_through_python(
    spark: SparkSession, folder: Path, rows: Rows
) -> None:
    (folder.parents[1] / "snapshots").touch()  # as if the folder were read-only
    history = table(spark, path=folder.parents[1])
    assert history.inputFiles() == []
    assert shown(history) == utc(rows)


def test_without_disk_space_for_a_copy_everything_is_read_through_python(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(SmallDisk(tmp_path))
        except CannotMount as why:
            pytest.skip(str(why))
        data = disk.here / "data"
        write_payloads(data / "streams" / "default", *(os.urandom(1000) for _ in range(500)))
        (data / "snapshots").mkdir()
        disk.fill(leave=100_000)
        history = table(spark, path=data)
        assert "No space left on device" in caplog.text
        assert history.inputFiles() == []
        assert history.count() == 500
        assert not list(data.glob("snapshots/*/*/*")), "nothing is left of the copy"
