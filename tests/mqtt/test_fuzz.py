"""The fuzz target over its corpus, for a bounded number of runs; `make fuzz` runs for longer."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "fuzz" / "corpus"
RUNS = 1_000


def test_the_fuzz_target_survives_its_corpus_and_mutations_of_it(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        assert not os.environ.get("PYRITE_NOTHING_SKIPPED"), "atheris is not installed"
        pytest.skip("atheris, the fuzzer, is not installed")
    fuzzing = subprocess.run(
        [
            sys.executable,
            ROOT / "fuzz" / "fuzz_mqtt.py",
            f"-runs={RUNS}",
            f"-artifact_prefix={tmp_path}/",
            tmp_path,
            CORPUS,
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert fuzzing.returncode == 0, fuzzing.stdout[-3_000:] + fuzzing.stderr[-5_000:]
    assert f"Done {RUNS} runs" in fuzzing.stderr
