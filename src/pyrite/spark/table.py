"""History without Python: Spark's own Parquet reader reads a stream, and ours what is yet to be Parquet."""

from __future__ import annotations

import gc
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

UNUSED = 512 * 1024 * 1024
"""Bytes of copies after which Java has to look which of them are not used any more."""

_copied: list[int] = []
"""Bytes of each copy since Java looked last."""
_kept: list[tuple[Any, Snapshot]] = []
"""Weak references to what knows the files in Spark, and the files."""


def table(spark: SparkSession, stream: str = "default", *, path: str | Path = "pyrite-data") -> DataFrame:
    """Return all messages that a stream has now, as a DataFrame; `path` is the log's folder.

    What comes later is not in it; what retention drops later still is. The last messages, which are not
    Parquet yet, are copied now; if they are many, which is so when the broker had no time to make them
    Parquet, they are read by the source. A session of Spark Connect does not tell for how long files are
    needed: with it, all is read by the source.
    """
    _remove_unused(spark)
    data = folder_of(str(path))
    log = open_folder(data)
    bounds = log.bounds(stream)
    snapshot = take(log, stream, bounds.end) if isinstance(spark, SparkSession) else None
    start = bounds.first if snapshot is None else snapshot.end
    source = spark.read.format("pyrite").options(path=str(data), stream=stream)
    rest = source.options(startingOffsets=str(start), endingOffsets=str(bounds.end))
    if snapshot is None:
        return rest.load()
    frame = spark.read.schema(from_arrow_schema(SCHEMA)).parquet(*map(_literal, snapshot.files))
    _keep(spark, frame, snapshot)
    return frame.union(rest.load()) if start < bounds.end else frame


def _literal(path: Path) -> str:
    """Return a path as Spark wants it, which takes some characters for patterns of names."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))


def _keep(spark: SparkSession, frame: DataFrame, snapshot: Snapshot) -> None:
    """Note which snapshot a DataFrame needs, and with it all that are made of it; only Java knows which."""
    files = frame._jdf.queryExecution().analyzed().collectLeaves().head().relation().location()
    jvm: Any = spark._jvm
    _kept.append((jvm.java.lang.ref.WeakReference(files), snapshot))
    _copied.append(snapshot.copied)


def _remove_unused(spark: SparkSession) -> None:
    """Remove the snapshots that nothing in Spark knows any more.

    Java notices that when it needs memory, which may be long after the disk has become full of copies.
    """
    if sum(_copied) > UNUSED and isinstance(spark, SparkSession):
        jvm: Any = spark._jvm
        gc.collect()  # what Python still knows, Java does, too
        jvm.java.lang.System.gc()
        _copied.clear()
    for pair in list(_kept):
        reference, snapshot = pair
        try:
            used = not reference.refersTo(None)  # to get it would keep it for a while
        except Py4JError:
            used = False  # it was a Java before this one
        if not used:
            _kept.remove(pair)
            snapshot.remove()
