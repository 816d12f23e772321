"""`spark.readStream.format("pyrite")`: micro-batches, checkpoints, limits, and lost messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyrite.client import BlockingClient
from pyrite.storage import tiering
from pyrite.storage.parquet import ParquetSegment
from tests.spark.conftest import Broker
from tests.storage.samples import FILES, convert, rows_of, write_segment
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


class Log:
    """A stream on disk that grows, and queries that record which offsets they read."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.data = folder / "data"
        self.folder = self.data / "streams" / "default"
        self.checkpoint = folder / "checkpoint"
        self.end = 0
        self.read: list[list[int]] = []
        """The offsets read by each micro-batch."""

    def grow(self) -> None:
        """Add a segment."""
        self.end += len(rows_of(write_segment(self.folder, self.end, 10)))

    def start(self, **options: str) -> StreamingQuery:
        """Run a query over the available messages."""

        def note(frame: Any, _: int) -> None:
            self.read.append(sorted(row.offset for row in frame.select("offset").collect()))

        given = {"path": str(self.data), "startingOffsets": "earliest"} | options
        frame = self.spark.readStream.format("pyrite").options(**given).load()
        writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True).start()

    def run(self, **options: str) -> StreamingQuery:
        """Run a query over the available messages to its end."""
        query = self.start(**options)
        assert query.awaitTermination(60)
        return query

    @property
    def offsets(self) -> list[int]:
        return [offset for batch in self.read for offset in batch]


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Log:
    log = Log(spark, tmp_path)
    log.grow()
    log.grow()
    return log


def test_available_now_respects_limits_and_continues_from_its_checkpoint(log: Log) -> None:
    query = log.run(maxMessagesPerTrigger="50")
    assert log.offsets == list(range(log.end))
    assert {len(batch) for batch in log.read[:-1]} == {50}
    progress = query.recentProgress
    assert [each.numInputRows for each in progress] == [len(batch) for batch in log.read]
    assert progress[0].sources[0].endOffset == '{"offset": 50}'
    assert progress[0].sources[0].latestOffset == f'{{"offset": {log.end}}}'
    convert(log.folder)  # as retention does
    before = log.end
    log.read.clear()
    log.grow()
    log.run()
    assert log.offsets == list(range(before, log.end))


def test_a_micro_batch_waits_for_messages_or_time(log: Log) -> None:
    """Two queries wait for 1,000 messages: one for an hour at most, the other for a second."""
    batches: dict[str, list[int]] = {"1h": [], "1s": []}
    queries = []
    for delay, found in batches.items():

        def note(frame: Any, _: int, found: list[int] = found) -> None:
            found.extend(row.offset for row in frame.select("offset").collect())

        given = {"path": str(log.data), "startingOffsets": "earliest", "maxTriggerDelay": delay}
        frame = log.spark.readStream.format("pyrite").options(**given, minOffsetsPerTrigger="1000").load()
        queries.append(frame.writeStream.foreachBatch(note).start())
    first = log.end
    try:
        wait_until(lambda: all(len(found) == first for found in batches.values()), "both began at once", 120)
        log.grow()
        wait_until(lambda: len(batches["1s"]) == log.end, "a second has passed", 120)
        assert len(batches["1h"]) == first
    finally:
        for query in queries:
            query.stop()


def test_the_broker_shows_a_named_query_with_its_lag(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    name = topic[-12:]
    broker.publish(topic, *(f"{number}" for number in range(5)))
    frame = spark.readStream.format("pyrite").option("broker", broker.url).option("readerName", name)
    frame = frame.option("startingOffsets", "earliest").option("topic", topic)
    writer = frame.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.start()

    def lag() -> int:
        """Return the lag of the query; -1 if the broker does not show it."""
        answer = httpx.get(f"{broker.http}/api/v1/readers").json()
        found = [one["lag"] for one in answer["readers"] if one["name"] == name]
        return found[0] if found else -1

    try:
        wait_until(lambda: lag() == 0, "the query has read everything", 120)
        with (
            BlockingClient(broker.mqtt) as client,
            client.subscribe(f"$SYS/broker/log/readers/{name}/lag") as said,
        ):
            assert next(message for message in said if message.payload == b"0")
            query.stop()
            broker.publish(topic, "more")
            assert next(message for message in said if message.payload == b"1")
        assert lag() == 1
    finally:
        query.stop()


def test_a_limit_in_bytes_is_respected(log: Log) -> None:
    size = sum(path.stat().st_size for path in log.folder.glob("*.arrow"))
    log.run(maxBytesPerTrigger=str(size // 2))
    assert log.offsets == list(range(log.end))
    assert len(log.read) > 1


def test_the_option_topic_filters_a_stream(log: Log) -> None:
    log.run(topic="a/+", startingOffsets="3")
    assert log.offsets
    assert set(log.offsets) < set(range(3, log.end))


def drop_what_is_unread(log: Log) -> int:
    """Let a query read everything, add messages, and let retention drop some of them."""
    log.run()
    log.read.clear()
    log.grow()
    log.grow()
    convert(log.folder)
    for path in sorted(log.folder.glob("*.parquet"))[:3]:
        kept = ParquetSegment("default", path).end()
        tiering.remove(FILES, path)
    return kept


def begin_anew(log: Log) -> int:
    """Let a query read everything, then replace the log by one with fewer messages."""
    log.run()
    log.read.clear()
    for path in log.folder.iterdir():
        path.unlink()
    log.end = 0
    log.grow()
    return 0


@pytest.mark.parametrize(
    ("happens", "said"), [(drop_what_is_unread, "were dropped by retention"), (begin_anew, "was read up to")]
)
def test_messages_lost_before_they_were_read_are_an_error_or_a_warning(
    log: Log, spark_log: Path, happens: Callable[[Log], int], said: str
) -> None:
    kept = happens(log)
    with pytest.raises(PySparkException, match=said):
        log.run()
    assert log.read == []
    log.run(failOnDataLoss="false")
    assert log.offsets == list(range(kept, log.end))
    assert [
        line for line in spark_log.read_text().splitlines() if line.startswith("data loss") and said in line
    ]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_stream_cannot_start_beyond_the_end_of_the_log(log: Log, fail: str) -> None:
    said = f"option startingOffsets: stream default ends at offset {log.end}, before offset 1000"
    with pytest.raises(PySparkException, match=said):
        log.run(startingOffsets="1000", failOnDataLoss=fail)
    assert log.read == []
    log.run(startingOffsets=str(log.end))
    assert log.offsets == []


def test_ending_offsets_are_refused_for_a_stream(log: Log) -> None:
    with pytest.raises(PySparkException, match=r"option endingOffsets works with spark\.read"):
        log.run(endingOffsets="latest")
