"""Bronze: every message of the log, except the alerts that the pipeline itself publishes.

It is a view: the log is where messages are kept, and every flow reads from it what is new.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from pyrite.pipeline.connection import messages

spark = SparkSession.active()


@dp.temporary_view(comment="every message of the log, unchanged")
def bronze() -> DataFrame:
    """Continue where the last run ended; the first run starts at the beginning of the log."""
    return messages(spark)
