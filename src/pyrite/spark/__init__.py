"""Spark: `format("pyrite")` reads the log and publishes to it; `session()` returns a session set up for both.

from pyrite.spark import session, table

spark = session()
spark.readStream.format("pyrite").option("broker", "flight://127.0.0.1:8815").load()
table(spark, "default", path="pyrite-data").groupBy("topic").count().show()
"""

from pyrite.spark.session import session
from pyrite.spark.source import PyriteSource
from pyrite.spark.table import table

__all__ = ["PyriteSource", "session", "table"]
