"""Bronze: every message of the log, as it came, but for the alerts that the pipeline publishes to it."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from pyrite.pipeline.connection import messages

spark = SparkSession.active()


@dp.table(comment="every message of the log, as it came")
def bronze() -> DataFrame:
    """Read on from where the last run ended; at first, from the beginning of the log."""
    return messages(spark)
