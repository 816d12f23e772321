"""The schemas of payloads: a project's schemas.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrite.pipeline.errors import PipelineError
from pyrite.topics.filters import InvalidTopic, check_filter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WHOLE = ("byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint")
_FRACTIONS = ("float", "real", "double", "dec", "decimal", "numeric")
NUMBERS = (*_WHOLE, *_FRACTIONS)
"""Numeric types, by all of Spark's names for them."""
OWN = ("offset", "timestamp", "topic", "device", "event_time")
"""Columns of every silver table."""
BAD = "_bad"
"""Spark's column for payloads that do not match."""
_KEYS = {"topic", "fields", "format", "device", "time", "time_unit"}
_NUMBERS = "array<struct<field: string, value: double>>"
_RESULT = f"struct<result: string, event_time: timestamp, device: string, numbers: {_NUMBERS}>"
FORMATS = ("json", "csv", "number", "text")
"""Formats of payloads."""
MAX_DEVICE = 200
"""Characters of a device's name that come from a payload."""
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_LAST_MICROS = 253_402_300_799_000_000
"""The end of the year 9999."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TYPE = re.compile(r"\s*(\w+)")
_STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
"""Options that make Spark's JSON parser strict."""


@dataclass(frozen=True)
class TopicSchema:
    """The fields of the JSON objects on matching topics."""

    name: str
    topic: str
    """A topic filter."""
    fields: dict[str, str]
    """Spark type by field."""
    format: str = "json"
    """One of FORMATS."""
    device_from: tuple[int, ...] | str | None = None
    """Levels of the topic, from 1, or a field; without it the level at the filter's first +."""
    time: str | None = "time"
    """The field with the time of the measurement, which may be missing."""
    time_unit: str | None = None
    """The unit of a time that is a number: s, ms or us since 1970."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the silver table by field: a field named as one of OWN gets a prefix."""
        names = (name for name in self.fields if name != self.time)
        return {name: f"payload_{name}" if name.lower() in OWN else name for name in names}

    @property
    def silver(self) -> str:
        """The table of decoded messages."""
        return f"silver_{self.name}"

    @property
    def bad(self) -> str:
        """The table of messages that do not match."""
        return f"bad_{self.name}"

    @property
    def alerts(self) -> str:
        """The table of alerts."""
        return f"alerts_{self.name}"

    @property
    def ddl(self) -> str:
        """The fields as DDL for from_json."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.fields.items())

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numeric fields: `decimal(9, 3)` and `int NOT NULL` are numeric, `array<int>` is not."""
        types = {name: _TYPE.match(kind.lower()) for name, kind in self.fields.items()}
        numbers = (name for name, found in types.items() if found and found[1] in NUMBERS)
        return tuple(name for name in numbers if name != self.time)

    @property
    def pattern(self) -> str:
        """A regular expression equivalent to the topic filter."""
        if self.topic == "#":
            return "^[^$]"
        levels = self.topic.split("/")
        below = levels[-1] == "#"
        if below:
            levels.pop()
        # Java takes everything between \Q and \E literally.
        parts = ["[^/]*" if level == "+" else rf"\Q{level}\E" for level in levels]
        return f"^{'/'.join(parts)}{'(/.*)?' if below else ''}$"

    def decode(self, messages: DataFrame) -> DataFrame:
        """Return the messages on matching topics with additional columns.

        `fields` has the decoded payload; `bad` is true if it does not match the schema; `device` is the topic
        level at the filter's first + (the whole topic without one); `event_time` is the time of the
        measurement; `parsed` is the output of from_json, from which the first two are derived.
        """
        from pyspark.sql import functions as F

        decoded = messages.where(self.matches()).select("*", self.parsed().alias("parsed"))
        return decoded.select(
            "*",
            F.col("parsed.fields").alias("fields"),
            self.bad_column("parsed").alias("bad"),
            self.device("parsed").alias("device"),
            self.event_time("parsed").alias("event_time"),
        )

    def matches(self) -> Column:
        """Return a column that is true for messages of this schema."""
        from pyspark.sql import functions as F

        return F.col("topic").rlike(self.pattern)

    def parsed(self) -> Column:
        """Return a column with the payload as a struct."""
        from pyspark.sql import functions as F

        if self.format == "csv":
            options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
            row = F.from_csv(self._text(), f"{self.ddl}, {BAD} STRING", options)
            fields = F.struct(*(row.getField(name).alias(name) for name in self.fields))
            return F.struct(fields.alias("fields"), row.getField(BAD).alias(BAD))
        if self.format != "json":
            ((name, kind),) = self.fields.items()
            fits = self._text().rlike(_NUMBER) if self.format == "number" else F.lit(True)
            value = F.when(fits, F.trim(self._text()) if self.format == "number" else self._text())
            wrong = F.when(value.isNull(), F.lit(""))
            return F.struct(F.struct(value.cast(kind).alias(name)).alias("fields"), wrong.alias(BAD))
        # Spark's parser stops at the end of the first value. Within braces and within brackets it has to
        # parse the whole text; text that would close one of them too early is an error in the other.
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD, **_STRICT}
        in_braces = F.concat(F.lit('{"fields":'), self._text(), F.lit("}"))
        return F.from_json(in_braces, f"fields STRUCT<{self.ddl}>, {BAD} STRING", options)

    def bad_column(self, parsed: str) -> Column:
        """Return a column that is true if the payload, parsed into a column, does not match the schema."""
        from pyspark.sql import functions as F

        wrong = F.col(f"{parsed}.fields").isNull() | F.col(f"{parsed}.{BAD}").isNotNull()
        if self.format != "json":
            return wrong | self._text().isNull()
        alone = F.json_array_length(F.concat(F.lit("["), self._text(), F.lit("]"))).eqNullSafe(1)
        return ~alone | wrong

    def device(self, parsed: str) -> Column:
        """Return a column with the device."""
        from pyspark.sql import functions as F

        if isinstance(self.device_from, str):
            # A device is a level of the alerts' topics, where wildcards are invalid.
            name = F.col(f"{parsed}.fields.{self.device_from}").cast("string")
            safe = F.substring(F.regexp_replace(name, "[+#\\x00]", "_"), 1, MAX_DEVICE)
            return F.coalesce(safe, F.col("topic"))
        levels = self.topic.split("/")
        if self.device_from is not None:
            return F.concat_ws("/", *(F.split("topic", "/").getItem(at - 1) for at in self.device_from))
        return F.split("topic", "/").getItem(levels.index("+")) if "+" in levels else F.col("topic")

    def event_time(self, parsed: str) -> Column:
        """Return a column with the time of the measurement, or else the broker's."""
        from pyspark.sql import functions as F

        measured = F.col("timestamp")
        if self.time in self.fields:
            measured = F.col(f"{parsed}.fields.{self.time}")
        if self.time_unit is not None:
            micros = measured.cast("double") * _UNITS[self.time_unit]
            sane = micros.between(0, _LAST_MICROS)
            measured = F.when(sane, F.timestamp_micros(F.when(sane, micros).cast("bigint")))
        # Never later than the broker's time: a clock that is ahead would make other devices' messages late.
        return F.least(F.coalesce(measured, "timestamp"), "timestamp")

    def result(self, parsed: str) -> Column:
        """Return a column with what gold tables need to know of a message: a struct."""
        from pyspark.sql import functions as F

        bad = self.bad_column(parsed)
        numbers = [
            F.struct(
                F.lit(name).alias("field"), F.col(f"{parsed}.fields.{name}").cast("double").alias("value")
            )
            for name in self.numbers
        ]
        # An empty array has no element type.
        return F.struct(
            F.when(bad, "bad").otherwise("decoded").alias("result"),
            F.when(bad, F.col("timestamp")).otherwise(self.event_time(parsed)).alias("event_time"),
            self.device(parsed).alias("device"),
            F.when(bad, F.array().cast(_NUMBERS))
            .otherwise(F.array(*numbers).cast(_NUMBERS))
            .alias("numbers"),
        ).cast(_RESULT)

    def _text(self) -> Column:
        from pyspark.sql import functions as F

        return F.try_validate_utf8(F.col("payload").cast("string"))


