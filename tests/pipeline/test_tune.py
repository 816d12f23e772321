"""`pyrite pipeline tune`, over a table of decoded messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyrite.pipeline.project import Project
from tests.pipeline.series import spiking

START = datetime(2026, 1, 1, tzinfo=UTC)


def tune(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyrite", "pipeline", "tune", *arguments]
    environment = os.environ | {"COLUMNS": "160"}
    return subprocess.run(
        command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=100
    )


@pytest.fixture
def labels(project: Project) -> Path:
    """A project with a device that spikes, and known faults: two of the three spikes, and one that is not."""
    made = spiking()
    rows = [
        {
            "device": "dev-1",
            "topic": "devices/dev-1/telemetry",
            "offset": at,
            "timestamp": START + timedelta(seconds=time),
            "event_time": START + timedelta(seconds=time),
            **dict.fromkeys(("temperature", "vibration", "battery"), value),
            "count": at,
        }
        for at, (time, value) in enumerate(zip(made.times, made.values, strict=True))
    ]
    silver = project.tables / "silver_telemetry"
    silver.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), silver / "0.parquet", use_deprecated_int96_timestamps=True)
    path = project.folder / "faults.jsonl"
    known = [made.times[at] for at in (made.faults[0], made.faults[1], 1500)]
    lines = [
        {"device": "dev-1", "from": START + timedelta(seconds=at), "to": START + timedelta(seconds=at + 600)}
        for at in known
    ]
    path.write_text("\n".join(json.dumps(line, default=datetime.isoformat) for line in lines))
    return path


def test_settings_are_scored_on_the_decoded_history(project: Project, labels: Path) -> None:
    ended = tune(project, "--set", "threshold=5,1000", "--labels", str(labels))
    assert ended.returncode == 0, ended.stderr
    rows = [line.replace(",", "").split("│")[1:-1] for line in ended.stdout.splitlines() if "│" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    # three fields with three spikes each; the third spike has no label
    assert cells[0][:2] == ["5", "9"]
    assert cells[0][4:6] == ["2 of 3", "3"]
    assert cells[1][:2] == ["1000", "0"]
    assert "threshold = 5.0" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "treshold=5"), "unknown field `treshold`"),
        (("--set", "threshold=high"), "expected NAME=VALUE"),
        (("--set", "window=1.5"), "Expected `int`"),
        (("--labels", "schemas.toml"), "expected lines such as"),
        ((), "run `pyrite pipeline run`"),
    ],
)
def test_wrong_arguments_are_explained(project: Project, arguments: tuple[str, ...], said: str) -> None:
    ended = tune(project, *arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
