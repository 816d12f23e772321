"""Connects a pipeline to its broker. Credentials come from the environment, so that no file contains a
password.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = ("username", "password", "token", "ca_file", "cert_file", "key_file")
"""Options of `FlightLog`, each read from an environment variable such as PYRITE_USERNAME."""


def credentials() -> dict[str, Any]:
    """Return the pipeline's credentials as keyword arguments of `FlightLog`."""
    variables = {name: f"PYRITE_{name.upper()}" for name in NAMES}
    return {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}


def spark_options(broker: str) -> dict[str, str]:
    """Return the broker options of Spark's source and sink, where caFile may be written cafile."""
    return {"broker": broker, **{name.replace("_", ""): value for name, value in credentials().items()}}


def messages(spark: SparkSession, topic: str = "#") -> DataFrame:
    """Return the messages that match a topic filter as a stream, from the start of the log.

    Alerts are left out: they are published to the same log, and the pipeline would read its own output.
    """
    source = spark.readStream.format("pyrite").options(**spark_options(str(spark.conf.get("pyrite.broker"))))
    found = source.option("topic", topic).option("startingOffsets", "earliest").load()
    return found.where("NOT (topic = 'alerts' OR startswith(topic, 'alerts/') OR startswith(topic, '$'))")
