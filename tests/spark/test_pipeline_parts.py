"""Building blocks of pipelines, with Spark: decoding, measurements, and the log without alerts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyrite.pipeline.alert_settings import AlertSettings
from pyrite.pipeline.connection import messages
from pyrite.pipeline.schemas import TopicSchema, results_of
from pyrite.pipeline.watch import judge_messages
from tests.spark.conftest import Broker

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

FIELDS = {"temperature": "double", "level": "decimal(9, 3)", "count": "long", "place": "string"}
GOOD = [
    b'{"temperature": 1.5, "level": 2.125, "count": 3, "place": "\xc3\xa4"}',
    b' {"temperature": 1.5}\n',
    b'{"temperature": null, "other": {"in": [{}, "]}"]}}',
    b"{}",
]
BAD = [
    b"\xff\xfe",
    b'{"place": "\xff"}',
    b"",
    b" ",
    b"{",
    b"null",
    b"5",
    b'[{"temperature": 1}]',
    b'{"temperature": "hot"}',
    b'{"count": 1.5}',
    b'{"temperature": 1} trailing',
    b'{"temperature": 1}{"temperature": 2}',
    b'{"temperature": 1},{"temperature": 2}',
    b'{"temperature": 1},"other": 2',
    b'{"temperature": 1}} trailing',
    b'{"temperature": 1}] trailing',
    b'{"temperature": 1},',
    b'{"temperature": 1}\x00',
    b'{"temperature": NaN}',
    b"{'temperature': 1}",
]


def test_a_payload_is_bad_unless_it_is_one_json_object_that_matches_the_schema(spark: SparkSession) -> None:
    rows = [(number, "d/1/t", bytearray(payload), None) for number, payload in enumerate(GOOD + BAD)]
    log = spark.createDataFrame(rows, "offset int, topic string, payload binary, timestamp timestamp")
    decoded = TopicSchema("x", "d/+/t", FIELDS).decode(log).orderBy("offset").collect()
    assert [bytes(row.payload) for row in decoded if not row.bad] == GOOD
    assert [bytes(row.payload) for row in decoded if row.bad] == BAD
    assert [row.fields.temperature for row in decoded[: len(GOOD)]] == [1.5, 1.5, None, None]
    assert decoded[0].fields.place == "ä"


def test_payloads_of_other_formats_are_decoded_by_their_schemas(spark: SparkSession) -> None:
    """Also with a device in the payload or in several levels, and with times that are numbers."""
    payloads = [
        "1.5",
        " 2 ",
        "hot",
        "NaN",
        "1,x",
        "2,",
        "z,x",
        "1",
        '{"id": "a+b", "ts": 1000}',
        '{"ts": 1e30}',
    ]
    rows = [(number, "p/1/2", bytearray(payload.encode())) for number, payload in enumerate(payloads)]
    log = spark.createDataFrame(rows, "offset int, topic string, payload binary")
    log = log.selectExpr("*", "TIMESTAMP '2026-01-01' AS timestamp")

    def decoded(schema: TopicSchema, first: int, last: int) -> list[Any]:
        return schema.decode(log.where(f"offset BETWEEN {first} AND {last}")).orderBy("offset").collect()

    number = decoded(TopicSchema("n", "p/+/+", {"value": "double"}, "number", (2, 3)), 0, 3)
    assert [(row.bad, row.fields.value, row.device) for row in number] == [
        (False, 1.5, "1/2"),
        (False, 2.0, "1/2"),
        (True, None, "1/2"),
        (True, None, "1/2"),
    ]
    csv = decoded(TopicSchema("c", "p/+/+", {"c1": "bigint", "c2": "string"}, "csv"), 4, 7)
    assert [row.bad for row in csv] == [False, False, True, True]
    assert [tuple(row.fields) for row in csv[:2]] == [(1, "x"), (2, None)]
    fields = {"id": "string", "ts": "double"}
    timed = decoded(TopicSchema("t", "p/#", fields, device_from="id", time="ts", time_unit="ms"), 8, 9)
    assert [row.device for row in timed] == ["a_b", "p/1/2"]
    assert [row.event_time.timestamp() for row in timed] == [1.0, timed[1].timestamp.timestamp()]


def test_gold_gets_the_result_of_every_message_and_numbers_of_every_type(spark: SparkSession) -> None:
    payloads = {
        "d/1/t": b'{"temperature": 1.5, "level": 2.125, "count": 3, "place": "x"}',
        "d/2/t": b"{",
        "e/1": b'{"place": "x"}',
        "f": b"4",
    }
    rows = [(topic, bytearray(payload)) for topic, payload in payloads.items()]
    log = spark.createDataFrame(rows, "topic string, payload binary").selectExpr("*", "now() AS timestamp")
    schemas = [TopicSchema("x", "d/+/t", FIELDS), TopicSchema("y", "e/+", {"place": "string"})]
    found = {row.topic: row for row in results_of(log, schemas).collect()}
    assert [found[topic].result for topic in payloads] == ["decoded", "bad", "decoded", "none"]
    assert [found[topic].device for topic in payloads] == ["1", "2", "1", None]
    numbers = [("temperature", 1.5), ("level", 2.125), ("count", 3.0)]
    assert [tuple(each) for each in found["d/1/t"].numbers] == numbers
    assert found["d/2/t"].numbers == found["e/1"].numbers == found["f"].numbers == []


@pytest.fixture
def pipeline_of(spark: SparkSession, broker: Broker) -> Iterator[SparkSession]:
    """A Spark configured with the broker of a pipeline."""
    spark.conf.set("pyrite.broker", broker.url)
    yield spark
    spark.conf.unset("pyrite.broker")


def test_a_pipeline_never_reads_its_own_alerts(
    pipeline_of: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Otherwise an alert on alerts/DEVICE/temperature would be judged as a message on +/+/temperature."""
    device = topic.partition("/")[2]
    for first in ("alerts", "plant", "alerts2"):
        broker.publish(f"{first}/{device}/temperature", "{}")
    seen: list[str] = []

    def note(frame: Any, _: int) -> None:
        seen.extend(row.topic for row in frame.select("topic").collect())

    stream = messages(pipeline_of, f"+/{device}/temperature").writeStream.foreachBatch(note)
    query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert seen == [f"plant/{device}/temperature", f"alerts2/{device}/temperature"]


