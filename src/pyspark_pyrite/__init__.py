"""Registers `format("pyrite")`: Spark looks for data sources in packages with this prefix."""

from pyrite.spark.source import PyriteSource as DefaultSource

__all__ = ["DefaultSource"]
