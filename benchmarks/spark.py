"""Spark on the log, against what Spark can do at most: `python -m benchmarks.spark [--messages 5000000]`.

A scan through the source is compared with a source that has its record batches ready, `pyrite.spark.table`
with Spark's own scan of the same Parquet. In local[2], with 64-byte payloads; medians of a few runs, after
one that does not count. What is compared takes turns, and the ratio is the median of what each turn gave.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

from pyrite.broker.message import Batch
from pyrite.client import BlockingClient
from pyrite.journal.encoding import Entry, build
from pyrite.spark import session, table
from pyrite.storage import tiering
from pyrite.storage.bulk import LogFolder
from pyrite.storage.files import Files
from pyrite.storage.frames import Encoded, encode
from pyrite.storage.query import SCHEMA, Query
from pyrite.storage.segment_writer import SegmentWriter

SEGMENT = 1_000_000
"""Messages in a segment."""
TOPICS = 16
BATCH = 10_000
"""Messages in a record batch: what a busy publisher's group commit has."""
SIZE = 64


def fill(data: Path, messages: int) -> None:
    """Write a log: all of it in Parquet, but the last segment, of which half a million messages are left."""
    folder = data / "streams" / "default"
    folder.mkdir(parents=True)
    files = Files()
    rest = min(SEGMENT, messages) // 2
    base = 0
    while base < messages:
        writer = SegmentWriter(files, folder, base)
        stop = min(messages - rest, base + SEGMENT) if base < messages - rest else messages
        while writer.next_offset < stop:
            count = min(BATCH, stop - writer.next_offset) // TOPICS
            now = time.time_ns() // 1000
            entries = [
                Entry(
                    Batch(
                        f"bench/{topic}".encode(),
                        os.urandom(count * SIZE),
                        1,
                        False,
                        None,
                        None,
                        "bench",
                        count,
                        SIZE,
                    ),
                    now,
                    None,
                )
                for topic in range(TOPICS)
            ]
            rows = build(entries, writer.next_offset)
            writer.append([Encoded(encode(rows), writer.next_offset, rows.num_rows, now, now)], True)
        if stop == messages:
            writer.close()
        else:
            writer.seal()
            tiering.to_parquet(files, "default", folder / f"{base:020}.arrow", "zstd", print)
        base = stop


