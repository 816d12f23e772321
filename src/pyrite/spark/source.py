"""`format("pyrite")`: the log as a data source of Spark, and the broker as a sink."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyrite.spark.errors import plain_errors
from pyrite.spark.locations import check_stream
from pyrite.spark.options import read_options, write_options
from pyrite.spark.reading import BatchReader
from pyrite.spark.sink import BatchWriter, MicroBatchWriter
from pyrite.spark.streaming import MicroBatchReader
from pyrite.storage.query import SCHEMA


class PyriteSource(DataSource):
    """Data source that Spark knows as `pyrite`."""

    @plain_errors
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        read_options(options)  # valid options for writing are valid for reading as well

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pyrite"

    @plain_errors
    def schema(self) -> StructType:
        """Return the columns of the log: the schema unless the query gives one."""
        options = read_options(self.options)
        check_stream(options.location, options.stream)
        return from_arrow_schema(SCHEMA)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for `spark.read`."""
        return BatchReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for `spark.readStream`."""
        return MicroBatchReader(read_options(self.options), schema)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for `df.write`."""
        return BatchWriter(write_options(self.options), schema, overwrite)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer for `df.writeStream`; every output mode publishes its rows."""
        return MicroBatchWriter(write_options(self.options), schema)