DECODED = """device string, topic string, offset long, timestamp timestamp, event_time timestamp,
fields struct<t: double>"""


def test_a_device_is_judged_by_its_own_clock_whatever_the_time_of_other_devices(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The second batch is a day older than the first, which has set the watermark."""
    found: list[tuple[str, str, int, float]] = []

    def note(frame: Any, _: int) -> None:
        found.extend((row.device, row.kind, row.offset, row.value) for row in frame.collect())

    (tmp_path / "log").mkdir()
    log = spark.readStream.schema(DECODED).parquet(str(tmp_path / "log"))
    alerts = judge_messages(log, ("t",), AlertSettings()).writeStream.foreachBatch(note).outputMode("append")
    for device, day, first, count in (("a", 2, 0, 700), ("b", 1, 1000, 700), ("b", 1, 2000, 5)):
        batch = spark.range(first, first + count).selectExpr(
            f"'{device}' AS device",
            "'t' AS topic",
            "id AS offset",
            "TIMESTAMP '2026-01-05' AS timestamp",
            f"TIMESTAMP '2026-01-01' + make_dt_interval({day}, 0, 0, (id - {first}) * 10) AS event_time",
            "named_struct('t', IF(id = 1650, 90D, 20D)) AS fields",
        )
        batch.coalesce(1).write.mode("append").parquet(str(tmp_path / "log"))
        query = (
            alerts.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(120)
    assert ("b", "outlier", 1650, 90.0) in found
    assert ("b", "late", 2000, 5.0) in found
    silences = {row for row in found if row[1] == "silence"}
    assert len(found) == 2 + len(silences), found
