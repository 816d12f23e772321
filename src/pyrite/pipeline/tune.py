"""Scores settings of alerts on the history that a project has decoded, without Spark."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from pyrite.pipeline.alert_settings import ALERTS_FILE, AlertSettings, read_settings
from pyrite.pipeline.errors import ProjectError
from pyrite.pipeline.project import Project
from pyrite.pipeline.schemas import TopicSchema, read_schemas
from pyrite.pipeline.tables import read_table, table_names
from pyrite.pipeline.watch import LATE, DeviceHistory, Watch

MAX_SETTINGS = 100
"""Combinations of values that one command scores."""
DEFAULT = {"threshold": (4.0, 5.0, 6.0, 8.0)}
"""What is tried unless the user names settings."""


class Label(msgspec.Struct, frozen=True):
    """A time in which a device has a known fault."""

    device: str
    start: datetime = msgspec.field(name="from")
    end: datetime = msgspec.field(name="to")
    field: str | None = None
    """None for any field."""

    def covers(self, alert: dict[str, Any]) -> bool:
        """True if an alert is about this fault."""
        if alert["device"] != self.device or self.field not in (None, alert["field"]):
            return False
        time: float = alert["time"] / 1e6
        return self.start.timestamp() <= time <= self.end.timestamp()


@dataclass(frozen=True)
class Score:
    """What a combination of settings finds."""

    changed: dict[str, float]
    messages: int
    alerts: int
    silences: int
    false: int
    """Alerts outside all labels."""
    hit: int
    """Labels with an alert."""


def combinations(wanted: Sequence[str]) -> list[dict[str, float]]:
    """Parse `NAME=VALUE,VALUE...` and return every combination; raises ProjectError."""
    values: dict[str, tuple[float, ...]] = {}
    for text in wanted:
        name, _, listed = text.partition("=")
        try:
            values[name] = tuple(float(each) for each in listed.split(","))
        except ValueError:
            raise ProjectError(f"--set {text}: expected NAME=VALUE,VALUE,... with numbers") from None
    chosen = values or DEFAULT
    found = [dict(zip(chosen, each, strict=True)) for each in itertools.product(*chosen.values())]
    if len(found) > MAX_SETTINGS:
        raise ProjectError(f"{len(found)} combinations of settings; try at most {MAX_SETTINGS}")
    return found


def changed_settings(settings: AlertSettings, changes: dict[str, float]) -> AlertSettings:
    """Return settings with other values; raises ProjectError if a name or value is invalid."""
    known: dict[str, Any] = {name: getattr(settings, name) for name in settings.__struct_fields__}
    values = {
        name: int(value) if isinstance(known.get(name), int) and value.is_integer() else value
        for name, value in changes.items()
    }
    try:
        return msgspec.convert(known | values, AlertSettings)
    except msgspec.ValidationError as error:
        raise ProjectError(
            f"--set {', '.join(changes)}: {error}; settings are explained in alerts.toml"
        ) from None


def read_labels(path: Path) -> list[Label]:
    """Read known faults, one JSON object per line; raises ProjectError."""
    try:
        lines = path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Label) for line in lines if line.strip()]
    except (OSError, msgspec.MsgspecError) as error:
        raise ProjectError(
            f'{path}: {error}; expected lines such as {{"device": "dev-1", '
            '"from": "2026-01-31T12:00:00Z", "to": "2026-01-31T13:00:00Z"}'
        ) from None


def alerts_of_series(
    times: Sequence[float], values: Sequence[float], settings: AlertSettings | None = None
) -> list[dict[str, Any]]:
    """Return the alerts of one series of a device, at times in seconds."""
    rows = (
        {"micros": int(time * 1e6), "arrived": int(time * 1e6), "offset": at, "topic": "", "value": value}
        for at, (time, value) in enumerate(zip(times, values, strict=True))
    )
    return Watch(("value",), settings or AlertSettings()).judge("series", DeviceHistory(), rows)


def scores(project: Project, changes: Sequence[dict[str, float]], labels: Sequence[Label]) -> Iterator[Score]:
    """Judge the project's decoded messages with each combination of settings."""
    settings = read_settings(project.folder / ALERTS_FILE)
    chosen = [changed_settings(settings, each) for each in changes]  # refuse before working
    schemas = read_schemas(project.folder / "schemas.toml")
    histories = [(schema, _devices(project, schema)) for schema in schemas]
    if not any(devices for _, devices in histories):
        raise ProjectError(f"{project.folder} has no decoded messages yet: run `pyrite pipeline run`")
    for changed, each in zip(changes, chosen, strict=True):
        alerts: list[dict[str, Any]] = []
        messages = 0
        for schema, devices in histories:
            watch = Watch(schema.numbers, each)
            for device, rows in devices.items():
                alerts += watch.judge(device, DeviceHistory(), rows)
                messages += len(rows)
        found = [alert for alert in alerts if alert["kind"] != LATE]
        yield Score(
            changed,
            messages,
            len(found),
            sum(alert["kind"] == "silence" for alert in found),
            sum(not any(label.covers(alert) for label in labels) for alert in found),
            sum(any(label.covers(alert) for alert in found) for label in labels),
        )


def _devices(project: Project, schema: TopicSchema) -> dict[str, list[dict[str, Any]]]:
    """Return the decoded messages of each device, as the detector takes them."""
    if schema.silver not in table_names(project):
        return {}
    columns = ["device", "topic", "offset", "event_time", "timestamp", *schema.numbers]
    table = read_table(project, schema.silver, columns=columns)
    if not table.num_rows:
        return {}
    table = table.sort_by("offset")
    for name, source in (("micros", "event_time"), ("arrived", "timestamp")):
        micros = pc.cast(pc.cast(table[source], pa.timestamp("us", "UTC"), safe=False), pa.int64())
        table = table.append_column(name, micros)
    for name in schema.numbers:
        table = table.set_column(table.schema.get_field_index(name), name, pc.cast(table[name], pa.float64()))
    found: dict[str, list[dict[str, Any]]] = {}
    for row in table.drop_columns(["event_time", "timestamp"]).to_pylist():
        found.setdefault(row["device"], []).append(row)
    return found


def tune(project: Project, wanted: Sequence[str], labels: Path | None, console: Console) -> int:
    """Print the score of each combination of settings; returns the exit code."""
    known = read_labels(labels) if labels is not None else []
    changes = combinations(wanted)
    table = Table(title=f"alerts in {project.folder.name}, by settings", title_justify="left")
    for name in changes[0]:
        table.add_column(name, justify="right")
    headings = ["alerts", "silences", "per 1,000 messages"]
    headings += ["faults hit", "false", "false per 1,000"] if known else []
    for heading in headings:
        table.add_column(heading, justify="right")
    for score in scores(project, changes, known):
        cells = [f"{value:g}" for value in score.changed.values()]
        cells += [f"{score.alerts:,}", f"{score.silences:,}", f"{1000 * score.alerts / score.messages:.2f}"]
        if known:
            cells += [f"{score.hit} of {len(known)}", f"{score.false:,}"]
            cells += [f"{1000 * score.false / score.messages:.2f}"]
        table.add_row(*cells)
    console.print(table)
    current = read_settings(project.folder / ALERTS_FILE)
    now = ", ".join(f"{name} = {json.dumps(getattr(current, name))}" for name in changes[0])
    console.print(f"now in {ALERTS_FILE}: {now}", highlight=False)
    return 0
