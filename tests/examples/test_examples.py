"""The programs in examples/ run with a real broker and print what they should."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.harness import Running
from tests.support.process import BrokerProcess

FOLDER = Path(__file__).parents[2] / "examples"
TRIED = {"thermometers", "dashboard", "replay", "workers", "ask", "tail"}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of a broker with an empty log."""
    with BrokerProcess("--data", str(tmp_path / "data"), "--listen", "mqtt://127.0.0.1:0") as broker:
        yield broker.urls[0]


def run(name: str, *arguments: str) -> list[str]:
    """Run an example to its end; returns its output lines."""
    words = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@contextmanager
def running(name: str, *arguments: str) -> Iterator[Running]:
    """Run an example until the block is left."""
    program = Running(sys.executable, str(FOLDER / f"{name}.py"), *arguments)
    try:
        yield program
    finally:
        program.close()


def test_every_example_is_tested_and_documented() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == TRIED
    described = (FOLDER / "README.md").read_text()
    assert all(f"[{name}.py]({name}.py)" in described for name in TRIED)


def test_thermometers_are_watched_and_replayed(url: str) -> None:
    with running("dashboard", url, "1000") as dashboard:
        dashboard.wait_for("watching", "stdout")
        (line,) = run("thermometers", url)
        assert re.fullmatch(r"1000 readings are on disk after \d+\.\d\d s", line)
        shown = dashboard.output().decode().splitlines()
        assert dashboard.exit_code() == 0
    assert len(shown) == 1001
    assert shown[-1].startswith("0: ")
    assert " 9: " in shown[-1]
    lines = run("replay", url)
    assert len(lines) == 10
    assert all(re.fullmatch(rf"room {room}: \d\d\.\d\d in 100 readings", lines[room]) for room in range(10))


def test_the_dashboard_receives_missed_messages(url: str) -> None:
    with running("dashboard", url) as dashboard:
        dashboard.wait_for("watching", "stdout")
        dashboard.process.send_signal(signal.SIGINT)
        assert dashboard.exit_code() == 0
    run("thermometers", url)
    assert len(run("dashboard", url, "1000")) == 1001


def test_workers_do_every_job_once(url: str) -> None:
    *jobs, last = run("workers", url)
    assert last == "100 jobs done"
    assert sorted(line.split()[2] for line in jobs) == sorted(f"jobs/{number}" for number in range(100))


def test_a_request_is_answered(url: str) -> None:
    assert run("ask", url) == ["is anyone there? -> IS ANYONE THERE?", "who? -> WHO?"]


def test_tail_prints_new_messages_of_a_filter(url: str) -> None:
    with running("tail", url, "sensors/#") as tail:
        tail.wait_for("following sensors/#", "stdout")
        run("thermometers", url)
        tail.wait_for("sensors/9/temperature", "stdout")
        tail.process.send_signal(signal.SIGINT)
        assert tail.exit_code() == 0
        assert b"Traceback" not in tail.output("stderr")


def test_the_replay_of_an_empty_log_says_so(url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "replay.py"), url], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "no readings in the log: run thermometers.py first\n"
