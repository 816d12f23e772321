"""Reading a range of the log as a DataFrame: in parts, each an iterator of Arrow record batches."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyrite.queries import MAX_PARTS, DataLoss, Query
from pyrite.spark.columns import Columns
from pyrite.spark.options import OptionError, ReadOptions
from pyrite.spark.places import Log, open_log
from pyrite.spark.pushdown import push

SMALL = 50_000
"""Messages that are not worth a part of their own."""
LARGE = 2_000_000
"""Messages that are too many for one part."""

_logger = logging.getLogger("pyrite.spark")


@dataclass
class Part(InputPartition):
    """A range of offsets, to be read by a task."""

    start: int
    stop: int


def parts_of(log: Log, options: ReadOptions, start: int, stop: int) -> list[Part]:
    """Split a range: a part for each core here, or several for each if it is large; few if it is small."""
    messages = stop - start
    cores = os.cpu_count() or 1
    parts = min(ceil(messages / SMALL), cores * ceil(messages / cores / LARGE))
    parts = min(max(parts, options.min_partitions), MAX_PARTS)
    return [Part(*part) for part in log.split(options.stream, start, stop, parts)]


def start_of(log: Log, options: ReadOptions, default: str) -> int:
    """Return the offset to begin at; OptionError if the stream has not come so far."""
    start = log.offset(options.stream, options.starting or default)
    end = log.bounds(options.stream).end
    if start > end:
        ends = f"stream {options.stream} ends at offset {end}"
        raise OptionError(f"option startingOffsets: {ends}, there is no offset {start} yet")
    return start


def query_of(options: ReadOptions, columns: Columns) -> Query:
    """Return what is asked of the log by the options alone."""
    return Query(
        options.stream,
        topics=() if options.topic is None else (options.topic,),
        columns=columns.needed,
        lost="fail" if options.fail_on_data_loss else "skip",
    )


def read(options: ReadOptions, columns: Columns, query: Query) -> Iterator[pa.RecordBatch]:
    """Yield what a query asks for, as Spark wants it."""
    for batch in open_log(options.place).read(query, warn):
        yield columns.shape(batch)


def lost(options: ReadOptions, what: str) -> None:
    """Raise or warn, as the options say, because something is not there any more."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{what} (with the option failOnDataLoss=false this is a warning)")
    warn(what)


def warn(what: str) -> None:
    """Say on standard error what was lost."""
    _logger.warning("data loss: %s", what)


class BatchReader(DataSourceReader):
    """What `spark.read` reads: all of the stream, or what the options leave of it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = Columns(schema, options.payload_format)
        self._query: Query | None = query_of(options, self._columns)

    def partitions(self) -> list[Part]:
        """Split what is to be read; positions become offsets here, once for all parts."""
        options, query = self._options, self._query
        log = open_log(options.place)
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
        """Yield the messages of a part."""
        if self._query is None or not isinstance(partition, Part):
            return  # Spark makes a partition of its own if there is none
        yield from read(self._options, self._columns, self._query.part(partition.start, partition.stop))


class FilteringReader(BatchReader):
    """One that takes filters. Spark uses it for all queries of a DataFrame, also those with other filters.

    (PythonDataSourceV2 keeps the first reader, or the last to which filters were pushed.) So it is for who
    asks for it, and is told so in docs/spark.md.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Take what the log can do of the filters; return what Spark has to do."""
        if self._query is None:
            return []
        self._query, left = push(self._query, filters)
        return left
