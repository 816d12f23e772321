"""What the payloads on topics are: the file schemas.toml of a project."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from itertools import combinations, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrite.topics.filters import InvalidTopic, check_filter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WHOLE = ("byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint")
_FRACTIONS = ("float", "real", "double", "dec", "decimal", "numeric")
NUMBERS = (*_WHOLE, *_FRACTIONS)
"""The types whose values are summarised and watched, by all the names that Spark has for them."""
OWN = ("offset", "timestamp", "topic", "device", "event_time")
"""The columns that every silver table has."""
BAD = "_bad"
"""Where Spark puts a payload that does not fit."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TYPE = re.compile(r"\s*(\w+)")
_LEVELS = 65_536
_STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
"""What Spark would take for JSON though it is none."""


class SchemaError(ValueError):
    """A schema that cannot be; the text says where, and what to write."""


@dataclass(frozen=True)
class TopicSchema:
    """The fields of the JSON objects on a topic."""

    name: str
    topic: str
    """A topic filter."""
    fields: dict[str, str]
    """Their types, as Spark names them."""

    @property
    def silver(self) -> str:
        """The table of what was decoded."""
        return f"silver_{self.name}"

    @property
    def bad(self) -> str:
        """The table of what does not fit."""
        return f"bad_{self.name}"

    @property
    def alerts(self) -> str:
        """The table of what stands out."""
        return f"alerts_{self.name}"

    @property
    def ddl(self) -> str:
        """The fields as Spark's from_json wants them."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.fields.items())

    @property
    def numbers(self) -> tuple[str, ...]:
        """The fields that are numbers: `decimal(9, 3)` and `int NOT NULL` are, `array<int>` is not."""
        types = {name: _TYPE.match(kind.lower()) for name, kind in self.fields.items()}
        return tuple(name for name, found in types.items() if found and found[1] in NUMBERS)

    @property
    def pattern(self) -> str:
        """A regular expression for the topics that the filter matches."""
        if self.topic == "#":
            return "^[^$]"
        levels = self.topic.split("/")
        below = levels[-1] == "#"
        if below:
            levels.pop()
        # Between \Q and \E, Java takes everything as it is.
        parts = ["[^/]*" if level == "+" else rf"\Q{level}\E" for level in levels]
        return f"^{'/'.join(parts)}{'(/.*)?' if below else ''}$"

    def decode(self, messages: DataFrame) -> DataFrame:
        """Return the messages on this topic with columns more.

        `fields` is what is in the payload; `bad`, whether it does not fit; `device`, the level of the topic
        at the filter's first + (the whole topic if there is none); `event_time`, when the device measured;
        `parsed`, what Spark has read, of which the first two are made.
        """
        from pyspark.sql import functions as F

        text = F.try_validate_utf8(F.col("payload").cast("string"))
        levels = self.topic.split("/")
        device = F.split("topic", "/").getItem(levels.index("+")) if "+" in levels else F.col("topic")
        fields = F.col("parsed.fields")
        measured = fields.getField("time") if "time" in self.fields else F.col("timestamp")
        # Spark stops reading where the first value ends. Between braces it has to go on to the end, and so it
        # has between brackets; what would close the ones too early is a mistake between the others.
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD, **_STRICT}
        in_braces = F.concat(F.lit('{"fields":'), text, F.lit("}"))
        parsed = F.from_json(in_braces, f"fields STRUCT<{self.ddl}>, {BAD} STRING", options)
        in_brackets = F.concat(F.lit("["), text, F.lit("]"))
        alone = F.json_array_length(in_brackets).eqNullSafe(1)
        decoded = messages.where(F.col("topic").rlike(self.pattern)).select("*", parsed.alias("parsed"))
        bad = ~(alone & fields.isNotNull() & F.col(f"parsed.{BAD}").isNull())
        # Never after the message came: a clock that is ahead would make everyone else late.
        event_time = F.least(F.coalesce(measured, "timestamp"), "timestamp")
        return decoded.select(
            "*",
            fields.alias("fields"),
            bad.alias("bad"),
            device.alias("device"),
            event_time.alias("event_time"),
        )

    def measurements(self, decoded: DataFrame) -> DataFrame:
        """Return a row for each number in a table of decoded messages: `device`, `field` and `value`."""
        from pyspark.sql import functions as F

        numbers = [
            F.struct(F.lit(name).alias("field"), F.col(name).cast("double").alias("value"))
            for name in self.numbers
        ]
        # An array of none has no type of its own.
        array = F.array(*numbers).cast("array<struct<field: string, value: double>>")
        rows = decoded.select("device", F.explode(array).alias("number"))
        return rows.select("device", "number.*").where("value IS NOT NULL")


def read_schemas(path: str | Path) -> list[TopicSchema]:
    """Read a file of schemas; SchemaError if it is not as it has to be."""
    try:
        with open(path, "rb") as file:
            sections = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SchemaError(f"{path}: {error}") from None
    if not sections:
        raise SchemaError(f"{path}: there is no schema in it, as in [telemetry]")
    schemas = [_schema(str(path), name, section) for name, section in sections.items()]
    for one, other in combinations(schemas, 2):
        if _overlap(one.topic, other.topic):
            raise SchemaError(
                f"{path}: [{one.name}] and [{other.name}]: a topic may match both {one.topic!r} and "
                f"{other.topic!r}; a message has one schema, so take filters that share no topic"
            )
    return schemas


def _schema(path: str, name: str, section: Any) -> TopicSchema:
    where = f"{path}: [{name}]"
    if not _NAME.fullmatch(name):
        raise SchemaError(f"{where}: a name is of small letters, digits and _, for it names a table")
    if not isinstance(section, dict) or set(section) != {"topic", "fields"}:
        raise SchemaError(
            f'{where}: expected topic = "FILTER" and a section [{name}.fields], and nothing else'
        )
    topic, fields = section["topic"], section["fields"]
    try:
        check_filter(str(topic).encode(), _LEVELS)
    except InvalidTopic as wrong:
        raise SchemaError(f"{where}: topic = {topic!r}: {wrong}") from None
    if not isinstance(fields, dict) or not fields:
        raise SchemaError(f'{where}: there are no fields, as in temperature = "double"')
    for field, kind in fields.items():
        if field in OWN or not _NAME.fullmatch(field.lower()):
            raise SchemaError(f"{where}: a field cannot be called {field!r}")
        if not isinstance(kind, str):
            raise SchemaError(f'{where}: {field} = {kind!r}: expected a type of Spark\'s, as "double"')
    return TopicSchema(name, str(topic), dict(fields))


def _overlap(one: str, other: str) -> bool:
    """Tell whether there are topics that two filters match."""
    if one.startswith("$") != other.startswith("$"):
        return False  # a wildcard does not stand for a first level with $
    for level, opposite in zip_longest(one.split("/"), other.split("/")):
        if "#" in (level, opposite):
            return True
        if None in (level, opposite) or (level != opposite and "+" not in (level, opposite)):
            return False
    return True
