"""Silver: messages decoded according to schemas.toml, and malformed ones in tables of their own."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyrite.pipeline.schemas import TopicSchema, read_schemas

spark = SparkSession.active()
schemas = read_schemas("schemas.toml")


def define(schema: TopicSchema) -> None:
    """Define the tables of a schema."""

    @dp.table(name=schema.silver, comment=f"messages on {schema.topic}, decoded")
    def silver() -> DataFrame:
        good = schema.decode(spark.readStream.table("bronze")).where("NOT bad")
        fields = [F.col(f"fields.{name}").alias(column) for name, column in schema.columns.items()]
        return good.select("offset", "timestamp", "topic", "device", "event_time", *fields)

    @dp.table(name=schema.bad, comment=f"messages on {schema.topic} that do not match the schema, unchanged")
    def bad() -> DataFrame:
        wrong = schema.decode(spark.readStream.table("bronze")).where("bad")
        return wrong.select("offset", "timestamp", "topic", "payload", "client_id")


for each in schemas:
    define(each)
