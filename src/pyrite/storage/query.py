"""What a reader can ask of the log, for all that read much of it at once: Spark, Arrow Flight, HTTP and the
client.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import pyarrow as pa

from pyrite.errors import PyriteError
from pyrite.topics.filters import InvalidTopic, check_filter

FOREVER = 2**63 - 1
"""An offset that no message has."""
READER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""The name under which a program reads the log."""
MAX_PARTS = 10_000
"""Parts that a query may be split into."""

SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("client_id", pa.string()),
        pa.field("payload_format", pa.int8()),
        pa.field("message_expiry", pa.int64()),
        pa.field("content_type", pa.string()),
        pa.field("response_topic", pa.string()),
        pa.field("correlation_data", pa.binary()),
        pa.field("user_properties", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
    ]
)
"""The columns that readers see: one row a message."""
COLUMNS = tuple(SCHEMA.names)


class QueryError(PyriteError, ValueError):
    """The query is invalid, or asks for something that does not exist; the text says what is wrong."""


class DataLoss(PyriteError):
    """Some messages that were asked for are damaged, or no longer kept; the text says which."""


def check_number(name: str, value: object, least: int = -FOREVER - 1, most: int = FOREVER) -> None:
    """Raise QueryError unless `value` is an integer from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise QueryError(f"{name}={_shown(value)}: expected a number from {least} to {most}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:96]}..."


class Bounds(NamedTuple):
    """The offsets of a stream: from `first` on, before `end`."""

    first: int
    end: int


@dataclass(frozen=True)
class Query:
    """Which messages of a stream to read, and which columns."""

    stream: str = "default"
    start: int = 0
    """The first offset."""
    stop: int = FOREVER
    """The offset after the last."""
    topics: tuple[str, ...] = ()
    """Topic filters, one of which must match; none for all messages."""
    since: int | None = None
    until: int | None = None
    """Only messages that came at `since` or later, and before `until`, in microseconds since 1970."""
    columns: tuple[str, ...] = COLUMNS
    lost: str = "fail"
    """What to do about messages that are damaged or no longer kept: `fail`, or `skip`."""

    def __post_init__(self) -> None:
        if not isinstance(self.stream, str):
            raise QueryError(f"stream={_shown(self.stream)}: expected a text")
        check_number("start", self.start)
        check_number("stop", self.stop)
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None:
                check_number(name, time)
        for name, texts in (("topics", self.topics), ("columns", self.columns)):
            if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
                raise QueryError(f"{name}={_shown(texts)}: expected texts")
        for one in self.topics:
            try:
                check_filter(one.encode())
            except (InvalidTopic, UnicodeEncodeError) as wrong:
                raise QueryError(f"topics: invalid topic filter {_shown(one)}: {wrong}") from None
        if not self.columns:
            raise QueryError("columns: expected at least one")
        for name in self.columns:
            if name not in COLUMNS:
                raise QueryError(f"there is no column {name!r}; there are: {', '.join(COLUMNS)}")
        if self.lost not in ("fail", "skip"):
            raise QueryError(f"lost={self.lost!r}: expected 'fail' or 'skip'")

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows that are read."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def part(self, start: int, stop: int) -> Query:
        """Return this query for another range of offsets."""
        return replace(self, start=start, stop=stop)

    def to_json(self) -> bytes:
        """Serialize the query."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Query:
        """Parse what `to_json` returned; raise QueryError if it is invalid."""
        asked = read_object(data)
        known = [field.name for field in fields(cls)]
        for name, value in asked.items():
            if name not in known:
                raise QueryError(f"there is no {name!r} in a query; there are: {', '.join(known)}")
            if isinstance(value, list):
                asked[name] = tuple(value)
        return cls(**asked)


def read_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise QueryError if it is not one."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise QueryError("expected a JSON object")
    return found
