"""History without Python: sealed segments are read by Spark's own Parquet reader, only the rest by ours."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pyrite.log.bulk import LogFolder
from pyrite.queries import SCHEMA
from pyrite.spark.snapshot import sealed


def table(spark: SparkSession, stream: str = "default", *, path: str | Path) -> DataFrame:
    """Return all messages that a stream has now, as a DataFrame; `path` is the log's folder.

    What comes later is not in it. What retention drops later of the sealed segments still is.
    """
    data = Path(path).absolute()
    bounds = LogFolder(data).bounds(stream)
    files, start = sealed(data, stream)
    start = start if files else bounds.first
    end = max(start, bounds.end)
    source = spark.read.format("pyrite").options(path=str(data), stream=stream)
    rest = source.options(startingOffsets=str(start), endingOffsets=str(end)).load()
    if not files:
        return rest
    return spark.read.schema(from_arrow_schema(SCHEMA)).parquet(*map(str, files)).union(rest)
