"""Log output on standard error: text lines, or one JSON object per line.

A thread writes the lines from a bounded queue, so that a blocked standard error never blocks the broker.
Lines that do not fit are counted and reported later. Texts from clients are escaped and truncated, so that
they cannot forge lines.
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
"""The parts of the broker with a level of their own, and their loggers; `server` has all other loggers."""

MAX_LINES = 10_000
"""Maximum lines waiting to be written."""
MAX_TEXT = 256
"""Maximum characters of a text that a client may have chosen."""
FLUSH_TIME = 1.0
"""Seconds to write the remaining lines when the process ends."""


@dataclass(slots=True)
class LogOptions:
    """The [logging] table of pyrite.toml."""

    format: str = "text"
    """text: key=value for people; json: one JSON object a line."""
    connection_lines: int = 100
    """Maximum lines per second about connections; another line counts the omitted ones."""


def parse_levels(text: str) -> dict[str, str]:
    """Parse levels such as `info`, `access=debug,log=info`, or `warning,http=debug`.

    Return the level of each named part, and of all others as "". Raise ValueError if the text is invalid.
    """
    levels: dict[str, str] = {}
    for one in text.split(","):
        part, equals, level = (word.strip() for word in one.rpartition("="))
        if equals and part not in PARTS:
            raise ValueError(f"unknown part {part!r}; expected one of {', '.join(PARTS)}")
        if level not in LEVELS:
            raise ValueError(
                f"expected one of {', '.join(LEVELS)}; or levels of parts, as in access=debug,log=info"
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
    """Escape characters that are not printable, such as line ends and terminal controls."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _value(value: object) -> str:
    """Return a field's value as text, in quotes unless it is a plain word."""
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
    """Return the fields of an event; None for other log records."""
    found = getattr(record, "fields", None)
    if found is None:
        return None
    return {name: value for name, value in found.items() if value is not None}


class TextFormatter(logging.Formatter):
    """Text lines: time, level, part, message, and the fields of an event as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, followed by an indented traceback if there is one."""
        line = f"{_time(record)} {record.levelname} {part_of(record.name)}: {_plain(record.getMessage())}"
        fields = _fields(record)
        if fields:
            line += "".join(f" {name}={_value(value)}" for name, value in fields.items())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n  | {_plain(one)}" for one in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """JSON lines: time, level, part, event and its fields; `message` for records without fields."""

    def format(self, record: logging.LogRecord) -> str:
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
    """Writes lines to a descriptor in a thread, and never blocks the caller."""

    def __init__(self, descriptor: int, most: int = MAX_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: Queue[str | None] = Queue(most)
        self._lost = self._reported = 0
        self._thread = threading.Thread(target=self._write_all, name="pyrite-logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it as lost if the queue is full."""
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
            if lost > self._reported:
                lines.append(self.format(self._lost_record(lost - self._reported)))
                self._reported = lost
            self._write("\n".join(lines) + "\n")

    def _lost_record(self, lost: int) -> logging.LogRecord:
        record = logging.LogRecord("pyrite", logging.WARNING, __file__, 0, "lines lost", None, None)
        record.fields = {"lines": lost, "reason": "standard error was blocked"}
        return record

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            pass  # standard error is closed

    def close(self) -> None:
        """Write the queued lines, for at most FLUSH_TIME."""
        try:
            self._lines.put(None, timeout=FLUSH_TIME)
            self._thread.join(FLUSH_TIME)
        except Full:
            pass
        super().close()


def start_logging(levels: Mapping[str, str], form: str) -> LogHandler:
    """Write this process's log to standard error; return the handler for `stop_logging`."""
    handler = LogHandler(STANDARD_ERROR)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)  # otherwise, Python writes warnings past the log
    usual = levels.get("", "info")
    root.setLevel(usual.upper())
    for part, names in PARTS.items():
        for name in names:
            logging.getLogger(name).setLevel(levels.get(part, usual).upper())
    return handler


def stop_logging(handler: LogHandler) -> None:
    """Write the remaining lines, and stop."""
    logging.captureWarnings(False)
    logging.getLogger().removeHandler(handler)
    handler.close()
