"""`format("pyrite")` as a sink: exactly once, or not at all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyrite.client import BlockingClient
from pyrite.client.log import FlightLog, read_log
from tests.spark.conftest import Broker
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def published(broker: Broker, topic: str) -> list[str]:
    """Return the messages of a topic in the log, in order."""
    table = read_log(broker.url, topic=topic, columns=["payload"])
    return [payload.decode() for payload in table.column("payload").to_pylist()]


def numbers(spark: SparkSession, count: int, parts: int = 2) -> DataFrame:
    return spark.range(count, numPartitions=parts).select(F.col("id").cast("string").alias("payload"))


def save(frame: DataFrame, broker: Broker, **options: str) -> None:
    frame.write.format("pyrite").option("broker", broker.url).options(**options).mode("append").save()


def test_a_million_messages_are_written_and_read(spark: SparkSession, broker: Broker, topic: str) -> None:
    count = 1_000_000
    text = F.concat(F.lit(f"{topic}/"), (F.col("id") % 16).cast("string")).alias("topic")
    frame = spark.range(count, numPartitions=2)
    save(frame.select(text, F.col("id").cast("string").alias("payload")), broker)
    read = spark.read.format("pyrite").options(broker=broker.url, topic=f"{topic}/#").load()
    value = F.col("payload").cast("string").cast("long")
    (found,) = read.select(F.count("*").alias("count"), F.sum(value).alias("sum")).collect()
    assert (found["count"], found["sum"]) == (count, count * (count - 1) // 2)
    assert read.where(f"topic = '{topic}/3'").count() == count // 16


def test_subscribers_receive_written_rows_with_all_properties(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    frame = spark.sql(
        f"""select '{topic}' topic, binary('hello') payload, 1 qos, true retain, 'text/plain' content_type,
        map('a', '1') user_properties, 3600 message_expiry"""
    )
    with BlockingClient(broker.mqtt) as client:
        messages = client.subscribe(topic, qos=1)
        save(frame, broker)
        message = next(iter(messages))
        assert (message.topic, message.payload, message.qos) == (topic, b"hello", 1)
        assert message.properties["content_type"] == "text/plain"
        assert list(message.properties["user_property"]) == [("a", "1")]
    with BlockingClient(broker.mqtt) as client:
        assert next(iter(client.subscribe(topic))).retain
    (row,) = read_log(broker.url, topic=topic).to_pylist()
    assert (row["qos"], row["retain"], row["message_expiry"]) == (1, True, 3600)


def test_invalid_rows_and_schemas_are_refused(spark: SparkSession, broker: Broker, topic: str) -> None:
    for frame, options, said in [
        (numbers(spark, 1), {}, "add a column topic or the option topic"),
        (numbers(spark, 1), {"topic": "a/#"}, "a topic name must not contain wildcards"),
        (numbers(spark, 1), {"topic": topic, "color": "red"}, "unknown option 'color'"),
        (spark.range(1), {"topic": topic}, "a message has no column 'id'"),
        (
            spark.sql("select 'x' payload, array(named_struct('a', '1')) user_properties"),
            {"topic": topic},
            "the column user_properties has type array<struct<a:string>>, expected map<string,string> or",
        ),
        (spark.sql("select 'x' payload, 300 qos"), {"topic": topic}, "the column qos: "),
        (
            spark.sql("select 'x' payload, -5 message_expiry"),
            {"topic": topic},
            "column 'message_expiry': exp",
        ),
    ]:
        with pytest.raises(PySparkException) as wrong:
            save(frame, broker, **options)
        assert said in str(wrong.value)
    writer = numbers(spark, 1).write.format("pyrite").options(broker=broker.url, topic=topic)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.mode("overwrite").save()
    assert published(broker, topic) == []


@pytest.mark.parametrize(
    "payload", ["if(id = 900, raise_error('broken'), string(id))", "if(id = 900, null, string(id))"]
)
def test_a_write_that_fails_leaves_nothing_behind(
    spark: SparkSession, broker: Broker, topic: str, payload: str
) -> None:
    with pytest.raises(PySparkException):
        save(spark.range(1000, numPartitions=2).selectExpr(f"{payload} as payload"), broker, topic=topic)
    with pytest.raises(PySparkException, match="expected a topic name without wildcards"):
        save(numbers(spark, 5).selectExpr("'a/#' as topic", "payload"), broker)
    assert published(broker, topic) == []
    wait_until(lambda: broker.staged() == [], seconds=60)


class Copy:
    """A query that copies one topic to another."""

    def __init__(self, spark: SparkSession, broker: Broker, topic: str, checkpoint: Path) -> None:
        self.broker = broker
        self.source, self.target = f"{topic}/in", f"{topic}/out"
        self._checkpoint = checkpoint
        with FlightLog(broker.url) as log:
            start = log.bounds("default").end
        self._frame = (
            spark.readStream.format("pyrite")
            .options(broker=broker.url, topic=self.source, startingOffsets=str(start))
            .option("maxMessagesPerTrigger", "4000")
            .load()
            .select(F.lit(self.target).alias("topic"), "payload")
        )

    def start(self, payload: str = "payload", once: bool = True, parts: int = 0) -> StreamingQuery:
        frame = self._frame.repartition(parts) if parts else self._frame
        frame = frame.selectExpr("topic", f"{payload} as payload")
        writer = frame.writeStream.format("pyrite").option("broker", self.broker.url)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self) -> None:
        assert self.start().awaitTermination(100)

    def forget_last_commit(self) -> None:
        """Make Spark repeat its last micro-batch, as if it had died before recording it."""
        last = max((self._checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)

    @property
    def copied(self) -> list[str]:
        return published(self.broker, self.target)


@pytest.fixture
def copy(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Copy:
    return Copy(spark, broker, topic, tmp_path / "checkpoint")


def test_a_repeated_micro_batch_is_published_once(spark: SparkSession, copy: Copy) -> None:
    save(numbers(spark, 10_000), copy.broker, topic=copy.source)
    copy.run()
    expected = [str(number) for number in range(10_000)]
    assert sorted(copy.copied) == sorted(expected)
    copy.forget_last_commit()
    copy.run()
    assert sorted(copy.copied) == sorted(expected)
    save(numbers(spark, 1), copy.broker, topic=copy.source)
    copy.run()
    assert Counter(copy.copied) == Counter(expected) + Counter(["0"])
    wait_until(lambda: copy.broker.staged() == [], seconds=60)


def test_a_micro_batch_that_failed_half_way_is_completed_later(
    spark: SparkSession, copy: Copy, tmp_path: Path
) -> None:
    waits, go_on = tmp_path / "waits", tmp_path / "go_on"
    os.mkfifo(go_on)

    def break_when_told(payload: bytes) -> bytes:
        if payload == b"4500":
            waits.touch()
            go_on.open().close()  # a pipe, which opens when the test opens the other end
            raise ValueError("broken")
        return payload

    def others_are_done() -> bool:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(one) for one in tracker.getActiveStageIds()]
        return any(one is not None and (one.numTasks, one.numCompletedTasks) == (3, 2) for one in stages)

    save(numbers(spark, 5_000), copy.broker, topic=copy.source)
    spark.udf.register("break_when_told", break_when_told, "binary")
    query = copy.start("break_when_told(payload)", parts=3)
    wait_until(waits.exists, seconds=200)
    wait_until(others_are_done, seconds=100)
    assert len(copy.broker.staged()) == 2
    go_on.open("w").close()
    with pytest.raises(PySparkException, match="broken"):
        query.awaitTermination(100)
    wait_until(lambda: copy.broker.staged() == [], seconds=60)
    assert not any(number.startswith("45") and len(number) == 4 for number in copy.copied)
    copy.run()
    assert Counter(copy.copied) == Counter(str(number) for number in range(5_000))
    wait_until(lambda: copy.broker.staged() == [], seconds=60)


@pytest.fixture
def running(spark: SparkSession, own_broker: Broker, topic: str, tmp_path: Path) -> Iterator[Copy]:
    """A query that copies incoming messages; its broker may be killed."""
    copy = Copy(spark, own_broker, topic, tmp_path / "checkpoint")
    query = copy.start(once=False)
    yield copy
    assert query.exception() is None, "it has gone on"
    query.stop()


def test_a_query_continues_after_its_broker_was_killed(running: Copy, spark: SparkSession) -> None:
    broker = running.broker
    broker.publish(running.source, *map(str, range(100)))
    wait_until(lambda: running.copied, seconds=60)
    save(numbers(spark, 30_000), broker, topic=running.source)
    broker.kill()
    broker.start()
    broker.publish(running.source, *map(str, range(30_000, 30_100)))
    expected = Counter(map(str, range(100))) + Counter(map(str, range(30_100)))
    wait_until(lambda: len(running.copied) >= expected.total(), seconds=60)
    assert Counter(running.copied) == expected
