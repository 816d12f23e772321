"""A pipeline with a real Spark and a real broker: run, killed, resumed, and shown."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyspark
import pytest

from pyrite.access.users import User, hash_password, write_users
from pyrite.client import BlockingClient, read_log
from pyrite.pipeline.project import Project, find_project, make_project
from pyrite.pipeline.tables import messages_read, read_table, row_counts
from pyrite.spark.java import JavaNotFound, find_java
from tests.support.process import BrokerProcess

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

PATIENCE = 300.0
"""Seconds for a run, on a busy machine."""
PLANT = {"PYRITE_USERNAME": "plant", "PYRITE_PASSWORD": "plant-word"}
"""The pipeline's credentials."""
PASSWORD = {"username": "plant", "password": "plant-word"}
RULES = """
[access]
users = "users"
anonymous = true
[[access.rule]]
users = ["anonymous"]
publish = ["#"]
subscribe = ["#", "$pipelines/#"]
[[access.rule]]
users = ["plant"]
pull = ["#"]
publish = ["alerts/#", "$pipelines/#"]
"""
ODD = (b"\xff\xfe", b'{"temperature": 2} trailing', b'{"temperature": 4}{"temperature": 5}', b"null")
"""Payloads of a device that are not JSON objects."""
WINDOW = 10
"""Length of the windows in topic_windows, in seconds."""


