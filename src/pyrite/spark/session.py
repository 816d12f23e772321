"""A SparkSession with what Pyrite's source and sink work best with."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pyrite.spark.java import use_java

SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",  # so that the log reads only what a filter leaves
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    master: str | None = None, name: str = "pyrite", settings: dict[str, str] | None = None
) -> SparkSession:
    """Return the SparkSession there is, or a new one.

    `master` is where to run, as in local[2]; by default what spark-submit says, or all cores here.
    `settings` are of Spark's, and win over ours.
    """
    is_new = SparkSession.getActiveSession() is None
    if is_new:
        use_java()
    builder = SparkSession.Builder().appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in (SETTINGS | (settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if is_new:
        spark.sparkContext.setLogLevel("ERROR")
    return spark
