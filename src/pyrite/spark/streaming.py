"""Read the log as it grows, for `spark.readStream`. Spark's offsets are the log's offsets."""

from __future__ import annotations

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

from pyrite.spark.columns import Columns
from pyrite.spark.locations import open_log
from pyrite.spark.options import OptionError, ReadOptions
from pyrite.spark.reading import OffsetRange, lost, parts_of, query_of, read, start_of

Offset = dict[str, int]


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of micro-batches: ranges of offsets, which Spark checkpoints before it reads them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.ending is not None:
            raise OptionError("option endingOffsets works with spark.read only: a stream has no end")
        self._options = options
        self._columns = Columns(schema, options.payload_format)
        self._query = query_of(options, self._columns)
        self._target: int | None = None

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

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the offset at which the query ends."""
        self._target = open_log(self._options.location).bounds(self._options.stream).end

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch."""
        options = self._options
        log = open_log(options.location)
        begin = start["offset"]
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
        return {"offset": end}

    def reportLatestOffset(self) -> Offset:
        """Return the end of the log, for Spark's progress report."""
        return {"offset": open_log(self._options.location).bounds(self._options.stream).end}

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

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition."""
        assert isinstance(partition, OffsetRange)
        return read(self._options, self._columns, self._query.part(partition.start, partition.stop))
