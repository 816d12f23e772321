"""What the payloads on topics are: the file schemas.toml of a project."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrite.broker.topics import InvalidTopic, check_filter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMBERS = ("tinyint", "smallint", "int", "integer", "bigint", "float", "double")
"""The types whose values are summarised and watched."""
OWN = ("offset", "timestamp", "topic", "device", "event_time")
"""The columns that every silver table has."""
BAD = "_bad"
"""Where Spark puts a payload that does not fit."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LEVELS = 65_536


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
        """The fields that are numbers."""
        return tuple(name for name, kind in self.fields.items() if kind.lower() in NUMBERS)

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
        """Return the messages on this topic with four columns more.

        `fields` is what is in the payload; `bad`, whether it does not fit; `device`, the level of the topic
        at the filter's first + (the whole topic if there is none); `event_time`, when the device measured.
        """
        from pyspark.sql import functions as F

        text = F.decode("payload", "UTF-8")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        levels = self.topic.split("/")
        device = F.split("topic", "/").getItem(levels.index("+")) if "+" in levels else F.col("topic")
        measured = F.col("fields.time") if "time" in self.fields else F.col("timestamp")
        payload = F.from_json(text, f"{self.ddl}, {BAD} STRING", options)
        decoded = messages.where(F.col("topic").rlike(self.pattern)).select("*", payload.alias("fields"))
        bad = F.col("fields").isNull() | F.col(f"fields.{BAD}").isNotNull()
        # Never after the message came: a clock that is ahead would make everyone else late.
        event_time = F.least(F.coalesce(measured, "timestamp"), "timestamp")
        return decoded.select("*", bad.alias("bad"), device.alias("device"), event_time.alias("event_time"))


def read_schemas(path: str | Path) -> list[TopicSchema]:
    """Read a file of schemas; SchemaError if it is not as it has to be."""
    try:
        with open(path, "rb") as file:
            sections = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SchemaError(f"{path}: {error}") from None
    if not sections:
        raise SchemaError(f"{path}: there is no schema in it, as in [telemetry]")
    return [_schema(str(path), name, section) for name, section in sections.items()]


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
