"""Publish a DataFrame: tasks stage rows at the broker, the driver's commit publishes them.

StagedParts rows are on the broker's disk, but invisible. A commit carries the ids of the query and of the
micro-batch. The broker remembers both, so a micro-batch repeated after a restart is published once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyrite.spark.errors import plain_errors
from pyrite.spark.locations import open_broker
from pyrite.spark.messages import Messages
from pyrite.spark.options import OptionError, WriteOptions

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a micro-batch."""


@dataclass
class StagedParts(WriterCommitMessage):
    """The parts that a task has staged."""

    sink: str
    parts: list[str]


def stage(
    options: WriteOptions, messages: Messages, sink: str, batches: Iterator[pa.RecordBatch]
) -> StagedParts:
    """Stage the rows of a task."""
    task = TaskContext.get()
    assert task is not None
    # Each attempt has its own name: an abandoned attempt that still runs must not change another's parts.
    name = f"{task.getLocalProperty(BATCH) or 0}-{task.partitionId()}-{uuid4().hex}"
    shaped = (messages.shape(batch) for batch in batches if batch.num_rows)
    staged = open_broker(options.location).stage(sink, name, messages.schema, shaped)
    return StagedParts(sink, staged.parts)


def commit(options: WriteOptions, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish the staged parts of a batch, unless they were published before."""
    for sink, parts in _by_sink(messages).items():
        open_broker(options.location).commit(sink, batch, parts)


def abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete the staged parts of a batch."""
    for sink, parts in _by_sink(messages).items():
        open_broker(options.location).abort(sink, parts)


def _by_sink(messages: Sequence[WriterCommitMessage | None]) -> dict[str, list[str]]:
    """Return the parts by sink, in the order of the tasks."""
    staged: dict[str, list[str]] = {}
    for message in messages:
        if isinstance(message, StagedParts) and message.parts:
            staged.setdefault(message.sink, []).extend(message.parts)
    return staged


class BatchWriter(DataSourceArrowWriter):
    """Writer of `df.write`: publishes all rows or none."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("published messages cannot be overwritten: use mode('append')")
        self._options = options
        self._messages = Messages(schema, options.topic)
        self._sink = f"batch-{uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        """Stage the rows of a task."""
        return stage(self._options, self._messages, self._sink, iterator)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the staged rows."""
        commit(self._options, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the whole sink, with the rows of tasks that failed or still run.

        A stream must not do so, because its batch is repeated.
        """
        open_broker(self._options.location).abort(self._sink)


class MicroBatchWriter(DataSourceStreamArrowWriter):
    """Writer of `df.writeStream`: publishes each micro-batch exactly once, or not at all."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._messages = Messages(schema, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        """Stage the rows of a task under the query's id, which its checkpoint keeps."""
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(QUERY)
        if query is None:
            raise RuntimeError("this Spark hides the query's id from its tasks: use PySpark 4.2 or later")
        return stage(self._options, self._messages, query, iterator)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a micro-batch."""
        commit(self._options, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete a staged micro-batch."""
        abort(self._options, messages)
