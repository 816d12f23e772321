"""Reads the catalog without pyiceberg, which is slow to load: for the HTTP process and `pyrite tables`."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any, NamedTuple

from pyrite.storage.stream import StreamReader
from pyrite.tables.place import END, NAMESPACE, Place


class Entry(NamedTuple):
    """A table: where its newest metadata is as readers see it, and that metadata as JSON."""

    metadata_location: str
    metadata: bytes


class Summary(NamedTuple):
    """What the current snapshot of a table holds."""

    rows: int
    files: int
    bytes: int
    snapshots: int
    end: int
    """The offset after its last message."""


def names(data: Path) -> list[str]:
    """Return the names of the tables in a data folder."""
    query = "SELECT table_name FROM iceberg_tables WHERE table_namespace = ? ORDER BY 1"
    return [name for (name,) in _select(data, query, NAMESPACE)]


def entry(data: Path, name: str) -> Entry | None:
    """Return a table; None if it does not exist."""
    query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
    while rows := _select(data, query, NAMESPACE, name):
        location = rows[0][0]
        try:
            return Entry(location, _path(data, location).read_bytes())
        except FileNotFoundError:
            if _select(data, query, NAMESPACE, name) == rows:
                raise
    return None


def summary(metadata: bytes) -> Summary:
    """Return what the current snapshot holds."""
    table: dict[str, Any] = json.loads(metadata)
    snapshots = table.get("snapshots", [])
    current = table.get("current-snapshot-id")
    found: dict[str, str] = next((one["summary"] for one in snapshots if one["snapshot-id"] == current), {})
    keys = ("total-records", "total-data-files", "total-files-size")
    rows, files, size = (int(found.get(key, 0)) for key in keys)
    return Summary(rows, files, size, len(snapshots), int(found.get(END, 0)))


def delay(reader: StreamReader, end: int) -> float:
    """Return the age in seconds of the oldest message from offset `end` on; 0 if there is none."""
    for segment in reader.look(reader.segments):
        records = segment.records()
        missing = records[records["first"] >= end]
        if len(missing):
            return max(0.0, time.time() - int(missing["earliest"][0]) / 1e6)
    return 0.0


def _path(data: Path, location: str) -> Path:
    """Return the path of a metadata file, wherever readers see it."""
    *_, table, metadata, name = location.split("/")
    return Place(data).folder / table / metadata / name


def _select(data: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    path = Place(data).catalog
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []  # it is being made
        raise
    finally:
        connection.close()
