"""Gold: statistics of devices and topics, computed in every run. Windows are in topic_windows.sql."""

from functools import reduce

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyrite.pipeline.schemas import read_schemas

spark = SparkSession.active()
schemas = read_schemas("schemas.toml")


@dp.materialized_view(
    comment="per device and field: minimum, mean, maximum and 95th percentile of all values"
)
def device_stats() -> DataFrame:
    """Summarise measurements. p95 is a measured value (nearest rank)."""
    values = [schema.measurements(spark.read.table(schema.silver)) for schema in schemas]
    return (
        reduce(DataFrame.unionAll, values)
        .groupBy("device", "field")
        .agg(
            F.count("*").alias("values"),
            F.min("value").alias("min"),
            F.mean("value").alias("mean"),
            F.max("value").alias("max"),
            F.percentile_approx("value", 0.95).alias("p95"),
        )
    )


@dp.materialized_view(comment="the twenty topics with the most messages")
def top_talkers() -> DataFrame:
    """Rank topics by messages, then by bytes."""
    return (
        spark.read.table("bronze")
        .groupBy("topic")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.length("payload")).alias("bytes"),
            F.count_distinct("client_id").alias("clients"),
            F.max("timestamp").alias("last_seen"),
        )
        .orderBy(F.desc("messages"), F.desc("bytes"), "topic")
        .limit(20)
    )
