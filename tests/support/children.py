"""Child processes of a broker."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until


def children(broker: BrokerProcess) -> list[int]:
    """Return the process ids of a broker's children."""
    process = broker.process.pid
    found = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(one) for one in found.split()]


def assert_it_ends_with_its_broker(broker: BrokerProcess) -> None:
    """Kill a broker with one child process, and require that the child ends."""
    (child,) = children(broker)
    assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the child process ends")
