"""Read the log as it grows, for `spark.readStream`. Spark's offsets are the log's offsets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyrite.errors import PyriteError
from pyrite.spark.columns import Columns
from pyrite.spark.errors import plain_errors
from pyrite.spark.locations import Log, open_log
from pyrite.spark.options import OptionError, ReadOptions
from pyrite.spark.reading import OffsetRange, lost, parts_of, query_of, read, start_of, warn

Offset = dict[str, int]
MAX_SILENCE = 30.0
"""Seconds after which the broker is told again how far an idle query is."""


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of micro-batches: ranges of offsets, which Spark checkpoints before it reads them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.ending is not None:
            raise OptionError("option endingOffsets works with spark.read only: a stream has no end")
        self._options = options
        self._columns = Columns(schema, options.payload_format)
        self._query = query_of(options, self._columns)
        self._target: int | None = None
        self._told, self._told_at = -1, 0.0
        """The offset that the broker was told last, and when."""
        self._checked = False
        """True once the right to read was checked."""
        self._began_at: float | None = None
        """When the last micro-batch with messages began."""

    @plain_errors
    def initialOffset(self) -> Offset:
        """Return the start of a query without a checkpoint."""
        return {"offset": start_of(open_log(self._options.location), self._options, "latest")}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the maximum size of a micro-batch."""
        if self._options.messages_per_trigger is not None:
            return ReadMaxRows(self._options.messages_per_trigger)
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        return ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Record the offset at which the query ends."""
        self._target = open_log(self._options.location).bounds(self._options.stream).end

    @plain_errors
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch."""
        options = self._options
        log = open_log(options.location)
        begin = start["offset"]
        if not self._checked:
            log.check(self._query)
            self._checked = True
        self._tell(log, begin)
        end = log.bounds(options.stream).end
        if end < begin:
            what = f"stream {options.stream} ends at offset {end}, but was read up to offset {begin} before"
            lost(options, what)
            return {"offset": end}
        if self._target is not None:
            end = max(begin, min(end, self._target))
        if begin < end and isinstance(limit, ReadMaxRows | ReadMaxBytes):
            messages, size = options.messages_per_trigger, options.bytes_per_trigger
            end = min(end, log.advance(options.stream, begin, messages, size))
        if self._should_wait(end - begin):
            return start
        return {"offset": end}

    def _tell(self, log: Log, offset: int) -> None:
        """Tell the broker how far the query has come, if it has a name."""
        reader, now = self._options.reader, time.monotonic()
        if reader is None or (offset == self._told and now - self._told_at < MAX_SILENCE):
            return
        self._told, self._told_at = offset, now
        try:
            log.progress(reader, self._query, offset)
        except (PyriteError, OSError, pa.ArrowException) as error:  # the query goes on
            warn(f"the broker does not show the reader {reader}: {error}")

    def _should_wait(self, messages: int) -> bool:
        """Return whether a micro-batch with so few messages should wait for more."""
        least, now = self._options.min_messages, time.monotonic()
        may_wait = self._target is None and least is not None and messages < least
        if may_wait and self._began_at is not None and now - self._began_at < self._options.max_delay:
            return True
        if messages:
            self._began_at = now
        return False

    @plain_errors
    def reportLatestOffset(self) -> Offset:
        """Return the end of the log, for Spark's progress report."""
        return {"offset": open_log(self._options.location).bounds(self._options.stream).end}

    @plain_errors
    def partitions(self, start: Offset, end: Offset) -> Sequence[OffsetRange]:
        """Split a micro-batch."""
        begin, stop = start["offset"], end["offset"]
        log = open_log(self._options.location)
        first = log.bounds(self._options.stream).first
        if begin > stop:  # the log was created anew: every message is new
            begin = first
        if begin < min(first, stop):
            stream, last = self._options.stream, min(first, stop) - 1
            lost(self._options, f"stream {stream}: offsets {begin} to {last} were dropped by retention")
            begin = min(first, stop)
        return parts_of(log, self._options, begin, stop)

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition."""
        assert isinstance(partition, OffsetRange)
        return read(self._options, self._columns, self._query.part(partition.start, partition.stop))
