"""Infers schemas from messages: families of topics, and the fields of their payloads."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_PER_TOPIC = 200
"""Messages of a topic that are parsed; more do not change the types."""
MAX_BRANCHES = 20
"""Values of a level that are told apart by their payloads; a level with more is a wildcard."""
MAX_DEPTH = 5
"""Levels of nesting that become structs; below, JSON text is kept."""
MAX_FIELDS = 500
"""Fields of an object; an object with more is kept as text: its keys are data, not names."""
ALIKE = 0.5
"""Share of common fields from which two topics have payloads of one kind."""
TIMES = ("time", "timestamp", "ts", "event_time", "datetime", "date", "at", "measured_at", "created_at")
"""Names of the field with the time of the measurement, best first."""
_ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_EPOCHS = {"s": (1e9, 4e9), "ms": (1e12, 4e12), "us": (1e15, 4e15)}
"""Ranges of numbers that are times since 1970, between 2001 and 2096."""


@dataclass
class FieldSummary:
    """The values of a field."""

    kinds: Counter[str] = field(default_factory=Counter)
    example: str = ""
    low: float = float("inf")
    high: float = float("-inf")
    inner: dict[str, FieldSummary] = field(default_factory=dict)
    """The fields of its objects; the elements of its arrays are under the name []."""

    def add(self, value: Any, depth: int = 0) -> None:
        """Add a value."""
        kind = _kind(value)
        if kind in ("object", "array") and (depth >= MAX_DEPTH or len(self.inner) > MAX_FIELDS):
            kind = "text"
        self.kinds[kind] += 1
        if kind in ("whole", "fraction"):
            self.low, self.high = min(self.low, value), max(self.high, value)
        if kind == "object":
            for name, each in value.items():
                self.inner.setdefault(name, FieldSummary()).add(each, depth + 1)
        elif kind == "array":
            for each in value[:10]:
                self.inner.setdefault("[]", FieldSummary()).add(each, depth + 1)
        if not self.example and value is not None:
            self.example = json.dumps(value, ensure_ascii=False)[:40]

    @property
    def present(self) -> int:
        """The number of values that are not null."""
        return self.kinds.total() - self.kinds["null"]

    def type(self) -> str:
        """Return the Spark type that all values fit."""
        kinds = {kind for kind, count in self.kinds.items() if count and kind != "null"}
        if kinds <= {"whole"} and kinds:
            return "bigint" if self.low >= -(2**63) and self.high < 2**63 else "double"
        if kinds <= {"whole", "fraction"} and kinds:
            return "double"
        if kinds == {"truth"}:
            return "boolean"
        if kinds == {"time"}:
            return "timestamp"
        if kinds == {"object"} and 0 < len(self.inner) <= MAX_FIELDS:
            columns = [
                f"`{name}`: {each.type()}" for name, each in self.inner.items() if _COLUMN.fullmatch(name)
            ]
            return f"struct<{', '.join(columns)}>" if columns else "string"
        if kinds == {"array"}:
            return f"array<{self.inner['[]'].type() if '[]' in self.inner else 'string'}>"
        return "string"

    def notes(self, messages: int) -> list[str]:
        """Return what a reader of the schema should know."""
        found = []
        if self.present < messages:
            found.append(f"in {self.present / messages:.0%} of messages")
        kinds = {kind for kind in self.kinds if kind != "null"}
        if kinds == {"whole", "fraction"}:
            found.append("some are whole numbers")
        elif kinds == {"number text"}:
            found.append("numbers as text")
        elif len(kinds) > 1:
            found.append("mixed: " + ", ".join(f"{kind} {self.kinds[kind]:,}" for kind in sorted(kinds)))
        return found

    def epoch(self) -> str | None:
        """Return the unit if the values are times since 1970."""
        for unit, (low, high) in _EPOCHS.items():
            if low <= self.low and self.high <= high:
                return unit
        return None


@dataclass
class Payloads:
    """The payloads of a topic or family."""

    messages: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    """json, number, csv, text or bytes."""
    columns: Counter[int] = field(default_factory=Counter)
    """Number of values in a line of CSV."""
    fields: dict[str, FieldSummary] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def add(self, payload: bytes) -> None:
        """Add a payload."""
        self.messages += 1
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self.formats["bytes"] += 1
            return
        value = _json(text)
        if isinstance(value, dict):
            self.formats["json"] += 1
            for name, each in value.items():
                self.fields.setdefault(name, FieldSummary()).add(each)
            return
        if _NUMBER.fullmatch(text):
            form = "number"
        elif "," in text and "\n" not in text.strip() and not text.lstrip().startswith(("{", "[", '"')):
            form = "csv"
            self.columns[len(text.split(","))] += 1
        else:
            form = "text"
        self.formats[form] += 1
        if len(self.texts) < MAX_PER_TOPIC:
            self.texts.append(text)

    @property
    def format(self) -> str:
        """The format of most payloads."""
        return self.formats.most_common(1)[0][0] if self.formats else "bytes"

    @property
    def width(self) -> int:
        """The number of values in most lines of CSV."""
        return self.columns.most_common(1)[0][0]

    def alike(self, other: Payloads) -> bool:
        """True if both have the same format and most of their fields."""
        if self.format != other.format:
            return False
        if self.format != "json":
            return (
                self.format != "csv"
                or self.columns.most_common(1)[0][0] == other.columns.most_common(1)[0][0]
            )
        mine, theirs = set(self.fields), set(other.fields)
        return (
            len(mine & theirs) >= ALIKE * min(len(mine), len(theirs)) if mine and theirs else mine == theirs
        )


@dataclass
class Family:
    """Topics that differ in some levels, and their payloads."""

    name: str
    topic: str
    """A topic filter."""
    topics: int
    payloads: Payloads
    fields: dict[str, str]
    """Spark type by field."""
    notes: dict[str, list[str]]
    time: str | None = None
    """The field with the time of the measurement."""
    time_unit: str | None = None

    @property
    def device(self) -> list[int]:
        """The levels that name the device, from 1."""
        return [at + 1 for at, level in enumerate(self.topic.split("/")) if level == "+"]

    @property
    def confidence(self) -> float:
        """The share of messages in the family's format."""
        return self.payloads.formats[self.payloads.format] / max(1, self.payloads.messages)

    def toml(self) -> str:
        """Return the family as a section of schemas.toml."""
        lines = [f"[{self.name}]", f"topic = {json.dumps(self.topic)}"]
        if self.payloads.format != "json":
            lines.append(f"format = {json.dumps(self.payloads.format)}")
        if len(self.device) > 1:
            lines.append(f"device = {self.device}")
        if self.time is not None:
            lines.append(f"time = {json.dumps(self.time)}")
        if self.time_unit is not None:
            lines.append(f"time_unit = {json.dumps(self.time_unit)}")
        lines += ["", f"[{self.name}.fields]"]
        for name, kind in self.fields.items():
            said = "; ".join(self.notes.get(name, []))
            lines.append(f"{name} = {json.dumps(kind)}" + (f"  # {said}" if said else ""))
        return "\n".join(lines) + "\n"


