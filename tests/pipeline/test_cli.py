"""`pyrite pipeline` without Spark: creating a project, and error messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyrite.pipeline.errors import ProjectError
from pyrite.pipeline.project import find_project, make_project
from pyrite.pipeline.tables import row_counts
from tests.pipeline.support import broken_java
from tests.support.process import BrokerProcess


def pipeline(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyrite", "pipeline", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=100
    )


def test_init_creates_a_project_and_refuses_to_overwrite_it(tmp_path: Path) -> None:
    first = pipeline("init", "plant", "--broker", "flight://broker.example:1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "pyrite pipeline run" in first.stdout
    project = find_project(tmp_path / "plant" / "transformations")
    assert project.folder == tmp_path / "plant"
    assert project.broker == "flight://broker.example:1"
    assert project.tables == tmp_path / "plant" / "tables"
    before = (tmp_path / "plant" / "spark-pipeline.yml").read_text()
    assert "FOLDER" not in before
    second = pipeline("init", "plant", cwd=tmp_path)
    assert second.returncode == 2
    assert "plant already exists" in second.stderr
    assert (tmp_path / "plant" / "spark-pipeline.yml").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run",), 2, "no pipeline in"),
        (("show",), 2, "pyrite pipeline init NAME"),
        (("init", "a b"), 2, "invalid pipeline name"),
        (("init", "x", "--broker", "mqtt://127.0.0.1:1883"), 2, "expected flight://HOST:PORT"),
        (("run", "--continuous", "--full-refresh"), 2, "not allowed with"),
        (("run", "--every", "soon"), 2, "expected seconds from 0 to 86400"),
        (("show", "--rows", "0"), 2, "expected a number above 0"),
        (("fly",), 2, "invalid choice: 'fly'"),
    ],
)
def test_wrong_arguments_are_explained(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = pipeline(*arguments, cwd=tmp_path)
    assert ended.returncode == code
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_run_reports_a_missing_broker_before_starting_spark(tmp_path: Path) -> None:
    make_project(tmp_path / "plant", "flight://127.0.0.1:1")
    ended = pipeline("run", "--project", "plant", cwd=tmp_path)
    assert ended.returncode == 1
    assert "no broker answers at flight://127.0.0.1:1. Start one with `pyrite serve`" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "plant" / "spark.log").exists()


@pytest.mark.parametrize("recorded", [None, "0123456789ab"], ids=["none", "others"])
def test_run_reports_that_a_project_has_other_templates(tmp_path: Path, recorded: str | None) -> None:
    project = make_project(tmp_path / "plant", "flight://127.0.0.1:1")
    assert project.advice is None
    specification = project.specification.read_text()
    line = re.compile(r'^  pyrite\.templates: "([0-9a-f]{12})".*\n', re.MULTILINE)
    current = line.search(specification)
    assert current is not None
    changed = "" if recorded is None else f'  pyrite.templates: "{recorded}"\n'
    project.specification.write_text(line.sub(changed, specification))
    ended = pipeline("run", cwd=project.folder)
    assert ended.returncode == 1
    advice, failure, *_ = ended.stderr.splitlines()
    assert "was created by another version of Pyrite" in advice
    assert f'pyrite.templates: "{current[1]}"' in advice
    assert "starting Spark" in failure, "it runs nevertheless"


def test_run_reports_in_one_line_why_spark_did_not_start(tmp_path: Path) -> None:
    listen = ("--listen", "flight://127.0.0.1:0")
    with BrokerProcess("--data", str(tmp_path / "data"), *listen) as broker:
        make_project(tmp_path / "plant", broker.urls[0])
        java = str(broken_java(tmp_path))
        ended = pipeline("run", "--project", "plant", cwd=tmp_path, JAVA_HOME=java)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "starting Spark",
        "pyrite pipeline: Spark did not start: no memory to speak of",
        f"Spark's own output is in {tmp_path / 'plant' / 'spark.log'}",
    ]


@pytest.mark.parametrize("name", ["a b", "50%", "a#b", "[a]"])
def test_checkpoints_are_kept_elsewhere_if_spark_would_misread_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    project = make_project(tmp_path / name / "plant")
    (storage,) = re.findall(r'storage: "(.*?)"', project.specification.read_text())
    assert storage.startswith(f"file://{tmp_path}/home/pyrite/plant-")
    assert project.tables == tmp_path / name / "plant" / "tables"


def test_checkpoints_are_kept_in_the_project_if_possible(tmp_path: Path) -> None:
    project = make_project(tmp_path / "zoë" / "plant")
    assert f'storage: "file://{project.folder}/state"' in project.specification.read_text()


@pytest.mark.parametrize("name", ['a"b', "a;b", "a\\b", "a\nb"])
def test_a_path_that_spark_does_not_accept_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProjectError, match="Spark does not accept paths with"):
        make_project(tmp_path / name / "plant")
    assert not (tmp_path / name).exists()


def test_a_project_without_a_usable_checkpoint_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state"))
    with pytest.raises(ProjectError, match="XDG_STATE_HOME"):
        make_project(tmp_path / "a b" / "plant")
    assert not (tmp_path / "a b").exists()


def test_run_reports_an_invalid_schema_before_starting_spark(tmp_path: Path) -> None:
    project = make_project(tmp_path / "plant", "flight://127.0.0.1:1")
    (project.folder / "schemas.toml").write_text("[telemetry]\n")
    ended = pipeline("run", "--project", "plant", cwd=tmp_path)
    assert ended.returncode == 1
    assert "[telemetry]: expected topic" in ended.stderr


def test_show_reports_that_there_are_no_tables_yet(tmp_path: Path) -> None:
    make_project(tmp_path / "plant")
    ended = pipeline("show", "--project", "plant", cwd=tmp_path)
    assert ended.returncode == 2
    assert "no tables yet: run `pyrite pipeline run`" in ended.stderr


def test_files_left_by_a_killed_run_are_not_counted(tmp_path: Path) -> None:
    project = make_project(tmp_path / "plant")
    folder = project.tables / "bronze"
    listed = folder / "_spark_metadata"
    listed.mkdir(parents=True)
    for name in ("old", "kept", "new", "left"):
        pq.write_table(pa.table({"offset": [1, 2, 3]}), folder / f"{name}.parquet")

    def note(batch: str, *entries: tuple[str, str]) -> None:
        lines = [
            json.dumps({"path": (folder / f"{name}.parquet").as_uri(), "action": action})
            for name, action in entries
        ]
        (listed / batch).write_text("\n".join(["v1", *lines]))

    note("8", ("old", "add"))
    note("9.compact", ("kept", "add"))
    note("10", ("new", "add"))
    assert row_counts(project) == {"bronze": 6}
