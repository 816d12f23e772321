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
FROM, UNTIL, PUBLISH = "pyrite.from", "pyrite.until", "pyrite.publish"
"""Settings of a backtest."""


def credentials() -> dict[str, Any]:
    """Return the pipeline's credentials as keyword arguments of `FlightLog`."""
    variables = {name: f"PYRITE_{name.upper()}" for name in NAMES}
    return {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}


def spark_options(broker: str) -> dict[str, str]:
    """Return the broker options of Spark's source and sink, where caFile may be written cafile."""
    return {"broker": broker, **{name.replace("_", ""): value for name, value in credentials().items()}}


def messages(spark: SparkSession, topic: str = "#") -> DataFrame:
    """Return the messages that match a topic filter as a stream, from the start of the log.

    Alerts are left out: they are published to the same log, and the pipeline would read its own output. A
    backtest has a part of the log.
    """
    source = spark.readStream.format("pyrite").options(**spark_options(str(spark.conf.get("pyrite.broker"))))
    since, until = spark.conf.get(FROM, "earliest"), spark.conf.get(UNTIL, "")
    found = source.option("topic", topic).option("startingOffsets", str(since)).load()
    if until:
        found = found.where(f"timestamp < TIMESTAMP '{until}'")
    return found.where("NOT (topic = 'alerts' OR startswith(topic, 'alerts/') OR startswith(topic, '$'))")


def publishes(spark: SparkSession) -> bool:
    """True unless this is a backtest, which publishes nothing."""
    return spark.conf.get(PUBLISH, "true") == "true"
