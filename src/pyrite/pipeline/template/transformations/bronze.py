"""Bronze: every message of the log, except the alerts that the pipeline itself publishes."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from pyrite.pipeline.connection import messages

spark = SparkSession.active()


@dp.table(comment="every message of the log, unchanged")
def bronze() -> DataFrame:
    """Continue where the last run ended; the first run starts at the beginning of the log."""
    return messages(spark)
