"""History without Python: Spark's Parquet reader reads sealed segments, Pyrite's source the rest."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pyrite.spark.locations import open_folder
from pyrite.spark.options import folder_of
from pyrite.storage.query import SCHEMA
from pyrite.storage.snapshot import Snapshot, take

MAX_COPIES = 512 * 1024 * 1024
"""Bytes of copies after which Java collects garbage, to find unused copies."""

_copied: list[int] = []
"""Size of each copy since the last collection."""
_kept: list[tuple[Any, Snapshot]] = []
"""Weak references to Spark's file indexes, with their snapshots."""


def table(spark: SparkSession, stream: str = "default", *, path: str | Path = "pyrite-data") -> DataFrame:
    """Return all messages that a stream holds now, as a DataFrame; `path` is the data folder.

    Later messages are not included; messages that retention drops later are. The newest messages, which are
    not Parquet yet, are copied now; if there are many, the source reads them instead. Spark Connect does not
    report how long files are needed, so with it the source reads everything.
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
    """Escape the characters of a path that Spark would take as a pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))


def _keep(spark: SparkSession, frame: DataFrame, snapshot: Snapshot) -> None:
    """Keep a snapshot while this DataFrame, or one derived from it, is in use in Java."""
    files = frame._jdf.queryExecution().analyzed().collectLeaves().head().relation().location()
    jvm: Any = spark._jvm
    _kept.append((jvm.java.lang.ref.WeakReference(files), snapshot))
    _copied.append(snapshot.copied)


def _remove_unused(spark: SparkSession) -> None:
    """Remove the snapshots that Spark does not reference any more.

    Java notices that when it collects garbage, which may be long after copies have filled the disk.
    """
    if sum(_copied) > MAX_COPIES and isinstance(spark, SparkSession):
        jvm: Any = spark._jvm
        gc.collect()  # objects referenced from Python stay alive in Java
        jvm.java.lang.System.gc()
        _copied.clear()
    for pair in list(_kept):
        reference, snapshot = pair
        try:
            used = not reference.refersTo(None)  # get() would keep it alive for a while
        except Py4JError:
            used = False  # it belonged to an earlier Java process
        if not used:
            _kept.remove(pair)
            snapshot.remove()
