"""The tables of a pipeline, read without Spark: Parquet files in a folder a table.

A streaming table has a list of the files that count, `_spark_metadata`; what a killed run left is not in it.
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


def table_names(project: Project) -> list[str]:
    """Return the names of the tables there are."""
    folder = project.tables
    return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []


def row_counts(project: Project) -> dict[str, int]:
    """Return how many rows each table has."""
    return {name: count_rows(project.tables / name) for name in table_names(project)}


def count_rows(folder: Path) -> int:
    """Return how many rows a table has."""
    return sum(pq.read_metadata(path).num_rows for path in files_of(folder))


def read_table(project: Project, name: str, **what: Any) -> pa.Table:
    """Return a table, or what of it is asked for: `columns`, and `filters`, as pyarrow has them.

    One to which nothing was ever written has no columns.
    """
    parts = [pq.read_table(path, **what) for path in files_of(project.tables / name)]
    return pa.concat_tables(parts) if parts else pa.table({})


def read_last(project: Project, name: str, rows: int) -> pa.Table:
    """Return the last rows of a table that grows, or some more: files are read from the last on."""
    parts: list[pa.Table] = []
    for path in reversed(files_of(project.tables / name)):
        parts.insert(0, pq.read_table(path))
        if sum(part.num_rows for part in parts) >= rows:
            break
    return pa.concat_tables(parts) if parts else pa.table({})


def files_of(folder: Path) -> list[Path]:
    """Return the files whose rows a table has."""
    listed = folder / _LIST
    if not listed.is_dir():
        return sorted(folder.glob("*.parquet"))
    found: dict[Path, None] = {}
    for batch in _batches(listed):
        for line in batch.read_text().splitlines()[1:]:  # the first is the version
            entry = json.loads(line)
            path = Path(unquote(urlsplit(entry["path"]).path))
            if entry["action"] == "add":
                found[path] = None
            else:
                found.pop(path, None)
    return list(found)


def _batches(folder: Path) -> list[Path]:
    """Return the lists to read: from the last that has all before it, in order."""
    batches = {int(each.name.split(".")[0]): each for each in folder.iterdir() if each.name[0].isdigit()}
    compact = [number for number, each in batches.items() if each.suffix == ".compact"]
    first = max(compact, default=0)
    return [batches[number] for number in sorted(batches) if number >= first]
