"""What Arrow imports when it is first used is imported at the start, or not at all."""

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
    """Return what the first arrays import, and whether pandas is there then."""
    ended = subprocess.run(
        [sys.executable, "-c", USE.format(prepare=prepare)], capture_output=True, text=True, check=True
    )
    names, pandas = ended.stdout.splitlines()
    return names.split(), pandas == "True"


def test_the_first_arrays_of_a_process_import_nothing() -> None:
    assert imported(PREPARE) == ([], False)


def test_without_it_they_would() -> None:
    pytest.importorskip("pandas")
    names, pandas = imported("")
    assert "numpy.ma" in names
    assert pandas
