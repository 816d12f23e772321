"""A SparkSession with the settings that suit Pyrite's source and sink."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pyrite.spark.java import use_java

SETTINGS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    master: str | None = None, name: str = "pyrite", settings: dict[str, str] | None = None
) -> SparkSession:
    """Return the active SparkSession, or a new one.

    `master` says where to run, such as local[2]; the default is spark-submit's choice, or all local cores.
    `settings` are Spark settings, which override ours.
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
