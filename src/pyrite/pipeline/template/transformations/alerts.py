"""Alerts: outliers and silences of devices, kept in a table and published to `alerts/...`.

For each device and number, the last WINDOW values are kept. A value more than THRESHOLD standard deviations
from their median is an outlier (the deviation is estimated from the median as well, so that outliers do not
hide one another). It is one alert until the value has returned to normal. A device that sends nothing for
SILENCE times its usual interval has fallen silent, detected once others have continued for that long.

The recent values are kept in the stream's checkpoint, so every message is judged once, even across killed
runs. Messages later than LATENESS, by the devices' clocks, are not judged.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyrite.pipeline.connection import messages, spark_options
from pyrite.pipeline.outliers import ALERT, STATE, Watch
from pyrite.pipeline.schemas import TopicSchema, read_schemas

WINDOW = 60
THRESHOLD = 8.0
SILENCE = 20.0
LATENESS = "1 minute"

spark = SparkSession.active()


def outliers(schema: TopicSchema) -> DataFrame:
    """Return the alerts of a schema's devices."""
    numbers = [F.col(f"fields.{name}").cast("double").alias(name) for name in schema.numbers]
    return (
        schema.decode(messages(spark, schema.topic))
        .where("NOT bad")
        .select(
            "device", "topic", "offset", "event_time", F.unix_micros("event_time").alias("micros"), *numbers
        )
        .withWatermark("event_time", LATENESS)
        .groupBy("device")
        .applyInPandasWithState(
            Watch(schema.numbers, WINDOW, THRESHOLD, SILENCE), ALERT, STATE, "append", "EventTimeTimeout"
        )
        .withColumn("time", F.timestamp_micros("time"))
    )


def define(schema: TopicSchema) -> None:
    """Define the table of a schema's alerts, and their publication."""
    # Spark analyses this immediately, before the pipeline's tables exist. So it reads the log instead of
    # bronze, and is built outside the function below, where analysis is not allowed.
    found = outliers(schema)

    @dp.table(name=schema.alerts, comment=f"alerts on {schema.topic}")
    def alerts() -> DataFrame:
        return found

    @dp.append_flow(target="subscribers", name=f"publish_{schema.alerts}")
    def publish() -> DataFrame:
        """Publish each alert once, as JSON, to alerts/DEVICE/FIELD."""
        return spark.readStream.table(schema.alerts).select(
            F.concat_ws("/", F.lit("alerts"), "device", "field").alias("topic"),
            F.to_json(F.struct("*")).alias("payload"),
            F.lit(1).alias("qos"),
            F.lit("application/json").alias("content_type"),
        )


dp.create_sink("subscribers", "pyrite", spark_options(str(spark.conf.get("pyrite.broker"))))
for each in read_schemas("schemas.toml"):
    define(each)
