"""The demo: which counts are right, and that it ends when one of its processes fails."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pyrite.pipeline.demo import DemoCounts, DemoOptions, demo
from pyrite.pipeline.errors import PipelineError
from pyrite.pipeline.process import DemoProcess
from tests.pipeline.support import broken_java

ROWS = {"silver_telemetry": 9, "bad_telemetry": 1, "topic_windows": 2}
FAULTS = Counter({("dev-1", "temperature"): 2, ("dev-2", "silence"): 1})
WELL = DemoCounts(published=10, log=10, read=10, rows=ROWS, faults=FAULTS, alerts=FAULTS, twice=0)


def test_counts_are_right_if_messages_and_alerts_match_what_was_made() -> None:
    assert WELL.good
    assert not WELL.missed
    assert not WELL.false


def test_a_fault_without_an_alert_is_missed() -> None:
    seen = replace(WELL, alerts=FAULTS - Counter([("dev-1", "temperature")]))
    assert seen.missed == Counter([("dev-1", "temperature")])
    assert not seen.false
    assert not seen.good


def test_an_alert_without_a_fault_is_false() -> None:
    seen = replace(WELL, alerts=FAULTS + Counter([("dev-3", "vibration")]))
    assert seen.false == Counter([("dev-3", "vibration")])
    assert not seen.missed
    assert not seen.good


def test_a_duplicate_alert_makes_the_counts_wrong() -> None:
    assert not replace(WELL, twice=1).good


@pytest.mark.parametrize(
    "other",
    [
        {"published": 11},
        {"log": 9},
        {"read": 11},
        {"rows": ROWS | {"silver_telemetry": 8}},
        {"rows": ROWS | {"bad_telemetry": 2}},
    ],
)
def test_a_missing_message_makes_the_counts_wrong(other: dict[str, object]) -> None:
    assert not replace(WELL, **other).good  # type: ignore[arg-type]


def test_a_failed_process_is_named_with_its_error(tmp_path: Path) -> None:
    told: list[str] = []
    with DemoProcess("the pipeline", tmp_path, "pipeline", "run", tell=told.append) as part:
        part._process.wait(100)
        assert part.ended
    assert part.code == 2
    assert str(part.error()).startswith("the pipeline ended with exit code 2: pyrite pipeline: no")
    assert told == part.lines


def test_without_java_the_demo_fails_before_devices_start(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pyrite", "pipeline", "demo"],
        env=os.environ | {"JAVA_HOME": str(broken_java(tmp_path)), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1
    assert "devices:" not in ended.stdout
    said = "the pipeline ended with exit code 1: pyrite pipeline: Spark did not start: no memory to speak of"
    assert said in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert not list(tmp_path.glob("pyrite-demo-*"))


def test_the_demo_ends_at_its_time_limit() -> None:
    with pytest.raises(PipelineError, match="took too long"):
        demo(
            DemoOptions(devices=1, rate=1, seconds=0, faults=0, seed=1),
            Console(file=io.StringIO()),
            limit=0.0,
        )
