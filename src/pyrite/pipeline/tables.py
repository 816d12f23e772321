"""The tables of a pipeline, read without Spark: a folder of Parquet files per table.

A streaming table lists its valid files in `_spark_metadata`; files left by a killed run are not listed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from pyrite.pipeline.project import Project

_LIST = "_spark_metadata"
GOLD_MANIFEST = "_gold.json"
"""Lists the files of the gold tables."""


def table_names(project: Project) -> list[str]:
    """Return the names of the existing tables."""
    folder = project.tables
    return (
        sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith("_"))
        if folder.is_dir()
        else []
    )


def row_counts(project: Project) -> dict[str, int]:
    """Return the number of rows of each table."""
    return {name: count_rows(project.tables / name) for name in table_names(project)}


def messages_read(project: Project) -> int:
    """Return the number of messages that the pipeline has read."""
    quality = read_table(project, "quality", columns=["messages"])
    return sum(quality["messages"].to_pylist()) if quality.num_rows else 0


def count_rows(folder: Path) -> int:
    """Return the number of rows of a table."""
    return sum(pq.read_metadata(path).num_rows for path in files_of(folder))


def read_table(project: Project, name: str, **what: Any) -> pa.Table:
    """Return a table; `columns` and `filters` are pyarrow's.

    A table that was never written to has no columns.
    """
    parts = [pq.read_table(path, **what) for path in files_of(project.tables / name)]
    return pa.concat_tables(parts) if parts else pa.table({})


def read_last(project: Project, name: str, rows: int) -> pa.Table:
    """Return at least the last `rows` rows of a growing table, reading files from the end."""
    parts: list[pa.Table] = []
    for path in reversed(files_of(project.tables / name)):
        parts.insert(0, pq.read_table(path))
        if sum(part.num_rows for part in parts) >= rows:
            break
    return pa.concat_tables(parts) if parts else pa.table({})


def files_of(folder: Path) -> list[Path]:
    """Return the valid files of a table."""
    gold = gold_files(folder.parent, folder.name)
    if gold:
        return gold
    listed = folder / _LIST
    if not listed.is_dir():
        return sorted(folder.glob("*.parquet"))
    found: dict[Path, None] = {}
    for batch in _batches(listed):
        for line in batch.read_text().splitlines()[1:]:  # the first line is the version
            entry = json.loads(line)
            path = Path(unquote(urlsplit(entry["path"]).path))
            if entry["action"] == "add":
                found[path] = None
            else:
                found.pop(path, None)
    return list(found)


def gold_files(tables: Path, name: str) -> list[Path]:
    """Return the files that the manifest of the gold tables lists for a table."""
    try:
        files = json.loads((tables / GOLD_MANIFEST).read_bytes())["files"].get(name, {})
    except FileNotFoundError:
        return []
    return [tables / name / file for _, file in sorted(files.items())]


def _batches(folder: Path) -> list[Path]:
    """Return the metadata files to read, in order, from the last compacted one on."""
    batches = {int(each.name.split(".")[0]): each for each in folder.iterdir() if each.name[0].isdigit()}
    compact = [number for number, each in batches.items() if each.suffix == ".compact"]
    first = max(compact, default=0)
    return [batches[number] for number in sorted(batches) if number >= first]
