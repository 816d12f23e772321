"""Publishing what a DataFrame holds: tasks stage rows with the broker, the driver's commit publishes them.

What is staged is on the broker's disk, but no one sees it. A commit has the id of the query and of the
micro-batch, and the broker remembers these: what is done again after a restart is published once.
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

from pyrite.spark.messages import Messages
from pyrite.spark.options import OptionError, WriteOptions
from pyrite.spark.places import open_broker

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
"""Local properties that Spark gives the tasks of a micro-batch."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged."""

    sink: str
    parts: list[str]


def stage(options: WriteOptions, messages: Messages, sink: str, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage the rows of a task."""
    task = TaskContext.get()
    assert task is not None
    # Every attempt has a name of its own, so that one which was given up, and still runs, spoils nothing.
    name = f"{task.getLocalProperty(BATCH) or 0}-{task.partitionId()}-{uuid4().hex}"
    shaped = (messages.shape(batch) for batch in batches if batch.num_rows)
    staged = open_broker(options.place).stage(sink, name, messages.schema, shaped)
    return Staged(sink, staged.parts)


def commit(options: WriteOptions, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish what the tasks of a batch have staged, unless that was done before."""
    for sink, parts in _by_sink(messages).items():
        open_broker(options.place).commit(sink, batch, parts)


def abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Forget what the tasks of a batch have staged."""
    for sink, parts in _by_sink(messages).items():
        open_broker(options.place).abort(sink, parts)


def _by_sink(messages: Sequence[WriterCommitMessage | None]) -> dict[str, list[str]]:
    """Return all parts, in the order of the tasks, under the name of their sink; {} if there are none."""
    staged: dict[str, list[str]] = {}
    for message in messages:
        if isinstance(message, Staged) and message.parts:
            staged.setdefault(message.sink, []).extend(message.parts)
    return staged


class BatchWriter(DataSourceArrowWriter):
    """What `df.write` writes: everything is published, or nothing."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("what was published cannot be overwritten: use mode('append')")
        self._options = options
        self._messages = Messages(schema, options.topic)
        self._sink = f"batch-{uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task."""
        return stage(self._options, self._messages, self._sink, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what is staged."""
        commit(self._options, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what is staged, also by tasks of which there is no message, or that go on: it is over.

        This is no way for a stream: its batch is to be done again.
        """
        open_broker(self._options.place).abort(self._sink)


class StreamWriter(DataSourceStreamArrowWriter):
    """What `df.writeStream` writes: each micro-batch is published exactly once, or not at all."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._messages = Messages(schema, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task, under the id of the query, which is in its checkpoint."""
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(QUERY)
        if query is None:
            raise RuntimeError("Spark does not tell the query's id to its tasks; PySpark 4.2 and later do")
        return stage(self._options, self._messages, query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a micro-batch."""
        commit(self._options, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Forget a micro-batch."""
        abort(self._options, messages)
