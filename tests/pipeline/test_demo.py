"""The demo: what it takes for well, and that it ends at once when a part of it fails."""

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

from pyrite.pipeline.demo import Demo, Seen, demo
from pyrite.pipeline.part import Part, PartFailed
from tests.pipeline.support import broken_java

ROWS = {"bronze": 10, "silver_telemetry": 9, "bad_telemetry": 1, "topic_windows": 2}
FAULTS = Counter({("dev-1", "temperature"): 2, ("dev-2", "silence"): 1})
WELL = Seen(published=10, log=10, rows=ROWS, faults=FAULTS, alerts=FAULTS, twice=0)


def test_all_is_well_if_messages_and_alerts_are_those_that_were_made() -> None:
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


def test_an_alert_that_came_twice_is_not_well() -> None:
    assert not replace(WELL, twice=1).good


@pytest.mark.parametrize(
    "other",
    [
        {"published": 11},
        {"log": 9},
        {"rows": ROWS | {"bronze": 11}},
        {"rows": ROWS | {"silver_telemetry": 8}},
        {"rows": ROWS | {"bad_telemetry": 2}},
    ],
)
def test_counts_that_differ_are_not_well(other: dict[str, object]) -> None:
    assert not replace(WELL, **other).good  # type: ignore[arg-type]


def test_a_part_that_fails_is_named_with_what_it_said(tmp_path: Path) -> None:
    told: list[str] = []
    with Part("the pipeline", tmp_path, "pipeline", "run", tell=told.append) as part:
        part._process.wait(100)
        assert part.ended
    assert part.code == 2
    assert str(part.error()).startswith(
        "the pipeline ended with code 2; it said: pyrite pipeline: there is no"
    )
    assert told == part.lines


def test_without_a_java_that_starts_the_demo_fails_before_any_device_is_started(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pyrite", "pipeline", "demo"],
        env=os.environ | {"JAVA_HOME": str(broken_java(tmp_path)), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1
    assert "devices:" not in ended.stdout
    said = (
        "the pipeline ended with code 1; it said: pyrite pipeline: Spark did not start: no memory to speak of"
    )
    assert said in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert not list(tmp_path.glob("pyrite-demo-*"))


def test_one_limit_holds_for_all_of_it() -> None:
    with pytest.raises(PartFailed, match="it takes too long"):
        demo(Demo(devices=1, rate=1, seconds=0, faults=0, seed=1), Console(file=io.StringIO()), limit=0.0)
