"""Alerts: what stands out from the recent past of its device, kept in a table and published to `alerts/...`.

For each device and number, the last WINDOW values are remembered. One that is more than THRESHOLD standard
deviations from their median (the deviation is told from the median too, so that outliers do not hide each
other) is an outlier: one alert, and no other before the value has come back. A device that says nothing for
SILENCE times as long as usual has fallen silent, which is found once others have gone on for that long.

What is remembered is kept with the stream's checkpoint: each message is judged once, also across runs, and a
run that was killed. Messages that come later than LATENESS, in the devices' time, are not judged.
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
    """Watch the devices of a schema."""
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
    """Define the table of a schema's alerts, and that they are published."""
    # Spark analyses this at once, when the tables of the pipeline are not there yet. So it reads the log, not
    # bronze, and is not made within the function below, where nothing may be analysed.
    found = outliers(schema)

    @dp.table(name=schema.alerts, comment=f"what stands out on {schema.topic}")
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
