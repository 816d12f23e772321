"""How a pipeline reaches its broker. Who it is comes from the environment: no file has a password in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = ("username", "password", "token", "ca_file", "cert_file", "key_file")
"""What `FlightLog` is told; PYRITE_USERNAME and so on are the variables."""


def credentials() -> dict[str, Any]:
    """Return who a pipeline is, for `FlightLog`."""
    variables = {name: f"PYRITE_{name.upper()}" for name in NAMES}
    return {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}


def spark_options(broker: str) -> dict[str, str]:
    """Return the options with which Spark's source and sink reach a broker: caFile is cafile to them."""
    return {"broker": broker, **{name.replace("_", ""): value for name, value in credentials().items()}}


def messages(spark: SparkSession, topic: str = "#") -> DataFrame:
    """Return the log as a stream from its beginning: the messages on the topics that a filter matches.

    Alerts are published to the same log. They are left out, or a pipeline would read what it wrote.
    """
    source = spark.readStream.format("pyrite").options(**spark_options(str(spark.conf.get("pyrite.broker"))))
    found = source.option("topic", topic).option("startingOffsets", "earliest").load()
    return found.where("NOT (topic = 'alerts' OR startswith(topic, 'alerts/') OR startswith(topic, '$'))")
