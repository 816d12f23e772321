"""The broker's log on standard error: lines for people, or one JSON object a line for programs.

Lines are written by a thread of their own, from a queue that is bounded: a standard error that no one reads
never holds up the broker. What there was no room for is counted, and said when there is. Nothing in a line
can end it, or begin another: what clients have said is escaped, and cut if it is long.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Full, Queue

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
STANDARD_ERROR = 2
PARTS: dict[str, tuple[str, ...]] = {
    "access": ("pyrite.access",),
    "connections": (
        "pyrite.connections",
        "pyrite.protocols",
        "pyrite.server.sockets",
        "pyrite.server.datagrams",
    ),
    "flight": ("pyrite.server.flight", "pyrite.flight"),
    "http": ("pyrite.server.http", "pyrite.http"),
    "log": ("pyrite.storage", "pyrite.journal", "pyrite.sinks"),
    "server": ("pyrite", "asyncio"),
}
"""The parts of the broker whose level may be set, and the loggers of each; `server` has all others."""

MAX_LINES = 10_000
"""Lines that may wait to be written."""
MAX_TEXT = 256
"""Characters of a text that a client may have chosen; what is beyond them is cut."""
LAST_WORDS = 1.0
"""Seconds that the lines which still wait have to be written, when the broker ends."""


@dataclass(slots=True)
class LogOptions:
    """Each is a key of the same name in the [logging] table of pyrite.toml."""

    format: str = "text"
    """text: key=value for people; json: one JSON object a line."""
    connection_lines: int = 100
    """Lines about connections that are written in a second at most; then one says how many were left out."""


def parse_levels(text: str) -> dict[str, str]:
    """Read what may be said of levels: `info`, `access=debug,log=info`, or `warning,http=debug`.

    Return the level of each part that is named; "" stands for all others. ValueError if it cannot be read.
    """
    levels: dict[str, str] = {}
    for one in text.split(","):
        part, equals, level = (word.strip() for word in one.rpartition("="))
        if equals and part not in PARTS:
            raise ValueError(f"there is no part {part!r}; expected one of {', '.join(PARTS)}")
        if level not in LEVELS:
            raise ValueError(
                f"expected one of {', '.join(LEVELS)}; or such for parts, as in access=debug,log=info"
            )
        if part in levels:
            raise ValueError("expected one level for each part")
        levels[part] = level
    return levels


def part_of(name: str) -> str:
    """Return the part that a logger belongs to."""
    found, length = "server", 0
    for part, prefixes in PARTS.items():
        for prefix in prefixes:
            if len(prefix) > length and (name == prefix or name.startswith(prefix + ".")):
                found, length = part, len(prefix)
    return found


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _plain(text: str) -> str:
    """Escape what is not printable, such as the ends of lines and what terminals obey."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _value(value: object) -> str:
    """Write a value of a field: in quotes, unless it is a plain word."""
    if not isinstance(value, str):
        return str(value)
    text = _cut(value)
    if text and text.isprintable() and not set(text) & set(" \"'=\\"):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_plain(quoted)}"'


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _fields(record: logging.LogRecord) -> Mapping[str, object] | None:
    """Return the fields of an event; None for a line that is a sentence."""
    found = getattr(record, "fields", None)
    if found is None:
        return None
    return {name: value for name, value in found.items() if value is not None}


class TextFormatter(logging.Formatter):
    """Lines for people: time, level, part; then a sentence, or an event with key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as one line; those of a traceback follow it, each indented."""
        line = f"{_time(record)} {record.levelname} {part_of(record.name)}: {_plain(record.getMessage())}"
        fields = _fields(record)
        if fields:
            line += "".join(f" {name}={_value(value)}" for name, value in fields.items())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n  | {_plain(one)}" for one in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, part, event, and its fields; `message` for a sentence."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as one line."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "part": part_of(record.name),
        }
        fields = _fields(record)
        if fields is None:
            line |= {"event": "message", "message": record.getMessage()}
        else:
            texts = {name: _cut(one) if isinstance(one, str) else one for name, one in fields.items()}
            line |= {"event": record.getMessage(), **texts}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class LogHandler(logging.Handler):
    """Has lines written to a descriptor by a thread, and never waits for it."""

    def __init__(self, descriptor: int, most: int = MAX_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: Queue[str | None] = Queue(most)
        self._lost = self._said = 0
        self._thread = threading.Thread(target=self._write_all, name="pyrite-logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written, or count it as lost if too many wait."""
        try:
            self._lines.put_nowait(self.format(record))
        except Full:
            self._lost += 1
        except Exception:  # as the standard library's handlers do
            self.handleError(record)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            lines = [line]
            lost = self._lost
            if lost > self._said:
                lines.append(self.format(self._confession(lost - self._said)))
                self._said = lost
            self._write("\n".join(lines) + "\n")

    def _confession(self, lost: int) -> logging.LogRecord:
        record = logging.LogRecord("pyrite", logging.WARNING, __file__, 0, "lines lost", None, None)
        record.fields = {"lines": lost, "reason": "standard error did not take them in time"}
        return record

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            pass  # no one is there to be told

    def close(self) -> None:
        """Write what waits, as far as it is taken in time."""
        try:
            self._lines.put(None, timeout=LAST_WORDS)
            self._thread.join(LAST_WORDS)
        except Full:
            pass
        super().close()


def start_logging(levels: Mapping[str, str], form: str) -> LogHandler:
    """Have all that is logged in this process written to standard error; to be closed at the end."""
    handler = LogHandler(STANDARD_ERROR)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)  # Python's own, which would be written beside the log
    usual = levels.get("", "info")
    root.setLevel(usual.upper())
    for part, names in PARTS.items():
        for name in names:
            logging.getLogger(name).setLevel(levels.get(part, usual).upper())
    return handler


def stop_logging(handler: LogHandler) -> None:
    """Write the last lines."""
    logging.captureWarnings(False)
    logging.getLogger().removeHandler(handler)
    handler.close()
