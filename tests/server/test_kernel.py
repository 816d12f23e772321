"""What the broker asks of Linux for itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .peers import Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asked of Linux alone")


def test_timers_are_sharp_and_pages_small(server: Server) -> None:
    about = Path("/proc") / str(server.process.process.pid)
    assert (about / "timerslack_ns").read_text() == "1000\n"
    assert "THP_enabled:\t0\n" in (about / "status").read_text()
