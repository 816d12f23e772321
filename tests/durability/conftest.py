"""For each test a broker with a data folder, which the test may end and start again."""

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
    """A broker that the test starts; an error in its log fails the test."""
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
    """A running broker."""
    stopped_broker.start()
    return stopped_broker


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A small disk."""
    try:
        made = SmallDisk(tmp_path)
    except CannotMount as error:
        pytest.skip(str(error))
    with made:
        yield made
