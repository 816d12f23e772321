"""A real broker with an HTTP listener."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.process import BrokerProcess

LISTEN = ("--listen=mqtt://127.0.0.1:0", "--listen=ws://127.0.0.1:0", "--listen=http://127.0.0.1:0")
MQTT, WS, HTTP = range(3)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("http")
    with BrokerProcess(*LISTEN, "--data", str(folder / "data")) as broker:
        yield broker
        assert not [line for line in broker.log if "internal error" in line or "Traceback" in line]


@pytest.fixture
def api(broker: BrokerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.urls[HTTP], timeout=30) as client:
        yield client