def results_of(messages: DataFrame, schemas: Sequence[TopicSchema]) -> DataFrame:
    """Return what gold tables are made of: for each message its result, device, time and numbers."""
    from pyspark.sql import functions as F

    parsed = [F.when(schema.matches(), schema.parsed()).alias(f"parsed_{schema.name}") for schema in schemas]
    results = [F.when(schema.matches(), schema.result(f"parsed_{schema.name}")) for schema in schemas]
    without = F.struct(
        F.lit("none").alias("result"),
        F.col("timestamp").alias("event_time"),
        F.lit(None).cast("string").alias("device"),
        F.array().cast(_NUMBERS).alias("numbers"),
    ).cast(_RESULT)
    read = messages.select("topic", "timestamp", "payload", *parsed)
    judged = read.select(
        "topic",
        "timestamp",
        F.length("payload").cast("long").alias("bytes"),
        F.coalesce(*results, without).alias("found"),
    )
    return judged.select("topic", "timestamp", "bytes", "found.*")


def read_schemas(path: str | Path) -> list[TopicSchema]:
    """Read schemas.toml; raises PipelineError."""
    try:
        with open(path, "rb") as file:
            sections = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise PipelineError(f"{path}: {error}") from None
    if not sections:
        raise PipelineError(f"{path}: no schema; expected a section such as [telemetry]")
    schemas = [_schema(str(path), name, section) for name, section in sections.items()]
    for one, other in combinations(schemas, 2):
        if _overlap(one.topic, other.topic):
            raise PipelineError(
                f"{path}: [{one.name}] and [{other.name}]: a topic may match both {one.topic!r} and "
                f"{other.topic!r}; use filters that cannot match the same topic, as a message has one "
                "schema"
            )
    return schemas


