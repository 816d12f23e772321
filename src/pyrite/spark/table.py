"""History without Python: sealed segments are read by Spark's own Parquet reader, only the rest by ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pyrite.queries import SCHEMA
from pyrite.spark.options import folder_of
from pyrite.spark.places import open_folder
from pyrite.spark.snapshot import Snapshot, take

_kept: list[tuple[Any, Snapshot]] = []
"""Weak references to what knows the files in Spark, and the files."""


def table(spark: SparkSession, stream: str = "default", *, path: str | Path = "pyrite-data") -> DataFrame:
    """Return all messages that a stream has now, as a DataFrame; `path` is the log's folder.

    What comes later is not in it. What retention drops later of the sealed segments still is. A session of
    Spark Connect does not tell for how long their files are needed: with it, all is read by the source.
    """
    _remove_unused()
    data = folder_of(str(path))
    bounds = open_folder(data).bounds(stream)
    snapshot = take(data, stream) if isinstance(spark, SparkSession) else None
    start = bounds.first if snapshot is None else snapshot.end
    stop = max(start, bounds.end)
    source = spark.read.format("pyrite").options(path=str(data), stream=stream)
    rest = source.options(startingOffsets=str(start), endingOffsets=str(stop))
    if snapshot is None:
        return rest.load()
    sealed = spark.read.schema(from_arrow_schema(SCHEMA)).parquet(*map(_literal, snapshot.files))
    _keep(spark, sealed, snapshot)
    return sealed.union(rest.load()) if start < stop else sealed


def _literal(path: Path) -> str:
    """Return a path as Spark wants it, which takes some characters for patterns of names."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))


def _keep(spark: SparkSession, sealed: DataFrame, snapshot: Snapshot) -> None:
    """Note which snapshot a DataFrame needs, and with it all that are made of it; only Java knows which."""
    files = sealed._jdf.queryExecution().analyzed().collectLeaves().head().relation().location()
    jvm: Any = spark._jvm
    _kept.append((jvm.java.lang.ref.WeakReference(files), snapshot))


def _remove_unused() -> None:
    """Remove the snapshots that nothing in Spark knows any more."""
    for pair in list(_kept):
        reference, snapshot = pair
        try:
            used = reference.get() is not None
        except Py4JError:
            used = False  # it was a Java before this one
        if not used:
            _kept.remove(pair)
            snapshot.remove()