class Ready(DataSource):
    """A source that has everything ready: a record batch of the log, again and again."""

    @classmethod
    def name(cls) -> str:
        """Return what `format` is called with."""
        return "ready"

    def schema(self) -> StructType:
        """Return the columns of the log."""
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads."""
        return _Ready(Path(self.options["path"]), int(self.options["messages"]))


class _Ready(DataSourceReader):
    def __init__(self, data: Path, messages: int) -> None:
        with contextlib.closing(LogFolder(data).read(Query())) as batches:  # type: ignore[type-var]
            self._batch: pa.RecordBatch = next(batches)
        self._messages = messages

    def partitions(self) -> list[InputPartition]:
        parts = 4
        return [InputPartition(self._messages // parts) for _ in range(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        while left > 0:
            batch = self._batch.slice(0, left)
            yield batch
            left -= batch.num_rows


@contextlib.contextmanager
def serving(data: Path) -> Iterator[tuple[str, str]]:
    """Run a broker, and tell where it listens: for MQTT, and for Flight."""
    command = [sys.executable, "-m", "pyrite", "serve", "--data", str(data)]
    command += ["--listen", "mqtt://127.0.0.1:0", "--listen", "flight://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [line.strip() for line in iter(process.stdout.readline, "pyrite ready\n")]
            mqtt, flight = (line.split()[-1] for line in lines if line.startswith("listening on "))
            yield mqtt, flight
        finally:
            process.terminate()


def taken(runs: int, *calls: Callable[[], object]) -> list[list[float]]:
    """Return the seconds that each call took in each run, after one that is not counted; they take turns."""
    for call in calls:
        call()
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        for call, times in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return seconds


def rate(messages: int, times: Sequence[float]) -> float:
    """Return messages a second."""
    return messages / statistics.median(times)


def scan(frame: DataFrame) -> None:
    """Read everything, and do nothing with it."""
    frame.write.format("noop").mode("overwrite").save()


def stream(spark: SparkSession, **options: str) -> None:
    """Read everything as a stream that ends with what is there."""
    frame = spark.readStream.format("pyrite").options(startingOffsets="earliest", **options).load()
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()


def publish(spark: SparkSession, broker: str, messages: int) -> None:
    """Publish a DataFrame."""
    rows = spark.range(messages, numPartitions=2)
    topic = F.concat(F.lit("sink/"), (F.col("id") % TOPICS).cast("string")).alias("topic")
    payload = F.rpad(F.col("id").cast("string"), SIZE, " ").alias("payload")
    rows.select(topic, payload).write.format("pyrite").option("broker", broker).mode("append").save()


def delays(spark: SparkSession, broker: str, mqtt: str, count: int) -> list[float]:
    """Return how long it takes from publishing a message until a running query has given it out."""
    seen: dict[bytes, float] = {}

    def note(frame: DataFrame, _: int) -> None:
        rows = frame.collect()
        seen.update({bytes(row.payload): time.perf_counter() for row in rows})

    frame = spark.readStream.format("pyrite").options(broker=broker, topic="delay/#").load()
    query = frame.select("payload").writeStream.foreachBatch(note).start()
    query.processAllAvailable()  # it has begun: what is published now is new to it
    seconds = []
    try:
        with BlockingClient(mqtt) as client:
            for number in range(count + 5):
                payload = b"%d" % number
                start = time.perf_counter()
                client.publish("delay/a", payload, qos=1)
                while payload not in seen and time.perf_counter() < start + 60:
                    time.sleep(0.001)
                seconds.append(seen[payload] - start)
    finally:
        query.stop()
    return seconds[5:]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    messages, runs = options.messages, options.runs
    spark = session("local[2]")
    spark.dataSource.register(Ready)
    found: list[tuple[str, float, float | None, str]] = []
    quiet = Console(stderr=True)

    def note(name: str, speed: float, ratio: float | None = None, wanted: str = "") -> None:
        found.append((name, speed, ratio, wanted))
        quiet.print(f"{name}: {speed:,.0f}/s")

    with tempfile.TemporaryDirectory(prefix="pyrite-bench-") as folder:
        data = Path(folder) / "data"
        fill(data, messages)
        source = spark.read.format("pyrite").load(str(data))
        ready = spark.read.format("ready").options(path=str(data), messages=str(messages)).load()
        files = str(data / "streams" / "default" / "*.parquet")
        parquet = spark.read.schema(from_arrow_schema(SCHEMA))
        in_parquet = parquet.parquet(files).count()
        least, ours = taken(runs, lambda: scan(ready), lambda: scan(source))
        ratio = statistics.median(a / b for a, b in zip(least, ours, strict=True))
        note("a source with its batches ready", rate(messages, least))
        note("format('pyrite'), a batch", rate(messages, ours), ratio, "0.8")
        # Both from the list of files on, for that is part of what `table` does.
        least, ours = taken(runs, lambda: scan(parquet.parquet(files)), lambda: scan(table(spark, path=data)))
        share = in_parquet / messages
        ratio = statistics.median(a / b / share for a, b in zip(least, ours, strict=True))
        note("Spark's own Parquet scan", rate(in_parquet, least))
        note("pyrite.spark.table", rate(messages, ours), ratio, "0.8")
        (ours,) = taken(runs, lambda: stream(spark, path=str(data)))
        streamed = rate(messages, ours)
        note("format('pyrite'), AvailableNow, no-op sink", streamed, streamed / 1e6, "1")
        with serving(data / "broker") as (mqtt, flight):
            count = messages // 5
            (ours,) = taken(runs, lambda: publish(spark, flight, count))
            sunk = rate(count, ours)
            note("the sink, into the log", sunk, sunk / 300_000, "1")
            median = statistics.median(delays(spark, flight, mqtt, 20))
    shown = Table("64-byte payloads, local[2]", "messages/s", "ratio", "wanted")
    for name, speed, reached, wanted in found:
        shown.add_row(name, f"{speed:,.0f}", "" if reached is None else f"{reached:.2f}", wanted)
    Console().print(shown)
    print(f"published to visible in a running query, median: {median:.3f} s (wanted: under 1.5 s)")
    spark.stop()


if __name__ == "__main__":
    main()