def _schema(path: str, name: str, section: Any) -> TopicSchema:
    where = f"{path}: [{name}]"
    if not _NAME.fullmatch(name):
        raise PipelineError(f"{where}: a schema's name must consist of lower-case letters, digits and _")
    if not isinstance(section, dict) or not {"topic", "fields"} <= set(section) <= _KEYS:
        raise PipelineError(
            f'{where}: expected topic = "FILTER" and a section [{name}.fields]; also possible: '
            f"{', '.join(sorted(_KEYS - {'topic', 'fields'}))}; and nothing else"
        )
    topic, fields = section["topic"], section["fields"]
    try:
        check_filter(str(topic).encode())
    except InvalidTopic as wrong:
        raise PipelineError(f"{where}: topic = {topic!r}: {wrong}") from None
    if not isinstance(fields, dict) or not fields:
        raise PipelineError(f'{where}: expected at least one field, such as temperature = "double"')
    for field, kind in fields.items():
        if not _NAME.fullmatch(field.lower()):
            raise PipelineError(f"{where}: invalid field name {field!r}")
        if not isinstance(kind, str):
            raise PipelineError(f'{where}: {field} = {kind!r}: expected a Spark type, such as "double"')
    form = section.get("format", "json")
    if form not in FORMATS:
        raise PipelineError(f"{where}: format = {form!r}: expected one of {', '.join(FORMATS)}")
    if form in ("number", "text") and len(fields) != 1:
        raise PipelineError(f"{where}: format = {form!r}: expected one field, which is the payload")
    time, unit = section.get("time", "time"), section.get("time_unit")
    if "time" in section and time not in fields:
        raise PipelineError(f"{where}: time = {time!r}: no such field")
    if unit is not None and unit not in _UNITS:
        raise PipelineError(f"{where}: time_unit = {unit!r}: expected one of {', '.join(_UNITS)}")
    device = _device(where, str(topic), fields, section.get("device"))
    return TopicSchema(name, str(topic), dict(fields), form, device, time, unit)


def _device(where: str, topic: str, fields: dict[str, str], device: Any) -> tuple[int, ...] | str | None:
    if device is None or (isinstance(device, str) and device in fields):
        return device
    levels = [device] if isinstance(device, int) else device
    count = len(topic.split("/"))
    if isinstance(levels, list) and levels and all(type(at) is int and 0 < at <= count for at in levels):
        return tuple(levels)
    raise PipelineError(
        f"{where}: device = {device!r}: expected a level of the topic (1 to {count}), a list of levels, or "
        "a field"
    )


def _overlap(one: str, other: str) -> bool:
    """True if a topic can match both filters."""
    if one.startswith("$") != other.startswith("$"):
        return False  # a wildcard does not match a first level that starts with $
    for level, opposite in zip_longest(one.split("/"), other.split("/")):
        if "#" in (level, opposite):
            return True
        if None in (level, opposite) or (level != opposite and "+" not in (level, opposite)):
            return False
    return True
