"""Child processes of a broker."""

from __future__ import annotations

import signal
import socket
from functools import partial
from pathlib import Path

from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until


def children(broker: BrokerProcess) -> list[int]:
    """Return the process ids of a broker's children."""
    process = broker.process.pid
    found = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(one) for one in found.split()]


def start_children(broker: BrokerProcess, *numbers: int) -> list[int]:
    """Return the process ids of all children, which connections to listeners with these numbers start."""
    for number in numbers:
        before = children(broker)
        with socket.create_connection(("127.0.0.1", broker.port(number)), timeout=30):
            wait_until(partial(_has_others, broker, before), "the child process starts")
    return children(broker)


def _has_others(broker: BrokerProcess, than: list[int]) -> bool:
    return children(broker) != than


def assert_it_ends_with_its_broker(broker: BrokerProcess, number: int) -> None:
    """Kill a broker whose listener `number` has a child process, and require that the child ends."""
    (child,) = start_children(broker, number)
    assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the child process ends")
