"""What the plots of a pipeline's tables show."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib import pyplot

from pyrite.pipeline.plots import draw_alerts
from pyrite.pipeline.project import Project, make_project

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def alert(kind: str, field: str, value: float) -> dict[str, Any]:
    return {"device": "dev-1", "kind": kind, "field": field, "time": NOON, "value": value}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with a decoded message."""
    project = make_project(tmp_path / "plant")
    schemas = project.folder / "schemas.toml"
    schemas.write_text(schemas.read_text().replace('temperature = "double"', 'temperature = "decimal(9, 3)"'))
    silver = project.tables / "silver_telemetry"
    silver.mkdir(parents=True)
    row = {"device": "dev-1", "event_time": NOON, "temperature": Decimal("21.500")}
    pq.write_table(pa.Table.from_pylist([row]), silver / "0.parquet")
    return project


def drawn(project: Project, *alerts: dict[str, Any]) -> tuple[str, str, list[float], int]:
    """Return the title, the label of the y axis, the heights of the alerts, and the number of lines."""
    figure, axes = pyplot.subplots()
    try:
        draw_alerts(axes, pa.Table.from_pylist(list(alerts)), project)
        (marks,) = axes.collections
        places: Any = marks.get_offsets()
        heights = [float(height) for _, height in places]
        return axes.get_title(), axes.get_ylabel(), heights, len(axes.lines)
    finally:
        pyplot.close(figure)


def test_outliers_are_drawn_over_the_values_of_their_field(project: Project) -> None:
    silence = alert("silence", "silence", 2.0)
    found = drawn(project, silence, alert("outlier", "temperature", 33.5), silence)
    assert found == ("Alerts: 3 in total, 1 of temperature", "temperature", [33.5], 1)


def test_silences_are_drawn_if_there_are_no_outliers(project: Project) -> None:
    found = drawn(project, alert("silence", "silence", 2.0), alert("silence", "silence", 4.0))
    assert found == ("Alerts: 2 in total, 2 of silence", "seconds of silence", [2.0, 4.0], 0)