class Running:
    """`pyrite pipeline run` and its output."""

    def __init__(self, project: Project, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pyrite", "pipeline", "run", *options],
            cwd=project.folder,
            env=os.environ | PLANT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a process group, as in a terminal, where Ctrl-C reaches every process
        )
        self.lines: list[str] = []
        self._over = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait_for(self, found: Callable[[str], bool], since: int = 0) -> None:
        """Wait for a line of output after the first `since` lines."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or any(map(found, self.lines[since:])), PATIENCE)
        assert any(map(found, self.lines[since:])), "\n".join(self.lines)

    def wait_for_rows(self, table: str, rows: int) -> None:
        """Wait for a run after which a table has this many rows."""
        self.wait_for(lambda line: line.startswith("run ") and f"{table} {rows:,}" in line)

    def interrupt(self) -> tuple[int, int]:
        """Send Ctrl-C; returns the exit code and the number of processes left."""
        others = psutil.Process(self._process.pid).children(recursive=True)
        os.killpg(self._process.pid, signal.SIGINT)
        code = self._process.wait(PATIENCE)
        return code, len(psutil.wait_procs(others, 20)[1])

    def kill(self) -> None:
        """Kill it, as the kernel does when memory is short, and wait until its Java has ended too."""
        if self._process.poll() is None:
            others = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            self._process.wait()
            psutil.wait_procs(others, 60)
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass
class Story:
    """The results, for the tests to check."""

    project: Project
    log: list[dict[str, Any]] = field(default_factory=list)
    """All messages, without alerts."""
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    heard: list[dict[str, Any]] = field(default_factory=list)
    """The alerts received by a subscriber."""
    published: list[int] = field(default_factory=list)
    """Number of messages in each round."""
    counts: list[dict[str, int]] = field(default_factory=list)
    """The rows of all tables after each round."""
    elsewhere: str = ""
    backtest: list[dict[str, Any]] = field(default_factory=list)
    """The alerts of a backtest of the whole log."""
    published_by_backtest: int = -1
    interrupted: tuple[int, int] = (-1, -1)
    """Exit code of a run after Ctrl-C, and the number of processes left."""
    last_words: list[str] = field(default_factory=list)
    """Its output after Ctrl-C."""
    counts_after: dict[str, int] = field(default_factory=dict)
    """The rows of all tables after that."""
    said: dict[str, Any] = field(default_factory=dict)
    """The status that the pipeline published after the first round."""


def counts_of(project: Project) -> dict[str, int]:
    return row_counts(project) | {"messages": messages_read(project)}


def simulate(broker: BrokerProcess, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Run simulated devices; returns the number of messages and the faults."""
    size = ("--devices=4", "--rate=200", "--seconds=4.5", "--faults=6", "--malformed=0.02", "--speed=500")
    record = folder / "faults.jsonl"
    options = (*size, f"--broker={broker.urls[0]}", f"--record={record}", "--quiet")
    command = [sys.executable, "-m", "pyrite", "simulate", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    faults = [json.loads(line) for line in record.read_text().splitlines()]
    return int(ended.stdout.split()[1].rstrip(",")), faults


def publish(broker: BrokerProcess, *messages: tuple[str, str | bytes]) -> int:
    with BlockingClient(broker.urls[0]) as client:
        client.publish_many(messages, 1)
    return len(messages)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    try:
        find_java()
    except JavaNotFound as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("a pipeline")
    write_users(folder / "users", [User("plant", hash_password("plant-word"))])
    (folder / "pyrite.toml").write_text(RULES)
    data = ("--config=pyrite.toml", "--data=data")
    listen = ("--listen", "mqtt://127.0.0.1:0", "--listen", "flight://127.0.0.1:0")
    with BrokerProcess(*data, *listen, cwd=folder) as broker:
        again = ("--listen", broker.urls[0], "--listen", broker.urls[1])
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
            story = Story(make_project(folder / "plant", broker.urls[1]))
        _make_quick(story.project)
        _change_types(story.project)
        with BlockingClient(broker.urls[0], client_id="ear", session_expiry=600) as client:
            client.subscribe("alerts/#", qos=1)
        _live(story, broker, folder)
    with BrokerProcess(*data, *again, cwd=folder) as broker:
        # The killed run is completed by Spark's own command.
        story.elsewhere = _spark_pipelines(story.project)
        story.counts.append(counts_of(story.project))
        rows = read_log(broker.urls[1], **PASSWORD).to_pylist()
        story.log = [row for row in rows if not row["topic"].startswith("alerts/")]
        with BlockingClient(broker.urls[0], client_id="ear", session_expiry=0) as client:
            alerts = client.subscribe([], unclaimed=True)
            while True:
                try:
                    story.heard.append(json.loads(alerts.get(timeout=3).payload))
                except TimeoutError:
                    break
        _interrupt(story)
        story.backtest = _backtest(story.project)
        end = len(read_log(broker.urls[1], columns=("topic",), **PASSWORD))
        story.published_by_backtest = end - len(rows)
    return story


def _backtest(project: Project) -> list[dict[str, Any]]:
    """Run a backtest of the whole log; returns its alerts."""
    command = [sys.executable, "-m", "pyrite", "pipeline", "backtest", "--output", "backtest"]
    done = subprocess.run(
        command, cwd=project.folder, env=os.environ | PLANT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = read_table(find_project(project.folder / "backtest"), "alerts_telemetry")
    return [dict(row) for row in alerts.to_pylist()]


def _interrupt(story: Story) -> None:
    """Send Ctrl-C in the middle of a run."""
    running = Running(story.project, "--continuous")
    try:
        running.wait_for(lambda line: "gold_of_messages" in line)
        said = len(running.lines)
        story.interrupted = running.interrupt()
        story.last_words = running.lines[said:]
        story.counts_after = counts_of(story.project)
    finally:
        running.kill()


def _live(story: Story, broker: BrokerProcess, folder: Path) -> None:
    """Three rounds of messages; the pipeline is killed in the third."""
    sent, faults = simulate(broker, folder)
    story.faults.update((fault["device"], fault["field"]) for fault in faults)
    sent += publish(broker, ("home/kitchen", "21.5"), ("home/kitchen", "21.6"))
    sent += publish(broker, *[("devices/odd/telemetry", payload) for payload in ODD])
    story.published.append(sent)
    running = Running(story.project, "--continuous")
    try:
        running.wait_for_rows("messages", sent)
        story.counts.append(counts_of(story.project))
        with BlockingClient(broker.urls[0]) as client:
            kept = client.subscribe("$pipelines/+").get(10)
            story.said = {kept.topic: json.loads(kept.payload)}
        # The first message of a device, and a message that is late for its device: it is stored, not judged.
        late = json.dumps({"time": faults[0]["time"], "temperature": 1.0})
        fresh = "devices/new/telemetry"
        known = f"devices/{faults[0]['device']}/telemetry"
        story.published.append(publish(broker, (fresh, late), (fresh, "no"), (known, late)))
        running.wait_for_rows("messages", sum(story.published))
        story.counts.append(counts_of(story.project))
        seen = len(running.lines)
        story.published.append(publish(broker, *[("home/attic", str(number)) for number in range(1_000)]))
        running.wait_for(lambda line: "silver_telemetry completed" in line, seen)
    finally:
        running.kill()


def _make_quick(project: Project) -> None:
    """Make Java compile less, as tests are short."""
    settings = project.folder / "spark.conf"
    settings.write_text(settings.read_text().replace('"-Dderby', '-XX:TieredStopAtLevel=1 "-Dderby'))


def _change_types(project: Project) -> None:
    """Use other numeric types than those of a new project."""
    schemas = project.folder / "schemas.toml"
    text = schemas.read_text()
    for name, old, new in (("battery", "double", "decimal(9, 3)"), ("count", "bigint", "long")):
        assert f'{name} = "{old}"' in text
        text = text.replace(f'{name} = "{old}"', f'{name} = "{new}"')
    schemas.write_text(text)


def _spark_pipelines(project: Project) -> str:
    command = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    java = find_java()
    environment = (
        os.environ | PLANT | {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(command.parents[1])}
    )
    if java is not None:
        environment["JAVA_HOME"] = str(java)
    for _ in range(3):
        ended = subprocess.run(
            [str(command), "run", "--properties-file", "spark.conf"],
            cwd=project.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        # A slow Spark may serialise a collection while another thread changes it. A run may be repeated at
        # any time, which is what this test is about.
        if "Task not serializable" not in ended.stdout:
            break
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def rows_of(story: Story, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(story.project, name).to_pylist()
    return rows


def telemetry(story: Story) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yield devices' messages with their decoded content; None if malformed."""
    kinds = {"temperature": (int, float), "vibration": (int, float), "battery": (int, float), "count": (int,)}
    for row in story.log:
        if not row["topic"].startswith("devices/"):
            continue
        try:
            found = json.loads(row["payload"])
        except ValueError:
            found = None
        good = isinstance(found, dict) and all(
            isinstance(found.get(name, 0), kind) for name, kind in kinds.items()
        )
        yield row, found if good else None


def test_every_message_is_counted_once_even_after_kills(story: Story) -> None:
    assert messages_read(story.project) == len(story.log) == sum(story.published)
    assert not (story.project.tables / "bronze").exists(), "the log is not copied"


def test_silver_has_decoded_messages_and_bad_has_malformed_ones(story: Story) -> None:
    good = {row["offset"]: found for row, found in telemetry(story) if found is not None}
    bad = {row["offset"]: row["payload"] for row, found in telemetry(story) if found is None}
    assert len(bad) > 10
    assert set(ODD) < set(bad.values())
    assert {row["offset"]: row["payload"] for row in rows_of(story, "bad_telemetry")} == bad
    silver = rows_of(story, "silver_telemetry")
    assert Counter(row["offset"] for row in silver) == Counter(list(good))
    for row in silver:
        assert row["temperature"] == good[row["offset"]]["temperature"]
        assert row["count"] == good[row["offset"]].get("count")
        assert row["device"] == row["topic"].split("/")[1]


def test_quality_counts_each_message_by_result(story: Story) -> None:
    for row in rows_of(story, "quality"):
        assert row["messages"] == sum(each["topic"] == row["topic"] for each in story.log)
        assert row["messages"] == row["decoded"] + row["bad"] + row["without_schema"]
        assert (row["without_schema"] > 0) == row["topic"].startswith("home/")


def test_a_run_adds_only_new_messages(story: Story) -> None:
    first, second, third = story.counts
    assert [counts["messages"] for counts in story.counts] == [
        story.published[0],
        sum(story.published[:2]),
        sum(story.published),
    ]
    assert second["silver_telemetry"] == first["silver_telemetry"] + 2
    assert second["bad_telemetry"] == first["bad_telemetry"] + 1
    assert third["silver_telemetry"] == second["silver_telemetry"]


def test_device_stats_match_the_messages(story: Story) -> None:
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, found in telemetry(story):
        for name in ("temperature", "vibration", "battery", "count"):
            if found is not None and name in found:
                values[row["topic"].split("/")[1], name].append(float(found[name]))
    stats = {(row["device"], row["field"]): row for row in rows_of(story, "device_stats")}
    assert stats.keys() == values.keys()
    for key, numbers in values.items():
        row, ordered = stats[key], sorted(numbers)
        assert (row["values"], row["min"], row["max"]) == (len(numbers), ordered[0], ordered[-1])
        assert row["mean"] == pytest.approx(math.fsum(numbers) / len(numbers))
        assert row["p95"] == pytest.approx(ordered[math.ceil(0.95 * len(numbers)) - 1], rel=0.011)


def test_windows_of_event_time_match_the_messages(story: Story) -> None:
    """A message that is late is added to its window."""
    windows: dict[tuple[int, str], list[tuple[float, dict[str, Any]]]] = defaultdict(list)
    decoded = {row["offset"]: found for row, found in telemetry(story) if found is not None}
    for row in story.log:
        arrived = row["timestamp"].timestamp()
        measured = decoded.get(row["offset"], {}).get("time")
        event = arrived if measured is None else min(arrived, datetime.fromisoformat(measured).timestamp())
        windows[int(event) // WINDOW * WINDOW, row["topic"]].append((event, row))
    found = {(int(row["start"].timestamp()), row["topic"]): row for row in rows_of(story, "topic_windows")}
    assert found.keys() == windows.keys()
    for key, messages in windows.items():
        row, events = found[key], [event for event, _ in messages]
        arrivals = [each["timestamp"] for _, each in messages]
        assert row["messages"] == len(messages)
        assert row["bytes"] == sum(len(each["payload"]) for _, each in messages)
        assert row["messages_per_second"] == pytest.approx(len(messages) / WINDOW)
        assert (row["first_arrival"], row["last_arrival"]) == (min(arrivals), max(arrivals))
        assert row["first"].timestamp() == pytest.approx(min(events), abs=1e-3)
        if len(messages) > 1:
            expected = (max(events) - min(events)) / (len(messages) - 1)
            assert row["inter_arrival"] == pytest.approx(expected, abs=1e-3)


def test_top_talkers_are_the_topics_with_the_most_messages(story: Story) -> None:
    counts = Counter(row["topic"] for row in story.log)
    talkers = {row["topic"]: row["messages"] for row in rows_of(story, "top_talkers")}
    assert talkers == dict(counts.most_common(20))
    assert max(talkers, key=lambda topic: talkers[topic]) == "home/attic"


def test_a_subscriber_receives_one_alert_per_fault(story: Story) -> None:
    assert story.faults.total() == 6
    assert Counter((alert["device"], alert["field"]) for alert in story.heard) == story.faults
    assert len({alert["id"] for alert in story.heard}) == len(story.heard)
    table = rows_of(story, "alerts_telemetry")
    published = {row["id"] for row in table if row["kind"] != "late"}
    assert published == {alert["id"] for alert in story.heard}
    late = {row["topic"]: row["late"] for row in rows_of(story, "quality") if row["late"]}
    assert list(late.values()) == [1], "a message that was not judged is counted"


def test_the_alerts_of_a_backtest_are_those_of_the_live_run(story: Story) -> None:
    names = ("id", "kind", "time", "arrived", "value", "expected", "score", "offset")
    live, again = (
        sorted(tuple(row[name] for name in names) for row in rows)
        for rows in (rows_of(story, "alerts_telemetry"), story.backtest)
    )
    assert again == live
    assert story.published_by_backtest == 0


def test_spark_pipelines_runs_the_project_unchanged(story: Story) -> None:
    assert "Run is COMPLETED" in story.elsewhere


def test_a_project_path_may_contain_a_space(story: Story) -> None:
    """Otherwise a full refresh would not find what to delete."""
    folder = story.project.folder.parent
    assert " " in folder.name
    assert not list(folder.parent.glob("*%*"))
    (state,) = (folder.parent / "state0" / "pyrite").iterdir()
    assert len(list((state / "_checkpoints").rglob("metadata"))) >= 6


def test_ctrl_c_ends_the_run_and_all_its_processes(story: Story) -> None:
    assert story.interrupted == (0, 0), "\n".join(story.last_words)
    assert any("stopping after this run" in line for line in story.last_words)
    assert any(line.startswith("run ") for line in story.last_words), "it was not cut off"
    assert not any("Traceback" in line for line in story.last_words)
    assert story.counts_after == story.counts[-1], "there was nothing new"


def test_a_pipeline_publishes_its_status(story: Story) -> None:
    """Its own status must not be an input, or it would never finish."""
    (said,) = story.said.values()
    assert list(story.said) == ["$pipelines/plant"]
    assert said["name"] == "plant"
    assert said["state"] in ("waiting", "running")
    assert said["rows"] in (story.published[0], 0), "of the first run; its alerts may be seen by a second"
    assert said["rows_per_second"] == pytest.approx(said["rows"] / said["seconds"], rel=0.1)
    assert 0 <= said["lag"] <= sum(story.faults.values())
    assert not any(row["topic"].startswith("$") for row in story.log)


def test_show_prints_tables_and_draws_plots(story: Story, tmp_path: Path) -> None:
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "pyrite", "pipeline", "show", "--rows=3", f"--plots={tmp_path / 'plots'}"],
        cwd=story.project.folder,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    for name, count in row_counts(story.project).items():
        assert f"{name}: {count:,} rows" in ended.stdout
    for name in ("rates", "talkers", "devices", "alerts"):
        assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert time.monotonic() - began < 60
