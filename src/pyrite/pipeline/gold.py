"""`format("pyrite_gold")`: Spark's sink for the gold tables, which merges each micro-batch into them.

A gold table has a row per key: a topic, a device and field, a window. Tasks aggregate the rows of a
micro-batch, and the driver's commit adds the sums to the rows of these keys. So a run costs what is new,
whatever the log has. A manifest lists the files of all tables and the last micro-batch of each flow: it is
replaced at once, so a micro-batch that Spark repeats is counted once.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyrite.pipeline.gold_tables import DERIVED, FLOWS, SUMS, Tables
from pyrite.pipeline.tables import GOLD_MANIFEST

_QUERY = "sql.streaming.queryId"


@dataclass
class GoldPart(WriterCommitMessage):
    """The partial aggregates of a task."""

    query: str
    partials: dict[str, bytes]
    """Arrow streams by table."""


class GoldSource(DataSource):
    """Data source that Spark knows as `pyrite_gold`; options: `path` of the tables, and `flow`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pyrite_gold"

    def streamWriter(self, schema: StructType, overwrite: bool) -> GoldWriter:
        """Return the writer for `df.writeStream`."""
        return GoldWriter(self.options["path"], self.options["flow"])


class GoldWriter(DataSourceStreamArrowWriter):
    """Merges each micro-batch of a flow into the gold tables, once."""

    def __init__(self, path: str, flow: str) -> None:
        if flow not in FLOWS:
            raise ValueError(f"flow = {flow!r}: expected one of {', '.join(FLOWS)}")
        self._path = path
        self._flow = flow

    def write(self, iterator: Iterator[pa.RecordBatch]) -> GoldPart:
        """Aggregate the rows of a task."""
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(_QUERY)
        if query is None:
            raise RuntimeError("this Spark hides the query's id from its tasks: use PySpark 4.2 or later")
        return GoldPart(query, aggregate(self._flow, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Add the sums of a micro-batch to the tables, unless that was done before."""
        parts = [message for message in messages if isinstance(message, GoldPart)]
        if parts:
            filesystem, root = _filesystem(self._path)
            with _locked(self._path):
                GoldFiles(filesystem, root).merge(self._flow, parts[0].query, batchId, parts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: nothing was written."""


def aggregate(flow: str, batches: Iterable[pa.RecordBatch]) -> dict[str, bytes]:
    """Aggregate the rows of a task; returns Arrow streams by table."""
    partials: Tables = {}
    for batch in batches:
        if batch.num_rows:
            for name, rows in FLOWS[flow][0](pa.Table.from_batches([batch])).items():
                partials[name] = SUMS[name].add(partials.get(name), rows)
    return {name: _serialised(table) for name, table in partials.items()}


class GoldFiles:
    """The files of the gold tables."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._files = filesystem
        self._root = root
        self._manifest: dict[str, Any] = self._read_manifest()
        self._unneeded: list[str] = []

    def merge(self, flow: str, query: str, batch: int, parts: Sequence[GoldPart]) -> None:
        """Add the sums of a micro-batch; a new query, as after a full refresh, starts from nothing."""
        known, last = self._manifest["commits"].get(flow, ("", -1))
        if known == query and batch <= last:
            return
        changed = {name for name in FLOWS[flow][1] if known != query and self._remove(name)}
        for name in FLOWS[flow][1]:
            streams = [pa.ipc.open_stream(part.partials[name]) for part in parts if name in part.partials]
            if streams:
                rows = pa.concat_tables(stream.read_all() for stream in streams)
                self._add(name, rows)
                changed.add(name)
        for name, table in DERIVED.items():
            if not changed.isdisjoint(table.sources) or name not in self._manifest["files"]:
                self._derive(name)
        self._manifest["commits"][flow] = (query, batch)
        self._write_manifest()
        for path in self._unneeded:
            self._files.delete_file(path)

    def _add(self, name: str, rows: pa.Table) -> None:
        """Add rows to a table."""
        table = SUMS[name]
        files = self._manifest["files"].setdefault(name, {})
        for partition, new in table.partitions(rows):
            old = self._read(name, files[partition]) if partition in files else None
            self._write(name, partition, table.publish(table.add(old, new)))

    def _derive(self, name: str) -> None:
        """Compute a table from others, of which some may have no rows yet."""
        sources = {}
        for source in DERIVED[name].sources:
            files = self._manifest["files"].get(source)
            if files:
                sources[source] = pa.concat_tables(self._read(source, file) for file in files.values())
        if sources:
            self._write(name, "", DERIVED[name].derive(sources))

    def _remove(self, name: str) -> bool:
        """Forget the files of a table; returns true if there were any."""
        files = self._manifest["files"].pop(name, {})
        self._unneeded += [f"{self._root}/{name}/{file}" for file in files.values()]
        return bool(files)

    def _read(self, name: str, file: str) -> pa.Table:
        with self._files.open_input_file(f"{self._root}/{name}/{file}") as source:
            return pq.read_table(source)

    def _write(self, name: str, partition: str, rows: pa.Table) -> None:
        """Write a partition of a table in place of the one before."""
        files = self._manifest["files"].setdefault(name, {})
        if partition in files:
            self._unneeded.append(f"{self._root}/{name}/{files[partition]}")
        self._files.create_dir(f"{self._root}/{name}")
        files[partition] = f"{partition or 'all'}-{uuid4().hex[:12]}.parquet"
        pq.write_table(
            rows, f"{self._root}/{name}/{files[partition]}", filesystem=self._files, compression="zstd"
        )

    def _read_manifest(self) -> dict[str, Any]:
        path = f"{self._root}/{GOLD_MANIFEST}"
        if self._files.get_file_info(path).type == fs.FileType.NotFound:
            return {"commits": {}, "files": {}}
        with self._files.open_input_stream(path) as file:
            found: dict[str, Any] = json.loads(file.read())
            return found

    def _write_manifest(self) -> None:
        path = f"{self._root}/{GOLD_MANIFEST}"
        self._files.create_dir(self._root)
        with self._files.open_output_stream(f"{path}.new") as file:
            file.write(json.dumps(self._manifest).encode())
        self._files.move(f"{path}.new", path)


def _serialised(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def _filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location, and the path in it; local paths are not escaped."""
    if path.startswith("file:") or "://" not in path:
        return fs.LocalFileSystem(), path.removeprefix("file:").removeprefix("//")
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path)
    return found


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Lock the tables against the commits of other flows, which run in the same driver."""
    name = f"pyrite-gold-{os.getuid()}-{sha256(path.encode()).hexdigest()[:16]}"
    descriptor = os.open(os.path.join(tempfile.gettempdir(), name), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
