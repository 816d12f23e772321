"""Gold: `quality` and `top_talkers` by topic, `topic_windows`, and `device_stats`.

Each run adds what is new to the rows of these tables, so it costs the same whatever the log has. Windows are
those of the event time: a late message is added to its window.
"""

from functools import reduce

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyrite.pipeline.schemas import read_schemas, results_of

spark = SparkSession.active()
schemas = read_schemas("schemas.toml")
tables = str(spark.conf.get("pyrite.gold"))

dp.create_sink("gold", "pyrite_gold", {"path": tables, "flow": "log"})


@dp.append_flow(target="gold", name="gold_of_messages")
def gold() -> DataFrame:
    """Add messages, decoded or not."""
    return results_of(spark.readStream.table("bronze"), schemas)


dp.create_sink("late", "pyrite_gold", {"path": tables, "flow": "late"})


@dp.append_flow(target="late", name="gold_of_late_messages")
def late() -> DataFrame:
    """Add the messages that were too late to be judged."""
    tables = [spark.readStream.table(schema.alerts) for schema in schemas]
    late = reduce(DataFrame.unionAll, tables).where("kind = 'late'")
    return late.select("topic", F.col("value").cast("long").alias("late"))
