"""Arrow imports nothing when it is first used, so that no client waits for an import."""

from __future__ import annotations

import subprocess
import sys

import pytest

USE = """
import sys
{prepare}
import numpy as np
import pyarrow as pa
before = set(sys.modules)
pa.array([1]); pa.array(np.arange(3)); pa.array(["a"])
print(*sorted(set(sys.modules) - before))
print("pandas" in sys.modules)
"""
PREPARE = "from pyrite.process.plain_arrow import keep_pandas_out; keep_pandas_out()"


def imported(prepare: str) -> tuple[list[str], bool]:
    """Return the modules that the first arrays import, and whether pandas was imported."""
    ended = subprocess.run(
        [sys.executable, "-c", USE.format(prepare=prepare)], capture_output=True, text=True, check=True
    )
    names, pandas = ended.stdout.splitlines()
    return names.split(), pandas == "True"


def test_the_first_arrays_of_a_process_import_nothing() -> None:
    assert imported(PREPARE) == ([], False)


def test_without_preparation_the_first_arrays_import_numpy_and_pandas() -> None:
    pytest.importorskip("pandas")
    names, pandas = imported("")
    assert "numpy.ma" in names
    assert pandas
