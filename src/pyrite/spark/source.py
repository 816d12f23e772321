"""`format("pyrite")`: the log as a data source of Spark's, and the broker as a sink."""

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

from pyrite.queries import SCHEMA
from pyrite.spark.options import read_options, write_options
from pyrite.spark.places import check_stream
from pyrite.spark.reading import BatchReader, FilteringReader
from pyrite.spark.sink import BatchWriter, StreamWriter
from pyrite.spark.streaming import StreamReader


class PyriteSource(DataSource):
    """What Spark calls by the name `pyrite`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        read_options(options)  # what is good for writing is good for reading, too

    @classmethod
    def name(cls) -> str:
        """Return what `format` is called with."""
        return "pyrite"

    def schema(self) -> StructType:
        """Return the columns of the log, for who does not ask for others; Spark asks when it loads."""
        options = read_options(self.options)
        check_stream(options.place, options.stream)
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads for `spark.read`."""
        options = read_options(self.options)
        return (FilteringReader if options.filter_pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads for `spark.readStream`."""
        return StreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes for `df.write`."""
        return BatchWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes for `df.writeStream`; every output mode means that its rows are published."""
        return StreamWriter(write_options(self.options), schema)
