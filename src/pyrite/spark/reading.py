"""Read a range of the log as a DataFrame, in partitions of Arrow record batches."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyrite.spark.columns import Columns
from pyrite.spark.locations import Log, open_log
from pyrite.spark.options import OptionError, ReadOptions
from pyrite.spark.pushdown import push
from pyrite.storage.query import MAX_PARTS, DataLoss, Query

MIN_PARTITION_MESSAGES = 50_000
"""Messages below which another partition is not worthwhile."""
MAX_PARTITION_MESSAGES = 2_000_000
"""Messages above which a partition is split."""

_logger = logging.getLogger("pyrite.spark")


@dataclass
class OffsetRange(InputPartition):
    """A range of offsets, read by one task."""

    start: int
    stop: int


def parts_of(log: Log, options: ReadOptions, start: int, stop: int) -> list[OffsetRange]:
    """Split a range: into few parts if small, one per core, or several per core if large."""
    messages = stop - start
    cores = os.cpu_count() or 1
    parts = min(
        ceil(messages / MIN_PARTITION_MESSAGES), cores * ceil(messages / cores / MAX_PARTITION_MESSAGES)
    )
    parts = min(max(parts, options.min_partitions), MAX_PARTS)
    return [OffsetRange(*part) for part in log.split(options.stream, start, stop, parts)]


def start_of(log: Log, options: ReadOptions, default: str) -> int:
    """Return the first offset to read; raise OptionError if it is beyond the end of the stream."""
    start = log.offset(options.stream, options.starting or default)
    end = log.bounds(options.stream).end
    if start > end:
        ends = f"stream {options.stream} ends at offset {end}"
        raise OptionError(f"option startingOffsets: {ends}, before offset {start}")
    return start


def query_of(options: ReadOptions, columns: Columns) -> Query:
    """Return the query that the options describe."""
    return Query(
        options.stream,
        topics=() if options.topic is None else (options.topic,),
        columns=columns.needed,
        lost="fail" if options.fail_on_data_loss else "skip",
    )


def read(options: ReadOptions, columns: Columns, query: Query) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query in the columns that Spark asked for."""
    for batch in open_log(options.location).read(query, warn):
        yield columns.shape(batch)


def lost(options: ReadOptions, what: str) -> None:
    """Report lost messages: raise DataLoss, or warn if the options allow loss."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{what} (with the option failOnDataLoss=false this is a warning)")
    warn(what)


def warn(what: str) -> None:
    """Log lost messages as a warning."""
    _logger.warning("data loss: %s", what)


class BatchReader(DataSourceReader):
    """Reader of `spark.read`: the whole stream, or the range that the options select."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = Columns(schema, options.payload_format)
        self._query: Query | None = query_of(options, self._columns)

    def partitions(self) -> list[OffsetRange]:
        """Split the range; positions are resolved here, once for all partitions."""
        options, query = self._options, self._query
        log = open_log(options.location)
        start = start_of(log, options, "earliest")
        stop = log.offset(options.stream, options.ending or "latest")
        if start > stop and (options.starting or "earliest").strip().lower() != "earliest":
            said = f"{options.ending} is offset {stop}, before startingOffsets ({options.starting}: {start})"
            raise OptionError(f"option endingOffsets: {said}")
        stop = min(stop, log.bounds(options.stream).end)
        if query is None:
            return []
        start, stop = max(start, query.start), min(stop, query.stop)
        return parts_of(log, options, start, stop) if start < stop else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition."""
        if self._query is None or not isinstance(partition, OffsetRange):
            return  # Spark makes an empty partition if there is none
        yield from read(self._options, self._columns, self._query.part(partition.start, partition.stop))


class FilteringReader(BatchReader):
    """Reader that accepts filters, used with `filterPushdown=true` only.

    Spark keeps one reader for all queries of a DataFrame (PythonDataSourceV2 holds the first, or the last one
    to which filters were pushed), so another query of the DataFrame would get these filters too. See
    docs/spark.md.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Accept the filters that the log can apply; return the rest."""
        if self._query is None:
            return []
        self._query, left = push(self._query, filters)
        return left
