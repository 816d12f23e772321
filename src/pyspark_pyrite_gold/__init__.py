"""Registers `format("pyrite_gold")`: Spark looks for data sources in packages with this prefix."""

from pyrite.pipeline.gold import GoldSource as DefaultSource

__all__ = ["DefaultSource"]
