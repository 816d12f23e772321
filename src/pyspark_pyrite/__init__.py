"""Spark looks for data sources in packages whose names begin so: this is how it finds `format("pyrite")`."""

from pyrite.spark.source import PyriteSource as DefaultSource

__all__ = ["DefaultSource"]