def infer(messages: Iterable[tuple[str, bytes]]) -> list[Family]:
    """Infer families from messages, as pairs of topic and payload."""
    topics: dict[str, Payloads] = defaultdict(Payloads)
    for topic, payload in messages:
        known = topics[topic]
        if known.messages < MAX_PER_TOPIC:
            known.add(payload)
    by_length: dict[int, dict[tuple[str, ...], Payloads]] = defaultdict(dict)
    for topic, payloads in topics.items():
        if not topic.startswith("$") and topic.partition("/")[0] != "alerts":
            levels = tuple(topic.split("/"))
            by_length[len(levels)][levels] = payloads
    found: list[Family] = []
    names: set[str] = set()
    for _, group in sorted(by_length.items()):
        for pattern, members in _split(group, {}):
            family = _family(pattern, members, names)
            if family is not None:
                found.append(family)
    return found


def _split(
    topics: Mapping[tuple[str, ...], Payloads], chosen: dict[int, str]
) -> Iterable[tuple[list[str], list[Payloads]]]:
    """Divide topics of one length into families, by levels of which the value decides the payload."""
    length = len(next(iter(topics)))
    for at in range(length):
        values = {levels[at] for levels in topics}
        if at in chosen or len(values) == 1:
            continue
        merged = {
            value: _merged(each for key, each in topics.items() if key[at] == value) for value in values
        }
        first, *others = merged.values()
        if len(values) <= MAX_BRANCHES and not all(first.alike(other) for other in others):
            for value in sorted(values):
                part = {key: each for key, each in topics.items() if key[at] == value}
                yield from _split(part, chosen | {at: value})
            return
    keys = list(topics)
    constant = [len({key[at] for key in keys}) == 1 for at in range(length)]
    yield [keys[0][at] if constant[at] else "+" for at in range(length)], list(topics.values())


