"""The processes that a broker has beside it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.support.process import BrokerProcess


def children(broker: BrokerProcess) -> list[int]:
    """Return the processes that a broker has started."""
    process = broker.process.pid
    found = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(one) for one in found.split()]


def assert_it_ends_with_its_broker(broker: BrokerProcess) -> None:
    """Kill a broker with one process beside it, and require that this ends, too."""
    (child,) = children(broker)
    assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
    until = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
