"""A Spark whose executors are processes of their own, which know the broker's address and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from uuid import uuid4

import pytest

from pyrite.client.log import read_log
from tests.spark.conftest import Broker

pytestmark = pytest.mark.xdist_group("spark")

PROGRAM = """
import sys
from pyspark.sql import functions as F
from pyrite.spark import session

url, topic, checkpoint = sys.argv[1:]
spark = session("local-cluster[2,1,1024]", settings={"spark.ui.enabled": "false"})
numbers = spark.range(50_000, numPartitions=4)
messages = numbers.select(F.lit(topic + "/in").alias("topic"), F.col("id").cast("string").alias("payload"))
messages.write.format("pyrite").option("broker", url).mode("append").save()
options = {"broker": url, "topic": topic + "/in", "minPartitions": "4"}
read = spark.read.format("pyrite").options(**options).load()
value = F.col("payload").cast("string").cast("long")
assert read.select(F.sum(value).alias("sum")).collect()[0]["sum"] == 50_000 * 49_999 // 2
stream = spark.readStream.format("pyrite").options(**options, startingOffsets="earliest").load()
writer = stream.select("payload").writeStream.format("pyrite").options(broker=url, topic=topic + "/out")
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
print("executors:", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
spark.stop()
"""


@pytest.mark.timeout(300)
def test_executors_read_and_write_through_flight(
    broker: Broker, tmp_path: Path, run_python: Callable[..., Popen[str]]
) -> None:
    topic = f"test/{uuid4()}"
    process = run_python(PROGRAM, broker.url, topic, str(tmp_path / "checkpoint"))
    output = process.communicate(timeout=280)[0]
    assert process.returncode == 0, output
    assert "executors: 2" in output
    copied = read_log(broker.url, topic=f"{topic}/out", columns=["payload"]).column("payload").to_pylist()
    assert sorted(map(int, copied)) == list(range(50_000))
