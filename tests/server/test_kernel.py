"""Linux settings of the broker process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .peers import Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asked of Linux alone")


def test_timer_slack_is_small_and_huge_pages_are_off(server: Server) -> None:
    about = Path("/proc") / str(server.process.process.pid)
    assert (about / "timerslack_ns").read_text() == "1000\n"
    assert "THP_enabled:\t0\n" in (about / "status").read_text()
