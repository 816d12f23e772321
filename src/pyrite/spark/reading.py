"""Read a range of the log as a DataFrame, in partitions of Arrow record batches."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyrite.spark.columns import Columns
from pyrite.spark.errors import plain_errors
from pyrite.spark.locations import Log, open_log
from pyrite.spark.options import OptionError, ReadOptions
from pyrite.storage.positions import Ago, Time, parse_position
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
    ends = f"option startingOffsets: stream {options.stream} ends at offset {end}"
    if start > end:
        raise OptionError(f"{ends}, before offset {start}")
    if start == end and options.after_end == "error" and _is_time(options.starting):
        raise OptionError(
            f"{ends}, before {options.starting}; with startingOffsetsByTimestampStrategy=latest the query "
            "begins with the next message"
        )
    return start


def _is_time(position: str | None) -> bool:
    return position is not None and isinstance(parse_position(position), Time | Ago)


def query_of(options: ReadOptions, columns: Columns) -> Query:
    """Return the query that the options describe."""
    return Query(
        options.stream,
        topics=options.topics,
        columns=columns.needed,
        lost="fail" if options.fail_on_data_loss else "skip",
    )


def read(options: ReadOptions, columns: Columns, query: Query) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query in the columns that Spark asked for."""
    for batch in open_log(options.location, in_executor=True).read(query, warn):
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
        self._query = query_of(options, self._columns)

    @plain_errors
    def partitions(self) -> list[OffsetRange]:
        """Split the range; positions are resolved here, once for all partitions."""
        options, query = self._options, self._query
        log = open_log(options.location)
        log.check(query)
        start = start_of(log, options, "earliest")
        stop = log.offset(options.stream, options.ending or "latest")
        if start > stop and (options.starting or "earliest").strip().lower() != "earliest":
            said = f"{options.ending} is offset {stop}, before startingOffsets ({options.starting}: {start})"
            raise OptionError(f"option endingOffsets: {said}")
        stop = min(stop, log.bounds(options.stream).end)
        start, stop = max(start, query.start), min(stop, query.stop)
        return parts_of(log, options, start, stop) if start < stop else []

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition."""
        if not isinstance(partition, OffsetRange):
            return  # Spark makes an empty partition if there is none
        yield from read(self._options, self._columns, self._query.part(partition.start, partition.stop))
