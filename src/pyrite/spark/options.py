"""The options of `format("pyrite")`: what they are called, what they may be, and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyrite.broker.positions import parse_position
from pyrite.broker.topics import InvalidTopic, check_filter, check_topic

CONNECTING = ("broker", "path", "username", "password", "token", "caFile", "certFile", "keyFile")
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
    "filterPushdown",
    "payloadFormat",
)
WRITING = (*CONNECTING, "topic")
SPARKS_OWN = (
    "checkpointlocation",
    "queryname",
    "asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms",
)
"""What Spark itself passes on to a sink."""
FORMATS = ("json", "csv", "text")
LEVELS = 65_536
"""No topic has more levels: its length is two bytes on the wire."""


class OptionError(ValueError):
    """An option that does not exist, or a value that it cannot have; the text names it."""


@dataclass(frozen=True)
class Place:
    """Where the log is: at a broker, or in a folder."""

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
    """What to read, and how much at a time."""

    place: Place
    stream: str = "default"
    topic: str | None = None
    starting: str | None = None
    ending: str | None = None
    messages_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    filter_pushdown: bool = False
    payload_format: str | None = None


@dataclass(frozen=True)
class WriteOptions:
    """Where to publish."""

    place: Place
    topic: str | None = None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Take the options of a reader, or raise an OptionError that says which is wrong."""
    _check_names(given, READING, "reading")
    options = _Given(given)
    return ReadOptions(
        options.place(),
        options.get("stream") or "default",
        options.topic_filter(),
        options.position("startingOffsets"),
        options.position("endingOffsets"),
        options.count("maxMessagesPerTrigger"),
        options.count("maxBytesPerTrigger"),
        options.count("minPartitions") or 1,
        options.flag("failOnDataLoss", True),
        options.flag("filterPushdown", False),
        options.one_of("payloadFormat", FORMATS),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Take the options of a writer, or raise an OptionError that says which is wrong."""
    _check_names(given, WRITING, "writing")
    options = _Given(given)
    if options.get("path") is not None:
        raise OptionError("option path: a folder can only be read; to write, name the broker (option broker)")
    topic = options.get("topic")
    if topic is not None:
        try:
            check_topic(topic.encode(), LEVELS)
        except InvalidTopic as wrong:
            raise OptionError(f"option topic, {topic!r}: {wrong}") from None
    return WriteOptions(options.place(), topic)


def _check_names(given: Mapping[str, str], known: tuple[str, ...], doing: str) -> None:
    names = {name.lower(): name for name in known}
    for name in given:
        if name.lower() in names or name.lower() in SPARKS_OWN:
            continue
        near = difflib.get_close_matches(name.lower(), names, 1)
        hint = f"did you mean {names[near[0]]}?" if near else f"for {doing} there are: {', '.join(known)}"
        raise OptionError(f"there is no option {name!r}; {hint}")


class _Given:
    """The options as they were given, each to be had as what it stands for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def get(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def place(self) -> Place:
        broker, path = self.get("broker"), self.get("path")
        if (broker is None) == (path is None):
            raise OptionError(
                "give one of the options broker (as in flight://127.0.0.1:8815) and path (the log's folder)"
            )
        if broker is not None:
            _check_url(broker)
        names = CONNECTING[2:]
        credentials = [self.get(name) for name in names]
        if path is not None and any(each is not None for each in credentials):
            raise OptionError(f"options {', '.join(names)} go with broker, not with path")
        if self.get("keyFile") is not None and self.get("certFile") is None:
            raise OptionError("option keyFile goes with certFile")
        return Place(broker, None if path is None else _folder(path), *credentials)

    def topic_filter(self) -> str | None:
        text = self.get("topic")
        if text is None:
            return None
        try:
            check_filter(text.encode(), LEVELS)
        except InvalidTopic as wrong:
            raise OptionError(f"option topic, {text!r}: {wrong}") from None
        return text

    def position(self, name: str) -> str | None:
        text = self.get(name)
        if text is None:
            return None
        try:
            parse_position(text)
        except ValueError as wrong:
            raise OptionError(f"option {name}: {wrong}") from None
        return text

    def count(self, name: str) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**63:
            raise OptionError(f"option {name}: expected a number greater than 0, not {text!r}")
        return int(text)

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


def _check_url(text: str) -> None:
    try:
        url = urlsplit(text)
        good = url.scheme in ("flight", "flights") and url.hostname and url.port
    except ValueError:
        good = False
    if not good:
        raise OptionError(f"option broker: expected flight://HOST:PORT or flights://HOST:PORT, not {text!r}")


def _folder(text: str) -> Path:
    """Return the folder, absolute: Python's workers may have another current folder."""
    return Path(text.removeprefix("file://")).absolute()
