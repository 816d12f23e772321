"""A minute of faults against three real nodes, with real clients; `make nemesis` runs longer."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("nats")
from tests.cluster.nemesis.network import why_not
from tests.cluster.nemesis.run import nemesis

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # paho leaves the sockets of its earlier loops to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.xdist_group("cluster"),
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("ip") is None, reason="no command ip"),
]


def test_acknowledged_messages_survive_a_minute_of_faults(tmp_path: Path) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    seed = int.from_bytes(os.urandom(2))
    print(f"seed {seed}")
    report = nemesis(tmp_path, 60, seed)
    assert report.wrong == [], f"seed {seed}"
    assert report.acknowledged > 500
