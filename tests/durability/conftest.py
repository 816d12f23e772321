"""A broker with a data folder for each test, that may be ended and started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .broker import Broker
from .disk import CannotMount, SmallDisk
from .peers import dialled


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    yield
    for peer in list(dialled):
        peer.drop()


@pytest.fixture
def stopped_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that the test has to start; at the end, it must not have logged an error."""
    broker = Broker(tmp_path)
    try:
        yield broker
        if broker.running:
            assert broker.process.process.poll() is None, "the broker has ended by itself"
        assert broker.complaints == []
    finally:
        broker.close()


@pytest.fixture
def broker(stopped_broker: Broker) -> Broker:
    """A broker that runs."""
    stopped_broker.start()
    return stopped_broker


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of its own that is soon full."""
    try:
        made = SmallDisk(tmp_path)
    except CannotMount as error:
        pytest.skip(str(error))
    with made:
        yield made
