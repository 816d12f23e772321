"""Reading the log needs storage alone: processes that only read it do not load the broker."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROOMS = ("pyrite.broker", "pyrite.journal", "pyrite.server", "pyrite.access")
READERS = [
    "pyrite.storage.bulk",
    "pyrite.storage.verify",
    "pyrite.http.reading",
    "pyrite.http.__main__",
    "pyrite.flight.service",
    "pyrite.flight.__main__",
    "pyrite.client.log",
    "pyrite.spark",
    "pyrite.storage.snapshot",
]


@pytest.mark.parametrize("reader", READERS)
def test_a_process_that_reads_the_log_loads_nothing_of_the_broker(reader: str) -> None:
    if reader.startswith("pyrite.spark"):
        pytest.importorskip("pyspark")
    program = f"import sys, {reader}; print(*(name for name in sys.modules if name.startswith({ROOMS!r})))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
