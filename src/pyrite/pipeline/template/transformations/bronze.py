"""Bronze: every message of the log, as it came.

Alerts are published to the same log. They are left out here, or the pipeline would read what it wrote.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from pyrite.pipeline.connection import spark_options

spark = SparkSession.active()


@dp.table(comment="every message of the log, as it came")
def bronze() -> DataFrame:
    """Read on from where the last run ended; at first, from the beginning of the log."""
    messages = (
        spark.readStream.format("pyrite")
        .options(**spark_options(str(spark.conf.get("pyrite.broker"))))
        .option("startingOffsets", "earliest")
        .load()
    )
    return messages.where("NOT (topic = 'alerts' OR startswith(topic, 'alerts/') OR startswith(topic, '$'))")
