"""`pyrite simulate`, against a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pyrite.client import read_log
from pyrite.simulate.devices import DROPOUT, plan_faults
from tests.support.process import BrokerProcess


def simulate(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyrite", "simulate", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100)


def test_messages_and_faults_are_acknowledged_counted_and_recorded(tmp_path: Path) -> None:
    listen = ("--listen", "mqtt://127.0.0.1:0", "--listen", "flight://127.0.0.1:0")
    with BrokerProcess("--data", str(tmp_path / "data"), *listen) as broker:
        options = ("--devices=6", "--rate=400", "--seconds=2", "--faults=6", "--malformed=0.05", "--speed=60")
        ended = simulate(f"--broker={broker.urls[0]}", *options, "--record=f.jsonl", cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        log = read_log(broker.urls[1]).to_pylist()
    faults = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert Counter(fault["kind"] for fault in faults) == {"spike": 2, "drift": 2, "dropout": 2}
    published = 6 * 800 - 2 * DROPOUT
    assert len(log) == published
    malformed = sum(b'"time"' not in row["payload"] for row in log)
    assert malformed > 20
    assert (
        ended.stdout == f"published {published} messages, all acknowledged; {malformed} malformed, 6 faults\n"
    )
    assert {row["qos"] for row in log} == {1}
    assert {row["topic"] for row in log} == {f"devices/dev-{number:03d}/telemetry" for number in range(6)}


def test_the_same_seed_gives_the_same_faults() -> None:
    assert plan_faults(50, 1000, 20, 7) == plan_faults(50, 1000, 20, 7)
    assert plan_faults(50, 1000, 20, 7) != plan_faults(50, 1000, 20, 8)


def test_too_many_faults_are_refused_with_the_number_of_messages_needed() -> None:
    with pytest.raises(ValueError, match="needs 726"):
        plan_faults(50, 30, 1, 1)
    assert len(plan_faults(50, 726, 50, 1)) == 50


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--broker=mqtt://127.0.0.1:1",), 1, "Start a broker with `pyrite serve`"),
        (("--broker=flop://x",), 2, "flop://x"),
        (("--devices=0",), 2, "expected a number above 0"),
        (("--faults=1", "--seconds=1"), 2, "1 faults do not fit"),
        (("--record=no/such/folder",), 1, "no/such/folder: No such file"),
    ],
)
def test_wrong_arguments_are_explained_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = simulate(*arguments, "--quiet", cwd=tmp_path)
    assert ended.returncode == code
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
