"""Silver: messages decoded according to schemas.toml, and malformed ones in tables of their own."""

from functools import reduce

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyrite.pipeline.schemas import TopicSchema, read_schemas

spark = SparkSession.active()
schemas = read_schemas("schemas.toml")


def define(schema: TopicSchema) -> None:
    """Define the tables of a schema."""

    @dp.table(name=schema.silver, comment=f"messages on {schema.topic}, decoded")
    def silver() -> DataFrame:
        good = schema.decode(spark.readStream.table("bronze")).where("NOT bad")
        fields = [F.col(f"fields.{name}").alias(name) for name in schema.fields if name != "time"]
        return good.select("offset", "timestamp", "topic", "device", "event_time", *fields)

    @dp.table(name=schema.bad, comment=f"messages on {schema.topic} that do not match the schema, unchanged")
    def bad() -> DataFrame:
        wrong = schema.decode(spark.readStream.table("bronze")).where("bad")
        return wrong.select("offset", "timestamp", "topic", "payload", "client_id")


for each in schemas:
    define(each)


@dp.materialized_view(comment="per topic: messages in total, decoded, malformed, without a schema; late ones")
def quality() -> DataFrame:
    """Count the messages by result; `messages` is their sum. Late messages are decoded, and not judged."""
    tables = [("messages", "bronze")]
    tables += [("decoded", schema.silver) for schema in schemas] + [("bad", schema.bad) for schema in schemas]
    one = F.lit(1).alias("count")
    rows = [spark.read.table(name).select("topic", F.lit(what).alias("what"), one) for what, name in tables]
    rows += [
        spark.read.table(schema.alerts)
        .where("kind = 'late'")
        .select("topic", F.lit("late").alias("what"), F.col("value").cast("int").alias("count"))
        for schema in schemas
    ]
    messages, decoded, bad, late = (
        F.sum(F.when(F.col("what") == what, F.col("count")).otherwise(0))
        for what in ("messages", "decoded", "bad", "late")
    )
    return (
        reduce(DataFrame.unionAll, rows)
        .groupBy("topic")
        .agg(
            messages.alias("messages"),
            decoded.alias("decoded"),
            bad.alias("bad"),
            (messages - decoded - bad).alias("without_schema"),
            late.alias("late"),
        )
    )
