"""Alerts: unusual numbers and silences of devices, kept in a table and published to `alerts/...`.

What is unusual is defined in alerts.toml. The past of a device is kept in the stream's checkpoint, so every
message is judged once, even across killed runs. Messages are judged in the order of the log; whether one is
late is judged by the clock of its own device, so a device that was offline is judged when it is back.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyrite.pipeline.alert_settings import read_settings
from pyrite.pipeline.connection import messages, publishes, spark_options
from pyrite.pipeline.schemas import TopicSchema, read_schemas
from pyrite.pipeline.watch import judge_messages

spark = SparkSession.active()
settings = read_settings("alerts.toml")


def define(schema: TopicSchema) -> None:
    """Define the table of a schema's alerts, and their publication."""
    # Spark analyses this immediately, before the pipeline's tables exist. So it reads the log instead of
    # bronze, and is built outside the function below, where analysis is not allowed.
    good = schema.decode(messages(spark, schema.topic)).where("NOT bad")
    found = judge_messages(good, schema.numbers, settings)

    @dp.table(name=schema.alerts, comment=f"alerts on {schema.topic}")
    def alerts() -> DataFrame:
        return found

    if not publishes(spark):
        return

    @dp.append_flow(target="subscribers", name=f"publish_{schema.alerts}")
    def publish() -> DataFrame:
        """Publish each alert once, as JSON, to alerts/DEVICE/FIELD."""
        return (
            spark.readStream.table(schema.alerts)
            .where("kind <> 'late'")
            .select(
                F.concat_ws("/", F.lit("alerts"), "device", "field").alias("topic"),
                F.to_json(F.struct("*")).alias("payload"),
                F.lit(1).alias("qos"),
                F.lit("application/json").alias("content_type"),
            )
        )


if publishes(spark):
    dp.create_sink("subscribers", "pyrite", spark_options(str(spark.conf.get("pyrite.broker"))))
for each in read_schemas("schemas.toml"):
    define(each)
