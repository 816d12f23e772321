"""Pipelines: a Spark Declarative Pipelines project over the log, made, run and shown by `pyrite pipeline`."""
