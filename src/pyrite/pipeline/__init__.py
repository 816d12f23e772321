"""Spark Declarative Pipelines projects over the log, for `pyrite pipeline`."""