def _merged(parts: Iterable[Payloads]) -> Payloads:
    """Return the payloads of several topics as those of one."""
    whole = Payloads()
    for part in parts:
        whole.messages += part.messages
        whole.formats.update(part.formats)
        whole.columns.update(part.columns)
        whole.texts += part.texts[: max(0, MAX_PER_TOPIC - len(whole.texts))]
        _merge_fields(whole.fields, part.fields)
    return whole


def _merge_fields(into: dict[str, FieldSummary], other: Mapping[str, FieldSummary]) -> None:
    for name, each in other.items():
        known = into.setdefault(name, FieldSummary())
        known.kinds.update(each.kinds)
        known.example = known.example or each.example
        known.low, known.high = min(known.low, each.low), max(known.high, each.high)
        _merge_fields(known.inner, each.inner)


def _family(levels: Sequence[str], members: Sequence[Payloads], names: set[str]) -> Family | None:
    payloads = _merged(members)
    fixed = [re.sub(r"[^a-z0-9]+", "_", level.lower()).strip("_") for level in levels if level != "+"]
    stem = "_".join(filter(None, fixed)) or "topics"
    stem = stem if stem[0].isalpha() else f"t_{stem}"
    name = next(each for at in range(10_000) if (each := stem if not at else f"{stem}_{at + 1}") not in names)
    names.add(name)
    topic = "/".join(levels)
    if payloads.format == "json":
        return _json_family(name, topic, len(members), payloads)
    if payloads.format == "bytes":
        return None
    if payloads.format == "csv":
        count = payloads.width
        columns = [FieldSummary() for _ in range(count)]
        for text in payloads.texts:
            cells = text.split(",")
            if len(cells) == count:
                for column, cell in zip(columns, cells, strict=True):
                    column.add(_cell(cell.strip()))
        fields = {f"c{at}": column.type() for at, column in enumerate(columns, 1)}
        return Family(name, topic, len(members), payloads, fields, {})
    kind = "double" if payloads.format == "number" else "string"
    return Family(name, topic, len(members), payloads, {"value": kind}, {})


def _json_family(name: str, topic: str, topics: int, payloads: Payloads) -> Family:
    fields: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    seen: set[str] = set()
    objects = payloads.formats["json"]
    for field_name, each in payloads.fields.items():
        if _COLUMN.fullmatch(field_name) and field_name.lower() not in seen and len(fields) < MAX_FIELDS:
            seen.add(field_name.lower())
            fields[field_name] = each.type()
            notes[field_name] = each.notes(objects)
    time, unit = None, None
    for wanted in TIMES:
        for field_name, kind in fields.items():
            if time is None and field_name.lower() == wanted:
                if kind == "timestamp":
                    time = field_name
                elif kind in ("bigint", "double") and (unit := payloads.fields[field_name].epoch()):
                    time = field_name
                    notes[field_name].append(f"time since 1970 in {unit}")
    return Family(name, topic, topics, payloads, fields, notes, time, unit)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int):
        return "whole"
    if isinstance(value, float):
        return "fraction"
    if isinstance(value, str):
        if _ISO.fullmatch(value):
            return "time"
        return "number text" if _NUMBER.fullmatch(value) else "text"
    return "object" if isinstance(value, dict) else "array"


def _cell(text: str) -> Any:
    """Return a cell of CSV as the value that Spark would read."""
    if not text:
        return None
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
