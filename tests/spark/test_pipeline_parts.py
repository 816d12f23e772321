"""Building blocks of pipelines, with Spark: decoding, measurements, and the log without alerts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyrite.pipeline.connection import messages
from pyrite.pipeline.schemas import TopicSchema
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


def test_numbers_of_every_type_become_measurements(spark: SparkSession) -> None:
    silver = spark.sql(
        "SELECT 'd' AS device, 1.5D AS temperature, 2.125BD AS level, 3L AS count, 'x' AS place"
    )
    found = TopicSchema("x", "d/+", FIELDS).measurements(silver)
    expected = [("d", "temperature", 1.5), ("d", "level", 2.125), ("d", "count", 3.0)]
    assert [tuple(row) for row in found.collect()] == expected
    without = TopicSchema("y", "e/+", {"place": "string"}).measurements(silver)
    assert without.schema == found.schema
    assert found.unionAll(without).count() == 3
    assert without.count() == 0


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
