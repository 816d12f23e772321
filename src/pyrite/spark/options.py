"""Options of `format("pyrite")`: names, allowed values and errors."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyrite.errors import PyriteError
from pyrite.storage.positions import Ago, Offset, Time, parse_position
from pyrite.storage.query import FOREVER, MAX_PARTS, READER_NAME, QueryError
from pyrite.storage.stream import NAME
from pyrite.topics.filters import InvalidTopic, check_filter, check_topic

FILES = ("caFile", "certFile", "keyFile")
CONNECTING = ("broker", "path", "username", "password", "token", *FILES)
READING = (
    *CONNECTING,
    "stream",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "startingOffsetsByTimestampStrategy",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "readerName",
    "payloadFormat",
)
WRITING = (*CONNECTING, "topic")
SPARKS_OWN = (
    "checkpointlocation",
    "queryname",
    "asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms",
)
"""Options that Spark itself passes to a sink."""
TABLE_PROPERTIES = (
    "provider",
    "location",
    "owner",
    "comment",
    "external",
    "is_managed_location",
    "collation",
)
"""Options that Spark itself passes for a table of its catalog."""
FORMATS = ("json", "csv", "text")
"""Maximum number of levels in a topic, whose length is two bytes on the wire."""
_DURATION = re.compile(r"(\d{1,9})\s*(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class OptionError(PyriteError, ValueError):
    """Unknown option or invalid value; the text names the option."""


@dataclass(frozen=True)
class LogLocation:
    """The location of the log: a broker or a folder."""

    broker: str | None = None
    path: Path | None = None
    username: str | None = None
    password: str | None = None
    token: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True)
class ReadOptions:
    """What to read, and how much per trigger."""

    location: LogLocation
    stream: str = "default"
    topics: tuple[str, ...] = ()
    starting: str | None = None
    ending: str | None = None
    messages_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    payload_format: str | None = None
    after_end: str = "latest"
    """What to do with a start time after the end of the stream: latest or error."""
    min_messages: int | None = None
    """Messages that a micro-batch waits for, but not longer than `max_delay` seconds."""
    max_delay: float = 900.0
    reader: str | None = None
    """The name under which the broker shows the query."""


@dataclass(frozen=True)
class WriteOptions:
    """Where to publish."""

    location: LogLocation
    topic: str | None = None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a reader; raise OptionError for an invalid one."""
    given = own_options(given)
    _check_names(given, READING, "reading")
    options = _Given(given)
    return ReadOptions(
        options.location(),
        options.stream(),
        options.topic_filters(),
        *options.range(),
        options.count("maxMessagesPerTrigger"),
        options.count("maxBytesPerTrigger"),
        options.count("minPartitions", MAX_PARTS) or 1,
        options.flag("failOnDataLoss", True),
        options.one_of("payloadFormat", FORMATS),
        options.one_of("startingOffsetsByTimestampStrategy", ("latest", "error")) or "latest",
        options.count("minOffsetsPerTrigger"),
        options.seconds("maxTriggerDelay", 900.0),
        options.reader(),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the options of a writer; raise OptionError for an invalid one."""
    given = own_options(given)
    _check_names(given, WRITING, "writing")
    options = _Given(given)
    if options.get("path") is not None:
        raise OptionError("option path: a folder is read-only; to write, use the option broker")
    topic = options.get("topic")
    if topic is not None:
        try:
            check_topic(topic.encode())
        except InvalidTopic as wrong:
            raise OptionError(f"option topic, {topic!r}: {wrong}") from None
    return WriteOptions(options.location(), topic)


def own_options(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options without those that Spark adds for a table of its catalog.

    CREATE TABLE passes each option as `option.NAME` too, and a folder as `path` or `location`, which
    may be Spark's own.
    """
    lower = {name.lower(): value for name, value in given.items()}
    in_table = {name for name in lower if name.startswith("option.")}
    if not in_table and "provider" not in lower:
        return given
    own = {name.removeprefix("option."): lower[name] for name in in_table}
    given = own | {name: value for name, value in lower.items() if name not in (*in_table, *TABLE_PROPERTIES)}
    if "broker" in given:
        return {name: value for name, value in given.items() if name != "path"}
    folder = given.get("path", lower.get("location"))
    return given if folder is None else given | {"path": folder}


def _check_names(given: Mapping[str, str], known: tuple[str, ...], doing: str) -> None:
    names = {name.lower(): name for name in known}
    for name in given:
        if name.lower() in names or name.lower() in SPARKS_OWN:
            continue
        near = difflib.get_close_matches(name.lower(), names, 1)
        hint = f"did you mean {names[near[0]]}?" if near else f"options for {doing}: {', '.join(known)}"
        raise OptionError(f"unknown option {name!r}; {hint}")


class _Given:
    """The given options, with a method per type of value."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def get(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def location(self) -> LogLocation:
        broker, path = self.get("broker"), self.get("path")
        if not self._given:
            raise OptionError(
                "no options: Spark does not pass the OPTIONS of CREATE TABLE to a Python source when it "
                "reads the table; repeat them, as in SELECT * FROM m WITH (broker = '...'), or use CREATE "
                "TEMPORARY VIEW m USING pyrite OPTIONS (...)"
            )
        if (broker is None) == (path is None):
            raise OptionError(
                "expected either the option broker (such as flight://127.0.0.1:8815) or path (the "
                "data folder)"
            )
        names = CONNECTING[2:]
        credentials = [self.get(name) for name in names]
        if path is not None and any(each is not None for each in credentials):
            raise OptionError(f"options {', '.join(names)} need broker, not path")
        if broker is not None:
            _check_url(broker)
            self._check_credentials(broker)
        return LogLocation(broker, None if path is None else folder_of(path), *credentials)

    def _check_credentials(self, broker: str) -> None:
        if self.get("username") is not None and self.get("token") is not None:
            raise OptionError("expected one of the options username (with password) and token, not both")
        for name, other in (("password", "username"), ("keyFile", "certFile")):
            if self.get(name) is not None and self.get(other) is None:
                raise OptionError(f"option {name} needs {other}")
        for name in FILES:
            file = self.get(name)
            if file is None:
                continue
            if broker.startswith("flight:"):
                raise OptionError(f"option {name} needs a broker at flights://, not flight://")
            try:
                Path(file).read_bytes()
            except OSError as error:
                raise OptionError(f"option {name}: {file!r} cannot be read: {error.strerror}") from None

    def stream(self) -> str:
        name = self.get("stream")
        if name is None:
            return "default"
        if not NAME.fullmatch(name):
            raise OptionError(f"option stream: expected up to 64 letters, digits, - and _, not {name!r}")
        return name

    def range(self) -> tuple[str | None, str | None]:
        """Return start and end positions; raise OptionError if they are comparable and in the wrong order."""
        starting, ending = self.position("startingOffsets"), self.position("endingOffsets")
        if starting is not None and ending is not None:
            begin, end = parse_position(starting), parse_position(ending)
            if (
                (isinstance(begin, Offset) and isinstance(end, Offset) and begin.offset > end.offset)
                or (
                    isinstance(begin, Time)
                    and isinstance(end, Time)
                    and begin.microseconds > end.microseconds
                )
                or (isinstance(begin, Ago) and isinstance(end, Ago) and begin.microseconds < end.microseconds)
            ):
                raise OptionError(f"option endingOffsets: {ending} is before startingOffsets, {starting}")
        return starting, ending

    def topic_filters(self) -> tuple[str, ...]:
        """Return the topic filters: of one, or of a JSON list."""
        text = self.get("topic")
        if text is None:
            return ()
        filters = _listed(text)
        for one in filters:
            try:
                check_filter(one.encode())
            except InvalidTopic as wrong:
                several = '; several filters are a JSON list: ["a/#", "b/+"]' if "," in one else ""
                raise OptionError(f"option topic, {one!r}: {wrong}{several}") from None
        return filters

    def position(self, name: str) -> str | None:
        text = self.get(name)
        if text is None:
            return None
        try:
            parse_position(text)
        except ValueError as wrong:
            raise OptionError(f"option {name}: {wrong}") from None
        return text

    def count(self, name: str, most: int = FOREVER) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
        if not digits or len(digits) > 19 or int(digits) > most:
            raise OptionError(f"option {name}: expected a number from 1 to {most}, not {text!r}")
        return int(digits)

    def reader(self) -> str | None:
        name = self.get("readerName")
        if name is not None and not READER_NAME.fullmatch(name):
            raise OptionError(f"option readerName: expected up to 64 letters, digits, . - _, not {name!r}")
        return name

    def seconds(self, name: str, default: float) -> float:
        text = self.get(name)
        if text is None:
            return default
        found = _DURATION.fullmatch(text.strip().lower())
        if found is None:
            raise OptionError(f"option {name}: expected a time such as 500ms, 30s, 15m or 1h, not {text!r}")
        return int(found[1]) * _UNITS[found[2]]

    def flag(self, name: str, default: bool) -> bool:
        text = self.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise OptionError(f"option {name}: expected true or false, not {text!r}")
        return text.lower() == "true"

    def one_of(self, name: str, words: tuple[str, ...]) -> str | None:
        text = self.get(name)
        if text is not None and text.lower() not in words:
            raise OptionError(f"option {name}: expected one of {', '.join(words)}, not {text!r}")
        return None if text is None else text.lower()


def _listed(text: str) -> tuple[str, ...]:
    """Return the texts of a JSON list, or the one text that is none."""
    if not text.startswith('["'):
        return (text,)
    try:
        found = json.loads(text)
    except ValueError as wrong:
        raise OptionError(f"option topic, {text!r}: not a JSON list of topic filters: {wrong}") from None
    if not all(isinstance(one, str) for one in found):
        raise OptionError(f"option topic, {text!r}: expected a JSON list of topic filters")
    return tuple(found)


def _check_url(text: str) -> None:
    from pyrite.client.log import location_of  # imported late: reading a folder does not need it

    try:
        location_of(text)
    except QueryError as wrong:
        raise OptionError(f"option broker: {wrong}") from None


def folder_of(text: str) -> Path:
    """Return the folder as an absolute path: Spark's Python workers may have another working directory."""
    path = text
    if text.startswith("file:"):
        path = text.removeprefix("file:").removeprefix("//").removeprefix("localhost")
        if not path.startswith("/"):
            raise OptionError(f"option path: expected file:///FOLDER, not {text!r}")
    elif not text or _URL.match(text):
        raise OptionError(f"option path: expected a folder on this machine, not {text!r}")
    return Path(path).absolute()
